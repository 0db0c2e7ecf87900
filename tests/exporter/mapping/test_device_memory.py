"""exporter.mapping.device_memory: devices that no answer names any more."""

# pyright: reportPrivateUsage=false
# What a pipeline keeps shows in its later answers alone.

from collections.abc import Collection
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.device_memory import IN_ALL, PER_RESOURCE, DeviceMemory, RememberedDevice
from exporter.mapping.identity import EMPTY_VIEW, Poll
from exporter.mapping.model import (
    NO_REPORTS,
    AdvertisedDevice,
    AdvertisedResource,
    Device,
    DeviceKey,
    PluginReport,
    Snapshot,
    merge_reports,
)
from exporter.mapping.snapshot import SnapshotBuilder
from exporter.refresh.pipeline import SnapshotPipeline, Update
from harness.answers import R, entry, listed, offered, pod
from harness.scene import device
from kubelet.podresources import KubeletError, Raw

FORGET = 100.0


class Node:
    """A node whose answers a pipeline processes, `offset` seconds of unix time before its monotonic time."""

    def __init__(self, forget_after: float = FORGET, offset: float = 1000.0) -> None:
        self.pipeline = SnapshotPipeline(keep_allocatable=1e9, forget_after=forget_after)
        self.offset = offset
        self.update: Update | None = None

    def step(
        self,
        at: float,
        allocatable: Collection[str] | None,
        held: Collection[str] = (),
        reported: Collection[str] = (),
        *,
        error: KubeletError | None = None,
    ) -> Snapshot:
        """The snapshot by the answers at monotonic time `at`. `allocatable` None: not served."""
        pods = listed(*(pod(f"p-{one}", one) for one in sorted(held)), pod("idle"))
        offer = None if allocatable is None else offered(*sorted(allocatable)).SerializeToString()
        raw = Raw(
            *(pods.SerializeToString(), offer),
            api_version="v1",
            asked_allocatable=True,
            allocatable_error=error,
        )
        found = {one: AdvertisedDevice(healthy=False, reason="dust") for one in reported}
        reports = merge_reports([PluginReport("p", {R: AdvertisedResource(True, 1, found)}, 1.0)])
        self.update = self.pipeline.process(
            *(raw, at + self.offset),
            poll=Poll(at, at),
            view=EMPTY_VIEW,
            advertised=reports if found else NO_REPORTS,
        )
        assert self.update is not None
        return self.update.snapshot

    def anomalies(self) -> list[tuple[str, str, float | None]]:
        assert self.update is not None
        return [(one.kind, one.device, one.since) for one in self.update.anomalies]


def gone(snapshot: Snapshot) -> dict[str, float]:
    """Since when each device is no longer offered."""
    return {
        one.key.device: one.no_longer_offered_since
        for one in snapshot.devices
        if one.no_longer_offered_since is not None
    }


def test_a_free_device_that_fails_stays_until_it_is_offered_again() -> None:
    node = Node()
    node.step(1.0, "abcd", "a")
    counts = node.step(2.0, "abc", "a").resources()[R]
    assert (counts.known, counts.allocated, counts.free, counts.unavailable) == (4, 1, 2, 1)
    failed = node.step(30.0, "abc", "a")
    assert gone(failed) == {"d": 1002.0}
    assert [(d.key.device, d.allocatable, len(d.holders)) for d in failed.devices][3] == ("d", False, 0)
    assert gone(node.step(31.0, "abcd", "a")) == {}


def test_a_device_that_fails_while_held_counts_from_its_failure() -> None:
    node = Node()
    node.step(1.0, "ab", "b")
    assert gone(node.step(2.0, "a", "b")) == {}
    assert gone(node.step(50.0, "a")) == {"b": 1002.0}
    assert gone(node.step(51.0, "a", reported="b")) == {}, "its plugin says more"
    assert gone(node.step(52.0, "a")) == {"b": 1002.0}


