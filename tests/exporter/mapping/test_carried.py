"""exporter.mapping.carried: what missing pods keep, and that List is believed in what it says."""

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.anomalies import find
from exporter.mapping.carried import carry_over
from exporter.mapping.holdings import Holding, holdings
from exporter.mapping.model import (
    ClaimHolding,
    Container,
    Device,
    DeviceKey,
    Doubt,
    Holder,
    PinnedMemory,
    PodKey,
    Snapshot,
)
from exporter.mapping.snapshot import build
from harness import scene
from harness.answers import allocatables, listings
from kubelet.pb.podresources.v1 import api_pb2

QUICK = settings(max_examples=150, deadline=None, derandomize=True)
DOUBT = Doubt("the kubelet may not list all pods yet", 1.0, 11.0)
NODES = {number: number % 2 for number in range(8)}

P, Q = Holder("n", "p", "c", "uid-1"), Holder("n", "q", "c")
SIDE = P._replace(container="side")


def _carried(listed: Snapshot, old: Snapshot, *pods: Holder) -> Snapshot:
    return carry_over(listed, old, {pod[:2]: DOUBT for pod in pods}, NODES)


def _owners(snapshot: Snapshot) -> dict[str, tuple[Holder, ...]]:
    return {device.key.device: device.holders for device in snapshot.devices}


def test_missing_pod_keeps_what_nobody_is_listed_with() -> None:
    old = scene.snapshot(
        scene.device("a", P, numa=[0], parent="x"), scene.device("b", P, numa=[1]), scene.device("c", SIDE)
    )
    listed = scene.snapshot(scene.device("b", Q, numa=[1]), scene.device("c", numa=[0], ok=False))
    found = _carried(listed, old, P)
    assert _owners(found) == {"a": (P,), "b": (Q,), "c": (SIDE,)}
    assert found.containers == (
        Container(P, {scene.GPU: 1}, numa_nodes=(0,)),
        Container(SIDE, {scene.GPU: 1}, numa_nodes=(0,)),
        Container(Q, {scene.GPU: 1}, numa_nodes=(1,)),
    )
    # Health is what the kubelet says; it says nothing of `a`, so that is not allocatable.
    assert [device.allocatable for device in found.devices] == [False, True, False]
    assert (found.devices[0].parent, found.devices[0].numa_nodes) == ("x", (0,))
    assert found.unconfirmed == {("n", "p"): DOUBT}
    assert (found.doubt(P), found.doubt(Q)) == (DOUBT, None)
    assert [(device.key.device, who) for device, who in found.unconfirmed_owners()] == [("a", P), ("c", SIDE)]


def test_pod_that_keeps_nothing_is_not_unconfirmed() -> None:
    old, listed = scene.snapshot(scene.device("a", P)), scene.snapshot(scene.device("a", Q))
    assert _carried(listed, old, P) is listed


def test_carried_device_is_the_same_object_while_nothing_changes() -> None:
    old, listed = scene.snapshot(scene.device("a", P)), scene.snapshot(scene.device("a"), scene.device("b"))
    first = _carried(listed, old, P)
    again = _carried(listed, first, P)
    assert again == first
    assert again.changed_since(first) == []
    assert first.devices[0] is old.devices[0]


def _claim(share: str, *through: tuple[Holder, str]) -> list[ClaimHolding]:
    return [ClaimHolding(holder, "n", claim, share) for holder, claim in through]


def _claiming(claims: list[ClaimHolding]) -> Snapshot:
    return scene.snapshot(scene.claimed("d", *claims))


def _through(snapshot: Snapshot) -> list[ClaimHolding]:
    claimed = snapshot.devices[0].claimed
    return [] if claimed is None else list(claimed.through)


def test_pods_of_the_same_claim_contradict_nothing_and_another_claim_does() -> None:
    old = _claiming(_claim("", (P, "shared"), (Q, "shared"), (SIDE, "admin")))
    kept = _carried(_claiming(_claim("", (Q, "shared"))), old, P)
    assert _through(kept) == _through(old)
    assert kept.devices[0].holders == (P, SIDE, Q)
    other = _claiming(_claim("", (Q, "other")))
    assert _carried(other, old, P) is other
    # A claim that had the device before, as one with admin access does.
    beside = _claiming(_claim("", (Q, "admin")))
    assert {one.holder for one in _through(_carried(beside, old, P))} == {P, Q, SIDE}


def test_shares_of_a_claimed_device_contradict_nothing() -> None:
    old = _claiming(_claim("s1", (P, "one")))
    found = _carried(_claiming(_claim("s2", (Q, "two"))), old, P)
    assert [one.share_id for one in _through(found)] == ["s1", "s2"]
    whole = _claiming(_claim("", (Q, "two")))
    assert _carried(whole, old, P) is whole


