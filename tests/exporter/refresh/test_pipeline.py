"""exporter.refresh.pipeline: what an answer becomes, and the NUMA nodes of CPUs."""

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.identity import EMPTY_VIEW, Poll
from exporter.mapping.listing import LARGE
from exporter.mapping.state import UNSETTLED
from exporter.refresh.pipeline import SnapshotPipeline, numa_of_cpus, parse_cpu_list
from kubelet.pb.podresources.v1 import api_pb2
from kubelet.podresources import KubeletError, Raw


def _raw(*pods: tuple[str, str]) -> Raw:
    """Pods and the device that each holds, "" for none."""
    listed = api_pb2.ListPodResourcesResponse()
    for pod, device in pods:
        container = listed.pod_resources.add(namespace="n", name=pod).containers.add(name="c")
        if device:
            container.devices.add(resource_name="r", device_ids=[device])
    offered = api_pb2.AllocatableResourcesResponse(
        devices=[api_pb2.ContainerDevices(resource_name="r", device_ids=["a", "b"])]
    )
    return Raw(
        listed.SerializeToString(), offered.SerializeToString(), asked_allocatable=True, api_version="v1"
    )


def test_a_pod_that_is_listed_without_anything_is_not_missing() -> None:
    """Its predecessor of the same name ended while the kubelet was down, and it asks for nothing."""
    pipeline = SnapshotPipeline(keep_allocatable=60.0)
    pipeline.process(_raw(("p", "a"), ("q", "b")), 100.0, poll=Poll(99.9, 100.0), view=EMPTY_VIEW)
    with pytest.raises(KubeletError) as caught:
        pipeline.process(_raw(("p", "")), 102.0, poll=Poll(101.9, 102.0), view=EMPTY_VIEW, restarted_at=101.0)
    assert caught.value.code == UNSETTLED
    news = pipeline.process(
        _raw(("p", ""), ("q", "b")), 103.0, poll=Poll(102.9, 103.0), view=EMPTY_VIEW, restarted_at=101.0
    )
    assert news is not None
    assert [(device.key.device, len(device.holders)) for device in news.snapshot.devices] == [
        ("a", 0),
        ("b", 1),
    ]


def test_a_kubelet_that_has_come_up_without_its_api_server_takes_nothing_from_anybody() -> None:
    """It lists static pods alone, and says OK."""
    pipeline = SnapshotPipeline(keep_allocatable=60.0, node="node-1")
    before = (("p", "a"), ("agent", ""), ("static-node-1", "b"))
    pipeline.process(_raw(*before), 100.0, poll=Poll(99.9, 100.0), view=EMPTY_VIEW)
    for now in (102.0, 150.0, 1000.0):
        with pytest.raises(KubeletError, match="no pod of the API server") as caught:
            pipeline.process(
                _raw(("static-node-1", "b")),
                now,
                poll=Poll(now - 0.1, now),
                view=EMPTY_VIEW,
                restarted_at=101.0,
            )
        assert caught.value.code == UNSETTLED
    news = pipeline.process(
        _raw(("agent", ""), ("static-node-1", "b")),
        1001.0,
        poll=Poll(1000.9, 1001.0),
        view=EMPTY_VIEW,
        restarted_at=101.0,
    )
    assert news is not None
    assert [len(device.holders) for device in news.snapshot.devices] == [0, 1]


def _large(held: int) -> Raw:
    """More than LARGE in each answer; `held` is the first device's holder."""
    ids = [f"{number:05d}".ljust(1000, "0") for number in range(LARGE // 1000 + 1)]
    listed = api_pb2.ListPodResourcesResponse()
    container = listed.pod_resources.add(namespace="n", name=f"p{held}").containers.add(name="c")
    container.devices.add(resource_name="r", device_ids=ids)
    offered = api_pb2.AllocatableResourcesResponse(
        devices=[api_pb2.ContainerDevices(resource_name="r", device_ids=ids)]
    )
    return Raw(
        listed.SerializeToString(), offered.SerializeToString(), asked_allocatable=True, api_version="v1"
    )


def test_a_large_answer_is_recognised_and_read_anew_though_its_bytes_are_not_kept() -> None:
    pipeline = SnapshotPipeline(keep_allocatable=60.0)
    raw = _large(1)
    references = [sys.getrefcount(data) for data in (raw, raw.listed, raw.allocatable)]
    first = pipeline.process(raw, 100.0, poll=Poll(99.9, 100.0), view=EMPTY_VIEW)
    assert [sys.getrefcount(data) for data in (raw, raw.listed, raw.allocatable)] == references
    same = pipeline.process(_large(1), 101.0, poll=Poll(100.9, 101.0), view=EMPTY_VIEW)
    anew = pipeline.reconsider(101.5, EMPTY_VIEW)
    other = pipeline.process(_large(2), 102.0, poll=Poll(101.9, 102.0), view=EMPTY_VIEW)
    assert first is not None
    assert same is not None
    assert anew is not None
    assert other is not None
    assert same.snapshot is first.snapshot
    assert same.changes is None
    assert anew.snapshot is first.snapshot
    assert other.changes is not None
    assert len(other.changes.change.began) == len(other.changes.change.ended) == LARGE // 1000 + 1


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", set()), ("\n", set()), ("0\n", {0}), ("0-3,8,10-11", {0, 1, 2, 3, 8, 10, 11}), ("5-5", {5})],
)
def test_the_kernels_lists_are_read(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "0-99999999999", "1--2", "0x1", "1;2"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|expected a range of CPU numbers"):
        parse_cpu_list(text)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sets(st.integers(0, 300)))
def test_every_set_comes_back_from_its_list(cpus: set[int]) -> None:
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    text = ",".join(f"{low}-{high}" if high > low else str(low) for low, high in ranges)
    assert parse_cpu_list(text) == cpus


def _node(root: Path, name: str, cpulist: bytes | None) -> None:
    (root / name).mkdir()
    if cpulist is not None:
        (root / name / "cpulist").write_bytes(cpulist)


def test_each_cpu_has_the_node_that_lists_it_and_a_node_that_makes_no_sense_is_left_out(
    tmp_path: Path,
) -> None:
    _node(tmp_path, "node0", b"0-1,4\n")
    _node(tmp_path, "node1", b"2-3\n")
    _node(tmp_path, "node2", b"\n")
    _node(tmp_path, "node3", b"\xff\xfe")
    _node(tmp_path, "node4", b"0-999999999999\n")
    _node(tmp_path, "node5", None)
    _node(tmp_path, "nodes", b"9\n")
    (tmp_path / "possible").write_text("0-1\n", encoding="ascii")
    assert numa_of_cpus(tmp_path) == {0: 0, 1: 0, 4: 0, 2: 1, 3: 1}


def test_without_sysfs_nothing_is_known(tmp_path: Path) -> None:
    assert numa_of_cpus(tmp_path / "missing") == {}
