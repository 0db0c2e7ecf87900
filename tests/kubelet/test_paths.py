"""kubelet.paths: the path of a socket must fit into sun_path."""

import socket
from pathlib import Path

import pytest

from kubelet.paths import socket_target
from runtime.flags import UNIX_PATH_BYTES


def test_the_longest_path_that_is_let_through_is_the_longest_that_the_kernel_binds(sockets: Path) -> None:
    room = UNIX_PATH_BYTES - len(bytes(sockets)) - 1
    longest = sockets / ("s" * room)
    assert socket_target(longest) == f"unix:{longest}"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(longest))

    too_long = sockets / ("s" * (room + 1))
    with pytest.raises(ValueError, match=r"108 bytes long, at most 107 work: /") as caught:
        socket_target(too_long)
    assert str(too_long) in str(caught.value)
    with socket.socket(socket.AF_UNIX) as unbound, pytest.raises(OSError, match="too long"):
        unbound.bind(str(too_long))


def test_a_path_is_measured_in_bytes_not_in_characters() -> None:
    with pytest.raises(ValueError, match="at most 107"):
        socket_target(Path("/" + "é" * 54))


def test_a_relative_path_becomes_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/tmp")
    assert socket_target(Path("kubelet.sock")) == "unix:/tmp/kubelet.sock"