def test_listed_cpus_are_taken_away_and_pinned_memory_is_kept() -> None:
    memory = (PinnedMemory("memory", (1,), 4096),)
    old = Snapshot(containers=(Container(P, {}, (2, 3, 4), memory, (0, 1)),))
    listed = Snapshot(containers=(Container(Q, {}, (3,), (), (1,)),))
    found = _carried(listed, old, P)
    assert found.containers[0] == Container(P, {}, (2, 4), memory, (0, 1))
    assert found.unconfirmed.keys() == {("n", "p")}


def test_whole_device_of_an_unconfirmed_pod_and_a_listed_part_are_no_anomaly() -> None:
    old = scene.snapshot(scene.device("gpu", P))
    listed = scene.snapshot(scene.device("gpu"), scene.device("part", Q, parent="gpu"))
    both = scene.snapshot(scene.device("gpu", P), scene.device("part", Q, parent="gpu"))
    assert [one.kind for one in find(both)] == ["double_held"]
    found = _carried(listed, old, P)
    assert _owners(found) == _owners(both)
    assert find(found) == ()


def _by_key(snapshot: Snapshot) -> dict[DeviceKey, Device]:
    return {device.key: device for device in snapshot.devices}


def _claims(device: Device, holder: Holder | None = None) -> set[tuple[str, str]]:
    through = () if device.claimed is None else device.claimed.through
    return {(one.claim_namespace, one.claim) for one in through if holder in {None, one.holder}}


def _pods(snapshot: Snapshot) -> set[PodKey]:
    return {one.holder[:2] for one in snapshot.containers}


def _cpus(containers: Iterable[Container]) -> list[int]:
    return [cpu for one in containers for cpu in one.cpu_ids]


_messages = st.tuples(listings(), st.none() | allocatables())


@QUICK
@given(_messages, _messages, st.data())
def test_list_is_believed_and_missing_pods_alone_keep_what_is_left(
    before: tuple[api_pb2.ListPodResourcesResponse, api_pb2.AllocatableResourcesResponse | None],
    after: tuple[api_pb2.ListPodResourcesResponse, api_pb2.AllocatableResourcesResponse | None],
    data: st.DataObject,
) -> None:
    old, listed = build(*before, cpu_numa=NODES), build(*after, cpu_numa=NODES)
    named = {(pod.namespace, pod.name) for pod in after[0].pod_resources}
    missing = sorted(_pods(old) - named)
    doubted = data.draw(st.sets(st.sampled_from(missing))) if missing else set[PodKey]()
    found = carry_over(listed, old, dict.fromkeys(doubted, DOUBT), NODES)

    said, kept = holdings(listed), holdings(found) - holdings(listed)
    assert said <= holdings(found)
    # Only of missing pods, only what they held, and no device that is listed.
    assert kept <= holdings(old)
    assert {one.holder[:2] for one in kept} <= doubted
    was, held = _by_key(old), {key: one for key, one in _by_key(listed).items() if one.holders}
    assert not {key for key in held if not held[key].claimed} & {one.key for one in kept}
    # All of it: what is left out has another holder by List, a claimed device through another claim.
    for lost in _by_doubted(old, doubted) - kept:
        listed_claims, own = _claims(held[lost.key]), _claims(was[lost.key], lost.holder)
        assert not own or listed_claims - own
    # CPUs of one container alone, and the rest as it was.
    carried = [one for one in found.containers if one.holder[:2] in doubted]
    assert not set(_cpus(carried)) & set(_cpus(listed.containers))
    assert [one for one in found.containers if one not in carried] == list(listed.containers)
    assert set(found.unconfirmed) == {one.holder[:2] for one in carried}
    assert {one.holder[:2] for one in kept} <= set(found.unconfirmed)
    # The snapshot is as one that is built: sorted, counted, and its devices have the kubelet's health.
    for one in found.containers:
        mine = [device.key.resource for device in found.devices if one.holder in device.holders]
        assert one.devices == {resource: mine.count(resource) for resource in set(mine)}
    assert list(found.devices) == sorted(found.devices, key=lambda device: device.key)
    assert list(found.containers) == sorted(found.containers, key=lambda one: one.holder)
    health = {device.key: device.allocatable for device in listed.devices}
    assert all(
        device.allocatable is health.get(device.key, not listed.complete or device.claimed is not None)
        for device in found.devices
    )
    assert carry_over(listed, found, dict.fromkeys(doubted, DOUBT), NODES) == found


def _by_doubted(snapshot: Snapshot, doubted: set[PodKey]) -> set[Holding]:
    return {one for one in holdings(snapshot) if one.holder[:2] in doubted}
