"""exporter.refresh.pipeline: answers after a restart, large and repeated answers, and the nodes of CPUs."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.chosen_devices import Choice
from exporter.mapping.dra import (
    AllocatedDevice,
    ChosenDevice,
    Claim,
    ClaimName,
    ContainerClaim,
    DraView,
    PodClaim,
    PodDevices,
    PublishedName,
)
from exporter.mapping.identity import EMPTY_VIEW, NEVER, PodIdentity, PodRegistry, Poll
from exporter.mapping.listing import LARGE
from exporter.mapping.restart_guard import DISTRUST_UNSYNCED
from exporter.refresh.pipeline import SnapshotPipeline, Update, numa_of_cpus, parse_cpu_list
from harness import answers
from kubelet.podresources import Raw


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


def _owners(update: Update | None) -> dict[str, list[str]]:
    assert update is not None
    return {one.key.device: [who.pod for who in one.holders] for one in update.snapshot.devices}


def test_list_after_a_restart_is_believed_and_what_it_leaves_out_is_kept_for_a_while() -> None:
    pipeline = SnapshotPipeline(keep_allocatable=60.0, node="node-1")
    _process(pipeline, 100.0, _raw(("p", "a"), ("q", "b"), ("agent", ""), STATIC, ids="abcs"))
    # Nobody is listed, and nothing is allocatable: no plugin has registered again.
    empty = _process(pipeline, 101.1, _raw(ids=""), restarted_at=101.0)
    assert _owners(empty) == {"a": ["p"], "b": ["q"], "c": [], "s": ["static-node-1"]}
    assert empty is not None
    assert empty.anomalies == ()
    assert empty.changes is not None
    assert not empty.changes.change.ended
    assert {pod for _, pod in empty.snapshot.unconfirmed} == {"p", "q", "static-node-1"}
    # p is another pod by now, without devices; r holds the device of q.
    update = _process(pipeline, 102.0, _raw(("agent", ""), ("p", ""), ("r", "b"), STATIC), restarted_at=101.0)
    assert _owners(update) == {"a": [], "b": ["r"], "c": [], "s": ["static-node-1"]}
    assert update is not None
    assert not update.snapshot.unconfirmed
    assert update.changes is not None
    assert [one.holder.pod for one in update.changes.change.ended] == ["p", "q"]


STATIC = ("static-node-1", "s")


def test_api_server_that_is_away_keeps_what_pods_held() -> None:
    """Without it a kubelet lists static pods alone, and answers OK."""
    pipeline = SnapshotPipeline(keep_allocatable=60.0, node="node-1")
    _process(pipeline, 100.0, _raw(("p", "a"), ("agent", ""), STATIC))
    for now in (102.0, 150.0, 1000.0):
        update = _process(pipeline, now, _raw(STATIC), restarted_at=101.0)
        assert _owners(update) == {"a": ["p"], "b": [], "s": ["static-node-1"]}
    update = _process(pipeline, 1001.0, _raw(("agent", ""), STATIC), restarted_at=101.0)
    assert _owners(update)["a"] == ["p"]
    # It lists its pods by now; nothing further comes.
    update = _process(pipeline, 1003.0, _raw(("agent", ""), STATIC), restarted_at=101.0)
    assert _owners(update)["a"] == []


def test_pod_that_was_listed_since_the_restart_is_gone_at_once() -> None:
    pipeline = SnapshotPipeline(keep_allocatable=60.0)
    _process(pipeline, 100.0, _raw(("p", "a"), ("q", "b")))
    _process(pipeline, 102.0, _raw(("q", "b")), restarted_at=101.0)
    update = _process(pipeline, 102.5, _raw(), restarted_at=101.0)
    assert _owners(update) == {"a": ["p"], "b": []}
    # Another restart, and nothing is sure again.
    _process(pipeline, 103.0, _raw(("q", "b")), restarted_at=101.0)
    update = _process(pipeline, 104.0, _raw(), restarted_at=103.5)
    assert _owners(update) == {"a": ["p"], "b": ["q"]}


def test_pod_source_ends_the_doubt_between_two_polls() -> None:
    registry, (key, uid) = PodRegistry(), (("n", "p"), "uid-1")
    registry.connect()
    registry.sync(50.0)
    registry.see(PodIdentity(*key, uid), 50.0)
    registry.confirm(101.0)
    pipeline = SnapshotPipeline(keep_allocatable=60.0)
    pipeline.process(_raw(("p", "a")), 100.0, poll=Poll(99.9, 100.0), view=registry.view)
    found = pipeline.process(_raw(), 102.0, poll=Poll(101.9, 102.0), view=registry.view, restarted_at=101.0)
    assert found is not None
    (holder,) = found.snapshot.devices[0].holders
    assert (holder.pod_uid, list(found.pods)) == (uid, [key])
    assert found.snapshot.unconfirmed[key].why == "the pod source has not reported its end"
    registry.end(key, uid, 102.5)
    read_again = pipeline.reconsider(102.6, registry.view)
    assert _owners(read_again) == {"a": [], "b": []}
    assert read_again is not None
    assert not read_again.pods


def test_annotation_of_another_scheduler_that_shows_later_changes_the_physical_device() -> None:
    registry, (key, uid) = PodRegistry(), (("n", "p"), "uid-1")
    registry.connect()
    registry.see(PodIdentity(*key, uid), 50.0)
    registry.confirm(101.0)
    pipeline = SnapshotPipeline(keep_allocatable=60.0)
    pipeline.process(_raw(("p", "a")), 100.0, poll=Poll(99.9, 100.0), view=registry.view)
    # The Pods API sends no change of annotations: a list has it.
    chosen = PodDevices(chosen=(ChosenDevice("HAMi", "c", "b"),))
    registry.see(PodIdentity(*key, uid, devices=chosen), 100.5)
    found = pipeline.reconsider(100.6, registry.view)
    assert found is not None
    (holder,) = found.statuses.devices[0].holders
    assert holder.choice == Choice("b", "HAMi")


_NAMES = ("p", "q", "r", "agent", "static-node-1")
_lists = st.lists(
    st.tuples(
        # Each pod that is listed, and its devices.
        st.dictionaries(st.sampled_from(_NAMES), st.sets(st.sampled_from("abc")), max_size=4),
        st.sets(st.sampled_from("abc")),
        st.booleans(),
        st.sampled_from([0.2, 1.0, 3.0, 15.0]),
    ),
    min_size=2,
    max_size=8,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(_lists)
def test_no_answer_of_any_kubelet_is_contradicted(
    lists: list[tuple[dict[str, set[str]], set[str], bool, float]],
) -> None:
    """Restarts at random: what List says is always there, and nothing but former holdings besides."""
    pipeline = SnapshotPipeline(keep_allocatable=60.0, node="node-1")
    now, restarted_at, held = 100.0, -NEVER, dict[str, list[str]]()
    for pods, offered, restart, after in lists:
        if restart:
            restarted_at = now + 0.05
        now += after
        listed = answers.listed(*(answers.pod(pod, *sorted(ids)) for pod, ids in sorted(pods.items())))
        raw = _answer(listed, answers.offered(*sorted(offered)))
        update = _process(pipeline, now, raw, restarted_at=restarted_at)
        assert update is not None
        said = {one: sorted(pod for pod, ids in pods.items() if one in ids) for one in "abc"}
        found = _owners(update)
        for device, pods_of in found.items():
            if said[device] or pods_of == []:
                assert pods_of == said[device]
            else:
                assert set(pods_of) <= set(held[device]) - pods.keys()
                assert {("n", pod) for pod in pods_of} <= update.snapshot.unconfirmed.keys()
                assert now < restarted_at + DISTRUST_UNSYNCED
        assert {one for one, pods_of in said.items() if pods_of} | offered <= found.keys()
        # The counts of changes follow what is shown.
        if held and update.changes is not None:
            began = Counter(one.key.device for one in update.changes.change.began)
            ended = Counter(one.key.device for one in update.changes.change.ended)
            for device in "abc":
                before, present = held.get(device, []), found.get(device, [])
                assert len(before) + began[device] - ended[device] == len(present)
        held = found
        if not update.snapshot.unconfirmed:
            restarted_at = -NEVER


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


def test_claim_that_the_kubelet_does_not_list_is_unprepared_though_no_answer_changes() -> None:
    registry, name = PodRegistry(), ClaimName("n", "mine")
    registry.connect()
    devices = PodDevices((PodClaim("gpu", name.name),), uses=(ContainerClaim("c", "gpu", ""),))
    registry.see(PodIdentity("n", "p", "uid-1", "Pending", devices=devices), 50.0)
    allocated = AllocatedDevice(
        PublishedName("gpu.example.com", "node-1", "gpu-0"), "", "r", "gpu", admin=False
    )
    dra = DraView(claims={name: Claim(name, "uid-2", (allocated,), frozenset({"uid-1"}))})
    pipeline = SnapshotPipeline(keep_allocatable=60.0, node="node-1")
    for now, kinds in ((100.0, []), (130.0, []), (160.0, ["unprepared"])):
        poll = Poll(now - 0.1, now)
        found = pipeline.process(_raw(("p", "")), now, poll=poll, view=registry.view, dra=dra)
        assert found is not None
        assert [one.kind for one in found.anomalies] == kinds
    registry.end(("n", "p"), "uid-1", 170.0)
    later = pipeline.reconsider(170.0, registry.view, dra=dra)
    assert later is not None
    assert not later.anomalies
