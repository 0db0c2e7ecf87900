"""exporter.refresh.pipeline: rejected, large, and repeated answers, and the NUMA nodes of CPUs."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from google.protobuf.message import Message

from exporter.mapping.identity import EMPTY_VIEW, NEVER, Poll
from exporter.mapping.listing import LARGE
from exporter.mapping.state import UNSETTLED
from exporter.refresh.pipeline import SnapshotPipeline, Update, numa_of_cpus, parse_cpu_list
from harness import answers
from kubelet.podresources import KubeletError, Raw


def _raw(*pods: tuple[str, str], ids: Sequence[str] = ("a", "b")) -> Raw:
    """Pods and the device that each holds, "" for none; `ids` are allocatable."""
    listed = answers.listed(*(answers.pod(pod, *([device] if device else [])) for pod, device in pods))
    return _answer(listed, answers.offered(*ids))


def _answer(listed: Message, offered: Message) -> Raw:
    return Raw(
        *(listed.SerializeToString(), offered.SerializeToString()), asked_allocatable=True, api_version="v1"
    )


def _process(pipeline: SnapshotPipeline, now: float, raw: Raw, restarted_at: float = -NEVER) -> Update | None:
    poll = Poll(now - 0.1, now)
    return pipeline.process(raw, now, poll=poll, view=EMPTY_VIEW, restarted_at=restarted_at)


STATIC = ("static-node-1", "b")


@pytest.mark.parametrize(
    ("before", "rejected", "times", "accepted", "holders"),
    [
        # q is missing. p holds nothing any more: its predecessor of the same name ended during the restart.
        ([("p", "a"), ("q", "b")], [("p", "")], [102.0], [("p", ""), ("q", "b")], [0, 1]),
        # Without the API server a kubelet lists static pods alone, and answers OK.
        (
            [("p", "a"), ("agent", ""), STATIC],
            *([STATIC], [102.0, 150.0, 1000.0], [("agent", ""), STATIC], [0, 1]),
        ),
    ],
    ids=["missing", "static pods alone"],
)
def test_incomplete_list_after_a_restart_is_rejected(
    before: list[tuple[str, str]],
    rejected: list[tuple[str, str]],
    times: list[float],
    accepted: list[tuple[str, str]],
    holders: list[int],
) -> None:
    pipeline = SnapshotPipeline(keep_allocatable=60.0, node="node-1")
    _process(pipeline, 100.0, _raw(*before))
    for now in times:
        with pytest.raises(KubeletError) as caught:
            _process(pipeline, now, _raw(*rejected), restarted_at=101.0)
        assert caught.value.code == UNSETTLED
    update = _process(pipeline, times[-1] + 1, _raw(*accepted), restarted_at=101.0)
    assert update is not None
    assert [len(device.holders) for device in update.snapshot.devices] == holders


def test_large_answer_is_recognised_by_a_digest() -> None:
    ids = [f"{number:05d}".ljust(1000, "0") for number in range(LARGE // 1000 + 1)]

    def large(pod: str) -> Raw:
        return _answer(answers.listed(answers.pod(pod, *ids)), answers.offered(*ids))

    pipeline = SnapshotPipeline(keep_allocatable=60.0)
    raw = large("p1")
    references = [sys.getrefcount(data) for data in (raw, raw.listed, raw.allocatable)]
    first = _process(pipeline, 100.0, raw)
    assert [sys.getrefcount(data) for data in (raw, raw.listed, raw.allocatable)] == references
    same, anew = _process(pipeline, 101.0, large("p1")), pipeline.reconsider(101.5, EMPTY_VIEW)
    other = _process(pipeline, 102.0, large("p2"))
    assert first is not None
    assert same is not None
    assert anew is not None
    assert other is not None
    assert same.snapshot is anew.snapshot is first.snapshot
    assert same.changes is None
    assert other.changes is not None
    assert len(other.changes.change.began) == len(other.changes.change.ended) == len(ids)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", set()), ("\n", set()), ("0\n", {0}), ("0-3,8,10-11", {0, 1, 2, 3, 8, 10, 11}), ("5-5", {5})],
)
def test_cpu_list_of_the_kernel_is_parsed(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "0-99999999999", "1--2", "0x1", "1;2"])
def test_other_cpu_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|expected a range of CPU numbers"):
        parse_cpu_list(text)


def test_each_cpu_has_the_node_that_lists_it(tmp_path: Path) -> None:
    """Nodes whose list cannot be read are left out."""
    lists = [b"0-1,4\n", b"2-3\n", b"\n", b"\xff\xfe", b"0-999999999999\n", None]
    for number, cpulist in enumerate(lists):
        (tmp_path / f"node{number}").mkdir()
        if cpulist is not None:
            (tmp_path / f"node{number}" / "cpulist").write_bytes(cpulist)
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "cpulist").write_bytes(b"9\n")
    (tmp_path / "possible").write_text("0-1\n", encoding="ascii")
    assert numa_of_cpus(tmp_path) == {0: 0, 1: 0, 4: 0, 2: 1, 3: 1}
    assert numa_of_cpus(tmp_path / "missing") == {}
