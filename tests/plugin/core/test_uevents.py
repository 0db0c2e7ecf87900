from hypothesis import given
from hypothesis import strategies as st

from plugin.discovery.uevents import MAX_BYTES, Uevent, parse

LOOP = b"/devices/virtual/block/loop7"
ADD = b"add@" + LOOP + b"\0ACTION=add\0DEVPATH=" + LOOP + b"\0SUBSYSTEM=block\0SEQNUM=42\0"


def test_an_event_of_the_kernels() -> None:
    assert parse(ADD) == Uevent("add", "/devices/virtual/block/loop7", "block")
    assert parse(b"bind@/x\0ACTION=bind\0") == Uevent("bind", "/x", "")


def test_anything_else_is_none() -> None:
    for message in (
        b"",
        b"libudev\0\xfe\xed\xca\xfe",
        b"add@relative\0ACTION=add\0",
        b"add@/x\0ACTION=remove\0",
        b"add@/x",
        b"@/x\0ACTION=\0",
        b"add /x\0ACTION=add\0",
        ADD + b"x" * MAX_BYTES,
    ):
        assert parse(message) is None


@given(st.binary(max_size=300))
def test_no_message_is_too_odd(message: bytes) -> None:
    parse(message)
    parse(b"add@/x\0ACTION=add\0" + message)