def test_it_keeps_what_was_known_of_the_device_and_is_forgotten_in_time() -> None:
    devices = (Device(DeviceKey(R, "x"), "parent", (1,)),)
    memory = DeviceMemory(FORGET).after(Snapshot(devices), now=1000.0, at=1.0)
    memory = memory.after(Snapshot(), now=1005.0, at=6.0)
    assert memory.devices == {DeviceKey(R, "x"): RememberedDevice(1005.0, 6.0, "parent", (1,))}
    assert not memory.expired(105.9)
    node = Node()
    node.step(1.0, "ab")
    node.step(2.0, "a")
    assert gone(node.step(101.9, "a"))
    assert [d.key.device for d in node.step(102.0, "a").devices] == ["a"]
    unremembered = Node(forget_after=0.0)
    unremembered.step(1.0, "ab")
    assert len(unremembered.step(2.0, "a").devices) == 1


def test_nothing_follows_from_answers_that_do_not_come() -> None:
    """A kubelet without GetAllocatableResources, and one that fails to answer it."""
    older = Node()
    older.step(1.0, None, "ab")
    assert [d.key.device for d in older.step(2.0, None, "a").devices] == ["a"]
    failing = Node()
    failing.step(1.0, "ab")
    error = KubeletError("GetAllocatableResources", "INTERNAL", "boom")
    assert len(failing.step(2.0, None, error=error).devices) == 2
    assert gone(failing.step(3.0, None)) == {}
    assert gone(failing.step(4.0, "a")) == {"b": 1004.0}


def test_a_device_that_only_its_plugin_named_is_not_remembered() -> None:
    node = Node()
    node.step(1.0, "a", reported="b")
    assert [d.key.device for d in node.step(2.0, "a").devices] == ["a"]


def test_an_anomaly_begins_when_no_plugin_can_still_be_starting() -> None:
    node = Node(forget_after=1000.0)
    node.step(1.0, "abc")
    node.step(2.0, "")
    node.step(61.9, "")
    assert node.anomalies() == []
    node.step(62.0, "")
    assert node.anomalies() == [("no_longer_offered", "", 1002.0)], "one for the resource"
    node.step(63.0, "a")
    assert node.anomalies() == [("no_longer_offered", one, 1002.0) for one in "bc"]
    node.step(64.0, "abc")
    assert node.anomalies() == []
    node.step(64.1, "abcdefghijkl")
    node.step(64.2, "abc")
    node.step(124.2, "abc")
    assert node.anomalies() == [("no_longer_offered", "", 1064.2)], "many are one"
    node.step(124.3, "abcdefghijkl")
    node.step(125.0, "abc", "a")
    node.step(126.0, "", "a")
    node.step(200.0, "", "a")
    assert [kind for kind, _, _ in node.anomalies()] == ["plugin_gone"]


