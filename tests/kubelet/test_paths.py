"""kubelet.paths: everything follows from the kubelet's root; a socket's path must fit into sun_path."""

import socket
from pathlib import Path

import pytest

from kubelet.paths import KubeletPaths, socket_target
from runtime.flags import UNIX_PATH_BYTES


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("device_plugins", "/r/device-plugins"),
        ("registration_socket", "/r/device-plugins/kubelet.sock"),
        ("checkpoint", "/r/device-plugins/kubelet_internal_checkpoint"),
        ("pod_resources", "/r/pod-resources"),
        ("pod_resources_socket", "/r/pod-resources/kubelet.sock"),
        ("plugins_registry", "/r/plugins_registry"),
        ("pods_api", "/r/pods-api"),
        ("pods_api_socket", "/r/pods-api/pods-api.sock"),
    ],
)
def test_every_path_follows_from_the_root(name: str, expected: str) -> None:
    assert getattr(KubeletPaths(Path("/r")), name) == Path(expected)


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
