"""exporter.views.matching: what a filter keeps."""

import pytest

from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import AdvertisedDevice, Device, DeviceKey, Holder, Snapshot
from exporter.views import matching
from exporter.views.query import DeviceState, Filters


def ids(snapshot: Snapshot, filters: Filters) -> list[str]:
    return [d.key.device for d in matching.devices(snapshot, filters)]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (Filters(resource="nvidia.com/gpu.shared"), ["GPU-7::0", "GPU-7::1"]),
        (Filters(resource="nvidia.com/gp"), []),
        (Filters(namespace="ml"), ["GPU-0", "GPU-1"]),
        (Filters(namespace="m"), []),
        (Filters(pod="LLAMA"), ["GPU-0", "GPU-1"]),
        (Filters(device="gpu-7"), ["GPU-7::0", "GPU-7::1"]),
        (Filters(state=DeviceState.HELD), ["GPU-0", "GPU-1", "GPU-2", "GPU-7::0"]),
        (Filters(state=DeviceState.FREE), ["GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7::1"]),
        (Filters(state=DeviceState.UNHEALTHY), ["GPU-2"]),
        (Filters(q="Blender"), ["GPU-2"]),
        (Filters(q="ml/llama-0"), ["GPU-0", "GPU-1"]),
        (Filters(q="uid-1"), ["GPU-0", "GPU-1"]),
        (Filters(q="shared"), ["GPU-7::0", "GPU-7::1"]),
        (Filters(q="nobody"), []),
        (Filters(state=DeviceState.HELD, resource="nvidia.com/gpu.shared"), ["GPU-7::0"]),
    ],
)
def test_devices(snapshot: Snapshot, filters: Filters, found: list[str]) -> None:
    assert ids(snapshot, filters) == found


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (Filters(), {"llama-0", "vllm-0", "render-1", "shared-1", "shared-2", "engine-0"}),
        (Filters(namespace="dra"), {"shared-1", "shared-2"}),
        (Filters(q="gpu.example.com"), {"shared-1", "shared-2"}),
        (Filters(q="shared-2"), {"shared-2"}),
        (Filters(device="gpu-0"), {"llama-0", "shared-1", "shared-2"}),
        (Filters(resource="nvidia.com/gpu"), {"llama-0", "render-1"}),
        (Filters(resource="nvidia.com/gpu", namespace="ml"), {"llama-0"}),
        (Filters(state=DeviceState.UNHEALTHY), {"render-1"}),
        (Filters(state=DeviceState.HELD), {"llama-0", "vllm-0", "render-1", "shared-1", "shared-2"}),
        (Filters(state=DeviceState.FREE), set[str]()),
        (Filters(pod="engine"), {"engine-0"}),
    ],
)
def test_pods(snapshot: Snapshot, filters: Filters, found: set[str]) -> None:
    assert {pod for _, pod in matching.pods(snapshot, filters)} == found


def test_a_filter_that_a_row_cannot_satisfy_leaves_it_out(snapshot: Snapshot) -> None:
    assert len(matching.claims(snapshot, Filters())) == 1
    assert len(matching.containers(snapshot, Filters())) == 1
    assert matching.claims(snapshot, Filters(resource="nvidia.com/gpu")) == []
    assert len(matching.claims(snapshot, Filters(resource="gpu.example.com"))) == 1, "its driver"
    assert len(matching.claims(snapshot, Filters(state=DeviceState.HELD))) == 1
    assert matching.claims(snapshot, Filters(state=DeviceState.FREE)) == []
    assert len(matching.claims(snapshot, Filters(q="GPU=claim-1"))) == 1, "its CDI device"
    assert matching.containers(snapshot, Filters(device="GPU")) == []
    assert len(matching.claims(snapshot, Filters(pod="shared-2"))) == 1
    assert matching.claims(snapshot, Filters(q="nobody")) == []


def test_a_device_of_several_pods_is_kept_whole_but_only_the_pods_that_match() -> None:
    holders = (Holder("a", "one", "c"), Holder("b", "two", "c"))
    both = Snapshot(devices=(Device(DeviceKey("r/x", "d"), holders=holders),))
    assert [d.holders for d in matching.devices(both, Filters(namespace="a"))] == [holders]
    assert matching.pods(both, Filters(q="two")) == {("b", "two")}


def test_what_is_copied_from_the_page_finds_its_device() -> None:
    hostile = Snapshot(devices=(Device(DeviceKey("r/x", "A\u202eB\x1b")),))
    assert ids(hostile, Filters(device="\\u202eb\\x1b")) == ["A\u202eB\x1b"]
    assert ids(hostile, Filters(q="a\\u202e")) == ["A\u202eB\x1b"]


def test_of_health_nothing_is_said_where_the_kubelet_cannot_tell() -> None:
    held = Device(DeviceKey("r/x", "d"), holders=(Holder("a", "p", "c"),))
    incomplete = Snapshot(devices=(held,), complete=False)
    assert matching.states(held, complete=False) == {DeviceState.HELD}
    assert ids(incomplete, Filters(state=DeviceState.UNHEALTHY)) == []


def test_what_is_searched_is_also_found_in_workloads_and_in_what_plugins_tell(snapshot: Snapshot) -> None:
    told = AdvertisedDevice(
        False, "XID 79", attributes=(("model", "H100"), ("path", "/dev/nvidia3")), parent="B-1"
    )
    known = matching.Told(
        {
            ("ml", "llama-0"): PodIdentity("ml", "llama-0", "u", workload=Workload("StatefulSet", "Llama")),
            ("dra", "shared-1"): PodIdentity("dra", "shared-1", "u", workload=Workload("Job", "sharing")),
        },
        {DeviceKey("nvidia.com/gpu", "GPU-3"): told},
    )

    def found(q: str) -> list[str]:
        return [d.key.device for d in matching.devices(snapshot, Filters(q=q), known)]

    assert found("statefulset llama") == ["GPU-0", "GPU-1"]
    for q in ("h100", "model h", "/dev/nvidia3", "b-1", "xid"):
        assert found(q) == ["GPU-3"], q
    assert ids(snapshot, Filters(q="h100")) == []
    assert len(matching.claims(snapshot, Filters(q="job sharing"), known)) == 1
    assert matching.pods(snapshot, Filters(q="statefulset"), known) == {("ml", "llama-0")}
