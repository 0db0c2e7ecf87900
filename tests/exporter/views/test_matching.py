"""exporter.views.matching: what a filter keeps."""

import pytest

from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import AdvertisedDevice, Device, DeviceKey, Holder, Snapshot
from exporter.views.matching import ItemMatcher, states
from exporter.views.query import Filters, StateFilter


def ids(snapshot: Snapshot, filters: Filters) -> list[str]:
    return [d.key.device for d in ItemMatcher(filters).devices(snapshot)]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (Filters(resource="nvidia.com/gpu.shared"), ["GPU-7::0", "GPU-7::1"]),
        (Filters(resource="nvidia.com/gp"), []),
        (Filters(namespace="ml"), ["GPU-0", "GPU-1"]),
        (Filters(namespace="m"), []),
        (Filters(pod="LLAMA"), ["GPU-0", "GPU-1"]),
        (Filters(device="gpu-7"), ["GPU-7::0", "GPU-7::1"]),
        (Filters(state=StateFilter.HELD), ["GPU-0", "GPU-1", "GPU-2", "GPU-7::0"]),
        (Filters(state=StateFilter.FREE), ["GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7::1"]),
        (Filters(state=StateFilter.UNHEALTHY), ["GPU-2"]),
        (Filters(q="Blender"), ["GPU-2"]),
        (Filters(q="ml/llama-0"), ["GPU-0", "GPU-1"]),
        (Filters(q="uid-1"), ["GPU-0", "GPU-1"]),
        (Filters(q="shared"), ["GPU-7::0", "GPU-7::1"]),
        (Filters(q="nobody"), []),
        (Filters(state=StateFilter.HELD, resource="nvidia.com/gpu.shared"), ["GPU-7::0"]),
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
        (Filters(state=StateFilter.UNHEALTHY), {"render-1"}),
        (Filters(state=StateFilter.HELD), {"llama-0", "vllm-0", "render-1", "shared-1", "shared-2"}),
        (Filters(state=StateFilter.FREE), set[str]()),
        (Filters(pod="engine"), {"engine-0"}),
    ],
)
def test_pods(snapshot: Snapshot, filters: Filters, found: set[str]) -> None:
    assert {pod for _, pod in ItemMatcher(filters).pods(snapshot)} == found


def test_a_filter_that_a_row_cannot_satisfy_leaves_it_out(snapshot: Snapshot) -> None:
    assert len(ItemMatcher(Filters()).claims(snapshot)) == 1
    assert len(ItemMatcher(Filters()).containers(snapshot)) == 1
    assert ItemMatcher(Filters(resource="nvidia.com/gpu")).claims(snapshot) == []
    assert len(ItemMatcher(Filters(resource="gpu.example.com")).claims(snapshot)) == 1, "its driver"
    assert len(ItemMatcher(Filters(state=StateFilter.HELD)).claims(snapshot)) == 1
    assert ItemMatcher(Filters(state=StateFilter.FREE)).claims(snapshot) == []
    assert len(ItemMatcher(Filters(q="GPU=claim-1")).claims(snapshot)) == 1, "its CDI device"
    assert ItemMatcher(Filters(device="GPU")).containers(snapshot) == []
    assert len(ItemMatcher(Filters(pod="shared-2")).claims(snapshot)) == 1
    assert ItemMatcher(Filters(q="nobody")).claims(snapshot) == []


def test_a_device_of_several_pods_is_kept_whole_but_only_the_pods_that_match() -> None:
    holders = (Holder("a", "one", "c"), Holder("b", "two", "c"))
    both = Snapshot(devices=(Device(DeviceKey("r/x", "d"), holders=holders),))
    assert [d.holders for d in ItemMatcher(Filters(namespace="a")).devices(both)] == [holders]
    assert ItemMatcher(Filters(q="two")).pods(both) == {("b", "two")}


def test_what_is_copied_from_the_page_finds_its_device() -> None:
    hostile = Snapshot(devices=(Device(DeviceKey("r/x", "A\u202eB\x1b")),))
    assert ids(hostile, Filters(device="\\u202eb\\x1b")) == ["A\u202eB\x1b"]
    assert ids(hostile, Filters(q="a\\u202e")) == ["A\u202eB\x1b"]


def test_of_health_nothing_is_said_where_the_kubelet_cannot_tell() -> None:
    held = Device(DeviceKey("r/x", "d"), holders=(Holder("a", "p", "c"),))
    incomplete = Snapshot(devices=(held,), complete=False)
    assert states(held, complete=False) == {StateFilter.HELD}
    assert ids(incomplete, Filters(state=StateFilter.UNHEALTHY)) == []


def test_what_is_searched_is_also_found_in_workloads_and_in_what_plugins_tell(snapshot: Snapshot) -> None:
    reported = AdvertisedDevice(
        False, "XID 79", attributes=(("model", "H100"), ("path", "/dev/nvidia3")), parent="B-1"
    )
    pods = {
        ("ml", "llama-0"): PodIdentity("ml", "llama-0", "u", workload=Workload("StatefulSet", "Llama")),
        ("dra", "shared-1"): PodIdentity("dra", "shared-1", "u", workload=Workload("Job", "sharing")),
    }
    plugins = {DeviceKey("nvidia.com/gpu", "GPU-3"): reported}

    def found(q: str) -> list[str]:
        return [d.key.device for d in ItemMatcher(Filters(q=q), pods, plugins).devices(snapshot)]

    assert found("statefulset llama") == ["GPU-0", "GPU-1"]
    for q in ("h100", "model h", "/dev/nvidia3", "b-1", "xid"):
        assert found(q) == ["GPU-3"], q
    assert ids(snapshot, Filters(q="h100")) == []
    assert len(ItemMatcher(Filters(q="job sharing"), pods, plugins).claims(snapshot)) == 1
    assert ItemMatcher(Filters(q="statefulset"), pods, plugins).pods(snapshot) == {("ml", "llama-0")}
