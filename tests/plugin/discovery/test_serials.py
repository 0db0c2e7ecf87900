from hypothesis import given
from hypothesis import strategies as st

from plugin.discovery.usb import Plugged, SerialNames

FTDI = ("0403", "6001")


def plugged(port: str, serial: str) -> Plugged:
    return Plugged(port, FTDI, serial)


def test_a_device_is_called_by_its_serial_number_else_by_its_port() -> None:
    assert SerialNames().names([plugged("1-1", "A1"), plugged("1-2", "")]) == {"1-1": "A1", "1-2": "1-2"}


def test_a_serial_number_moves_with_its_device() -> None:
    names = SerialNames()
    names.names([plugged("1-1", "A1")])
    names.names([])
    assert names.names([plugged("2-3", "A1")]) == {"2-3": "A1"}


def test_two_that_have_the_same_from_the_beginning_are_called_by_their_ports() -> None:
    assert SerialNames().names([plugged("1-1", "1"), plugged("1-2", "1")]) == {"1-1": "1-1", "1-2": "1-2"}


def test_who_had_it_first_keeps_it_and_nobody_gets_it_afterwards() -> None:
    names = SerialNames()
    names.names([plugged("1-2", "1")])
    both = [plugged("1-1", "1"), plugged("1-2", "1")]
    assert names.names(both) == {"1-1": "1-1", "1-2": "1"}
    assert names.names(both[:1]) == {"1-1": "1-1"}
    assert names.names(both) == {"1-1": "1-1", "1-2": "1"}
    assert names.names([plugged("3-3", "1")]) == {"3-3": "3-3"}


PORTS = st.sampled_from(["1-1", "1-2", "1-3"])


@given(st.lists(st.dictionaries(PORTS, st.sampled_from(["", "1", "2"])), max_size=6))
def test_no_two_are_called_the_same_and_nobody_is_called_otherwise_while_it_stays(
    looks: list[dict[str, str]],
) -> None:
    names = SerialNames()
    before: dict[str, str] = {}
    stayed: dict[str, str] = {}
    for look in looks:
        named = names.names([plugged(port, serial) for port, serial in sorted(look.items())])
        assert named.keys() == look.keys()
        assert len(set(named.values())) == len(named)
        for port, serial in look.items():
            assert named[port] in {serial, port}
            if before.get(port) == serial and port in stayed:
                assert named[port] == stayed[port]
        before, stayed = look, named
