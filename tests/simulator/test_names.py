"""What the kubelet lets a plugin call its resource."""

import pytest

from simulator.devices import is_extended_resource


@pytest.mark.parametrize(
    "name",
    [
        "example.com/camera",
        "a/b",
        "nvidia.com/mig-1g.5gb",
        "rdma/hca_shared_devices_a",
        "x.y.z/A-b_c.9",
        "example.com/" + "n" * 63,
    ],
)
def test_names_that_are_served(name: str) -> None:
    assert is_extended_resource(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "camera",
        "/camera",
        "example.com/",
        "example.com/a/b",
        "kubernetes.io/camera",
        "gpu.kubernetes.io/camera",
        "requests.example.com/camera",
        "Example.com/camera",
        "example..com/camera",
        "-example.com/camera",
        "example.com/-camera",
        "example.com/camera-",
        "example.com/cam era",
        "example.com/camera\n",
        "example.com/" + "n" * 64,
        "d" * 250 + "/camera",
        "exämple.com/camera",
    ],
)
def test_names_that_are_refused(name: str) -> None:
    assert not is_extended_resource(name)