def test_the_memory_is_bounded_and_says_so() -> None:
    node = Node()
    for at in range(3):
        node.step(float(at), [f"{at}-{number}" for number in range(PER_RESOURCE // 2)])
    assert len(gone(node.step(3.0, ["a"]))) == PER_RESOURCE
    assert node.update is not None
    assert node.update.notes == (
        f"too many devices of {R} are no longer offered: the mapping leaves out the further ones",
    )
    assert len(gone(node.step(FORGET + 2.0, ["a"]))) < PER_RESOURCE
    many = [
        Device(DeviceKey(f"r/{name}", f"{number}")) for name in range(9) for number in range(PER_RESOURCE)
    ]
    memory = DeviceMemory(FORGET).after(Snapshot(tuple(many)), now=1.0, at=1.0)
    assert len(memory.after(Snapshot(), now=2.0, at=2.0).devices) == IN_ALL
    long = tuple(Device(DeviceKey(R, f"{number}".ljust(1 << 18))) for number in range(9))
    memory = DeviceMemory(FORGET).after(Snapshot(long), now=1.0, at=1.0)
    assert len(memory.after(Snapshot(), now=2.0, at=2.0).devices) == 4


def test_a_change_of_one_pod_stays_incremental_beside_remembered_devices() -> None:
    node = Node()
    names = [f"d{number}" for number in range(9)]
    node.step(1.0, [*names, "x"], names[:8])
    before = node.step(2.0, names, names[:8])
    with patch.object(SnapshotBuilder, "_built", side_effect=AssertionError("built anew")):
        after = node.step(3.0, names, names[:7])
    assert gone(after) == {"x": 1002.0}
    changed = after.changed_since(before)
    assert changed is not None
    assert [now for _, now in changed] == [device("d7", resource=R)]


def test_a_list_that_is_not_believed_leaves_no_trace() -> None:
    node = Node()
    node.step(1.0, "ab", "a")
    before = node.pipeline._memory
    with pytest.raises(KubeletError):
        node.pipeline.process(
            Raw(b"\xff", offered("a").SerializeToString(), api_version="v1", asked_allocatable=True),
            1002.0,
            poll=Poll(2.0, 2.0),
            view=EMPTY_VIEW,
        )
    assert node.pipeline._memory is before


IDS = "abcd"
sets = st.frozensets(st.sampled_from(IDS))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.none() | sets, sets, sets, st.sampled_from([1.0, 30.0])), max_size=12))
def test_every_sequence_of_answers_gives_what_was_once_offered(
    steps: list[tuple[frozenset[str] | None, frozenset[str], frozenset[str], float]],
) -> None:
    node, at = Node(forget_after=50.0), 0.0
    kept: dict[str, tuple[float, float]] = {}
    stopped: dict[str, float] = {}
    allocatable: frozenset[str] = frozenset()
    for offer, held, reported, passed in steps:
        at += passed
        kept = {one: found for one, found in kept.items() if at < found[1] + 50.0}
        snapshot = node.step(at, offer, held, reported)
        named = held | reported | (offer or frozenset())
        if offer is None:
            assert {d.key.device for d in snapshot.devices} == named
            continue
        kept = {one: found for one, found in kept.items() if one not in named}
        present = {
            one: stopped.get(one, at)
            for one in named - offer
            if one in held or one in stopped or one in allocatable
        }
        for one in (allocatable | stopped.keys()) - named - kept.keys():
            kept[one] = (stopped.get(one, at), at)
        stopped, allocatable = present | {one: since for one, (since, _) in kept.items()}, offer
        assert gone(snapshot) == {one: since + node.offset for one, (since, _) in kept.items()}
        assert {d.key.device for d in snapshot.devices} == named | kept.keys()
        assert all(not d.allocatable and not d.holders for d in snapshot.devices if d.key.device in kept)
        last = node.pipeline._last
        assert last is not None
        anew = SnapshotBuilder().build(
            *(last.listed, offered(*sorted(offer))),
            advertised=last.advertised.devices,
            remembered=node.pipeline._memory.devices,
        )
        assert anew == snapshot


def test_shares_and_entries_of_several_resources_are_apart() -> None:
    pipeline = SnapshotPipeline(keep_allocatable=60.0)

    def step(at: float, *entries: tuple[str, str]) -> Snapshot:
        offer = offered(*(entry(one, resource=resource) for resource, one in entries))
        raw = Raw(
            *(listed(pod("p")).SerializeToString(), offer.SerializeToString()),
            api_version="v1",
            asked_allocatable=True,
        )
        update = pipeline.process(raw, at, poll=Poll(at, at), view=EMPTY_VIEW)
        assert update is not None
        return update.snapshot

    step(1.0, ("r/a", "x"), ("r/b", "x"))
    found = step(2.0, ("r/b", "x"))
    assert [(d.key, d.no_longer_offered_since) for d in found.devices] == [
        (("r/a", "x"), 2.0),
        (("r/b", "x"), None),
    ]
