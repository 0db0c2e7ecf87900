"""exporter.views.explain: the device that an id means, and the sentences about it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.mapping.anomalies import find, no_longer_offered
from exporter.mapping.device_ids import BUILT_IN_RULES, DeviceKind, IdReader, read_id, rule
from exporter.mapping.dra import ChosenDevice, PodDevices, PublishedDevice, PublishedName, SourceStatus, Taint
from exporter.mapping.holdings import HeldSince
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import (
    NO_REPORTS,
    AdvertisedDevice,
    AdvertisedResource,
    Anomaly,
    ClaimHolding,
    DeviceKey,
    Doubt,
    Holder,
    PluginReport,
    PluginReports,
    Snapshot,
    merge_reports,
)
from exporter.mapping.snapshot import build
from exporter.mapping.state import Failure, Freshness, State
from exporter.views.explain import (
    AmbiguousDevice,
    DeviceFacts,
    NotKnownYet,
    Subject,
    UnknownDevice,
    explain,
    sentences,
)
from exporter.views.verdict import device_verdict
from harness import scene
from harness.answers import allocatables, listings
from harness.hostile import LONG
from harness.scene import GPU, device
from kubelet.pb.podresources.v1 import api_pb2
from runtime.text import utc

SHARED, NIC = f"{GPU}.shared", "acme.example/nic"
MIG = "MIG-3f3bbbd2-9f0c-5c9b-9f5f-4d2f5d0f9a11"
A, B = Holder("ml", "llama-0", "trainer", "uid-1"), Holder("web", "vllm-0", "server")


SNAPSHOT = scene.snapshot(
    device("GPU-0", A, numa=(0,)),
    device("GPU-1", numa=(1,)),
    device("GPU-2", B, ok=False),
    device("GPU-7::0", A, resource=SHARED, parent="GPU-7"),
    device("GPU-7::1", B, resource=SHARED, parent="GPU-7"),
    device("GPU-7::2", resource=SHARED, parent="GPU-7"),
    device(f"{MIG}::1", resource=SHARED, parent=MIG),
    device("nvidia3/gi2", resource="nvidia.com/mig-1g", parent="nvidia3"),
    device("nvidia3/gi2/vgpu4", resource="nvidia.com/mig-1g", parent="nvidia3"),
    device("0000:3b:00.0", resource=NIC),
    device("0000:3b:00.0", B, resource="other.example/nic"),
    device("odd\x1bid", resource=NIC),
    scene.claimed("gpu-0", ClaimHolding(A, "ml", "shared"), driver="dra.example", cdi=["dra.example/gpu=7"]),
)
STATE = scene.state(
    SNAPSHOT,
    at=1000.0,
    since=lambda holding: HeldSince(900.0, exact=holding.holder is A),
    anomalies=tuple(replace(anomaly, since=950.0) for anomaly in find(SNAPSHOT)),
)


def _found(device: str, resource: str = "", state: State = STATE) -> DeviceFacts:
    return explain(state, device, resource, reader=read_id)


def _words(device: str, resource: str = "", state: State = STATE, now: float = 1002.0) -> str:
    return " ".join(sentences(_found(device, resource, state), state, now=now, stale_after=60.0))


CLAIMED = DeviceKey("dra.example", "pool-a/gpu-0")


@pytest.mark.parametrize(
    ("device", "resource", "key", "subject"),
    [
        ("GPU-0", "", DeviceKey(GPU, "GPU-0"), Subject.DEVICE),
        ("GPU-0", GPU, DeviceKey(GPU, "GPU-0"), Subject.DEVICE),
        ("GPU-0", "gpu", DeviceKey(GPU, "GPU-0"), Subject.DEVICE),
        ("0000:3b:00.0", NIC, DeviceKey(NIC, "0000:3b:00.0"), Subject.DEVICE),
        ("odd\x1bid", "", DeviceKey(NIC, "odd\x1bid"), Subject.DEVICE),
        # As it is shown.
        ("odd\\x1bid", "", DeviceKey(NIC, "odd\x1bid"), Subject.DEVICE),
        # What is behind shares; a claimed device; a part of one id alone.
        ("GPU-7", "", DeviceKey("", "GPU-7"), Subject.PARENT),
        ("nvidia3", "mig-1g", DeviceKey("", "nvidia3"), Subject.PARENT),
        ("gpu-0", "", CLAIMED, Subject.DEVICE),
        ("pool-a/gpu-0", "", CLAIMED, Subject.DEVICE),
        ("dra.example/gpu=7", "", CLAIMED, Subject.DEVICE),
        ("gi2/vgpu", "", DeviceKey("nvidia.com/mig-1g", "nvidia3/gi2/vgpu4"), Subject.DEVICE),
        ("gpu-7::2", "", DeviceKey(SHARED, "GPU-7::2"), Subject.DEVICE),
    ],
)
def test_an_id_means_a_device_a_parent_or_a_claimed_device(
    device: str, resource: str, key: DeviceKey, subject: Subject
) -> None:
    found = _found(device, resource)
    assert (found.key, found.subject) == (key, subject)


@pytest.mark.parametrize(
    ("device", "resource", "devices"),
    [
        ("0000:3b:00.0", "", 2),
        ("0000:3b:00.0", "nic", 2),
        ("gpu-7::", "", 3),
        ("gi2", "", 2),
    ],
)
def test_an_ambiguous_id_names_its_devices(device: str, resource: str, devices: int) -> None:
    with pytest.raises(AmbiguousDevice, match="say which: ") as caught:
        _found(device, resource)
    assert len(caught.value.devices) == devices


@pytest.mark.parametrize(
    ("device", "resource", "message", "nearest"),
    [
        ("GPU-9", "", "no device 'GPU-9' is known on this node; the most similar ids are GPU-0, ", "GPU-0"),
        ("GPU-7::9", "", "; its id names the parent GPU-7, which is known; ", "GPU-7::0"),
        ("GPU-8::9", SHARED, "; its id names the parent GPU-8, which is not known; ", "GPU-7::0"),
        ("0000:3b:01.0", NIC, "; the most similar ids are 0000:3b:00.0", "0000:3b:00.0"),
        ("GPU-0", NIC, f"no device 'GPU-0' of {NIC} is known on this node; a device that was neither", None),
        ("zzz", "", "(--plugin.url)", None),
        ("GPU-0", "tpu", f"no resource 'tpu' on this node: there are {NIC}, ", None),
    ],
)
def test_an_unknown_id_names_the_most_similar_ones(
    device: str, resource: str, message: str, nearest: str | None
) -> None:
    with pytest.raises(UnknownDevice) as caught:
        _found(device, resource)
    assert message in str(caught.value)
    assert nearest is None or nearest in {key.device for key in caught.value.nearest}
    assert nearest is not None or not caught.value.nearest


def test_an_empty_node_has_no_device() -> None:
    with pytest.raises(UnknownDevice, match="the node has no resources"):
        _found("x", "r", State(taken_at=1.0))
    with pytest.raises(UnknownDevice, match="no device 'x' is known"):
        _found("x", "", State(taken_at=1.0))


SENTENCES = {
    ("GPU-0", ""): (
        f"GPU-0 of {GPU} is a whole device: no id rule matches.",
        "ml/llama-0 (container trainer, uid uid-1) holds it since 1970-01-01 00:15:00 UTC, as the",
        "It is allocatable: its plugin is registered with the kubelet and reports it healthy.",
        "It is on NUMA node 0, reported by the kubelet.",
        "No --plugin.url is set: health reasons and attributes of devices are unknown.",
        "The mapping is of 1970-01-01 00:16:40 UTC, 2 s ago, and fresh.",
    ),
    ("GPU-1", ""): ("Free: no pod holds it.",),
    ("GPU-2", ""): (
        "web/vllm-0 (container server) holds it since before 1970-01-01 00:15:00 UTC",
        "It is not allocatable: its plugin reports it unhealthy, or is gone.",
        "Its NUMA node is unknown.",
        "Anomaly since 1970-01-01 00:15:50 UTC: unhealthy_held (web/vllm-0 (container server)): it is",
    ),
    ("GPU-7", ""): (
        "GPU-7 is a physical device. The kubelet lists 3 devices that are its parts. GPU-7 has",
        "GPU-7 has the parts GPU-7::0, GPU-7::1, GPU-7::2; 2 are held, by ml/llama-0, web/vllm-0.",
    ),
    ("GPU-7::0", ""): (
        f"GPU-7::0 of {SHARED} is share 0 of GPU-7 (id rule replica).",
        "GPU-7 also has GPU-7::1, GPU-7::2; 1 is held, by web/vllm-0.",
    ),
    ("nvidia3/gi2", "mig-1g"): ("is slice gi2 of nvidia3 (id rule gke-mig).",),
    ("nvidia3/gi2/vgpu4", ""): ("is share 4 of slice gi2 of nvidia3 (id rule gke-mig-share).",),
    (f"{MIG}::1", ""): (
        f"is share 1 of {MIG}, which is itself a slice, of a device that its id does not name (id",
    ),
    ("0000:3b:00.0", NIC): ("other.example/nic also has a device of this id.",),
    ("gpu-0", ""): (
        "pool-a/gpu-0 of dra.example is the device gpu-0 in the pool pool-a of the DRA driver dra.example: ",
        "ml/llama-0 (container trainer, uid uid-1) holds it through the claim ml/shared since 1970-01-01 ",
        "Health: not reported (no pod's status reports it, and no taint).",
        "No ResourceSlice names it: its model, NUMA node, capacity and taints are unknown.",
    ),
}


@pytest.mark.parametrize(("device", "resource"), SENTENCES)
def test_facts_are_sentences(device: str, resource: str) -> None:
    found = _words(device, resource)
    for words in SENTENCES[device, resource]:
        assert words in found


def _claimed(state: State) -> str:
    return " ".join(sentences(_found("gpu-0", "", state), state, now=1002.0, stale_after=60.0))


def test_a_claimed_device_has_what_its_slice_and_its_claims_say() -> None:
    admin = Holder("ops", "watcher", "main")
    published = PublishedDevice(
        PublishedName("gpu.example.com", "pool-a", "gpu-0"),
        uuid="GPU-5e1f",
        model="H100",
        capacity=(("memory", "80Gi"),),
        taints=(Taint("example.com/xid", "79", "NoExecute", 900.0),),
        shareable=True,
    )
    one = scene.claimed(
        *("gpu-0", ClaimHolding(A, "ml", "mine", "share-1", "r", GPU, admin=False)),
        ClaimHolding(admin, "ops", "watch", admin=True),
        published=published,
        allocatable=False,
        numa_nodes=(1,),
    )
    shown = scene.snapshot(one, published=["gpu.example.com"])
    found = _claimed(scene.state(shown, at=1000.0, anomalies=()))
    for words in (
        f"holds it through the claim ml/mine (share share-1), requested as {GPU} since ",
        "It is also used for administration by ops/watcher (container main) through the claim ops/w",
        "Health: tainted since 1970-01-01 00:15:00 UTC: taint example.com/xid=79:NoExecute (its Resource",
        "It is on NUMA node 1, published by its driver.",
        "Its model is H100. Its UUID is GPU-5e1f. Its capacity is memory 80Gi. Several claims may hold it ",
        "It has the taint example.com/xid=79:NoExecute since 1970-01-01 00:15:00 UTC.",
    ):
        assert words in found, words
    assert "plugin" not in found


@pytest.mark.parametrize(("admin", "said"), [(None, True), (False, False)])
def test_several_claims_that_cannot_be_read_are_perhaps_for_administration(admin: bool, said: bool) -> None:
    claims = [ClaimHolding(holder, holder.namespace, "c", admin=admin) for holder in (A, B)]
    found = _claimed(scene.state(scene.snapshot(scene.claimed("gpu-0", *claims)), at=1000.0))
    assert ("Several claims hold it, perhaps for administration" in found) is said


def test_without_slices_the_missing_right_is_named() -> None:
    sources = (SourceStatus("slices", up=False, problem="no right to list resourceslices"),)
    one = scene.claimed("gpu-0", ClaimHolding(A, "ml", "mine"))
    found = _claimed(scene.state(scene.snapshot(one), at=1000.0, sources=sources))
    assert "No ResourceSlice names it" in found
    assert "no right to list resourceslices." in found


def test_an_alternative_names_the_partition_that_counts() -> None:
    half = scene.claimed("half", parent="pool-a/gpu-0", alternative=True)
    whole, other = scene.claimed("gpu-0"), scene.claimed("half", driver="other", parent="pool-a/gpu-0")
    state = scene.state(scene.snapshot(half, whole, other, published=["gpu.example.com"]), at=1000.0)
    found = _found("pool-a/half", "gpu.example.com", state)
    assert found.why_nobody == "no pod holds it; another partition of pool-a/gpu-0 is counted in its place"
    # A driver's names say nothing about another driver's devices.
    facts = _found("pool-a/gpu-0", "", state)
    assert [part.key.resource for part in facts.parts] == ["gpu.example.com"]


def test_partitions_of_a_physical_device_are_not_added_up() -> None:
    parts = [scene.claimed(f"half-{n}", parent="pool-a/set-0", alternative=n == 2) for n in range(3)]
    state = scene.state(scene.snapshot(*parts, published=["gpu.example.com"]), at=1000.0)
    facts = _found("pool-a/set-0", "", state)
    said = sentences(facts, state, now=1.0, stale_after=60.0)[0]
    assert said == "pool-a/set-0 is a physical device. ResourceSlices name 3 partitions of it."
    words = "Health not reported; divided into 2 devices, none held, and 1 alternative."
    assert device_verdict(facts, Freshness.FRESH).sentence == words


def test_a_name_of_several_claimed_devices_is_ambiguous() -> None:
    both = [scene.claimed("gpu-0", pool=pool, cdi=["x/y=claim"]) for pool in ("a", "b")]
    state = scene.state(scene.snapshot(*both), at=1000.0)
    for name in ("gpu-0", "x/y=claim"):
        with pytest.raises(AmbiguousDevice, match="name of several devices"):
            _found(name, "", state)
    assert _found("b/gpu-0", "", state).key.device == "b/gpu-0"


def _advertised(report: AdvertisedDevice, **changes: Any) -> PluginReports:
    return scene.reported({"GPU-1": report, "GPU-2": report}, source="unix:/p", **changes)


ILL, WELL = AdvertisedDevice(False, "XID 79", 940.0), AdvertisedDevice(healthy=True)
NOT_SO = "It is not allocatable"


@pytest.mark.parametrize(
    ("device", "advertised", "sentences"),
    [
        (
            "GPU-2",
            _advertised(ILL),
            (
                f"{NOT_SO}: its plugin reports it unhealthy: XID 79.",
                "Its plugin (unix:/p) reports it Unhealthy since 1970-01-01 00:15:40 UTC.",
            ),
        ),
        (
            "GPU-2",
            _advertised(WELL, problem="connection refused", silent_since=995.0),
            (
                f"{NOT_SO}, and its plugin does not answer: connection refused.",
                "not answer since 1970-01-01 00:16:35 UTC: connection refused; its last report was Healthy.",
            ),
        ),
        (
            "GPU-2",
            _advertised(WELL, streams=0),
            (f"{NOT_SO}: the kubelet does not watch its plugin.",),
        ),
        (
            "GPU-1",
            _advertised(replace(WELL, last_allocated=700.0)),
            ("Free: no pod holds it; its plugin last allocated it at 1970-01-01 00:11:40 UTC.",),
        ),
        ("GPU-0", _advertised(WELL), ("Its plugin (unix:/p) does not report it.",)),
        (
            "GPU-0",
            scene.reported({}, source="unix:/p", resource="x/y"),
            ("None of the queried plugins (unix:/p) reports its resource.",),
        ),
    ],
)
def test_a_report_of_a_plugin_names_its_source(
    device: str, advertised: PluginReports, sentences: tuple[str, ...]
) -> None:
    found = _words(device, state=replace(STATE, advertised=advertised))
    for words in sentences:
        assert words in found


def test_unconfirmed_holder_is_named_with_the_reason_and_the_end_of_the_doubt() -> None:
    doubt = Doubt("the kubelet may not list all pods yet", 990.0, 1000.0)
    missing = replace(SNAPSHOT, unconfirmed={("ml", "llama-0"): doubt})
    state = replace(STATE, snapshot=missing)
    assert (
        ", not confirmed since the kubelet restarted at 1970-01-01 00:16:30 UTC: List leaves the pod out, "
        "and the kubelet may not list all pods yet. The holder is kept until List names the pod or another "
        "holder, at the latest until 1970-01-01 00:16:40 UTC."
    ) in _words("GPU-0", state=state)
    assert "not confirmed" not in _words("GPU-2", state=state)


def test_physical_device_that_another_scheduler_chose_is_named_or_said_to_be_unprovable() -> None:
    holder = A
    pod = PodIdentity(
        holder.namespace, holder.pod, "uid", devices=PodDevices(unreadable="volcano.sh/gpu-index")
    )
    state = replace(STATE, pods={pod.key: pod})
    assert (
        f"Which physical device {holder.namespace}/{holder.pod} uses is not provable: the pod's annotation "
        "volcano.sh/gpu-index cannot be read."
    ) in _words("GPU-0", state=state)
    chosen = replace(pod, devices=PodDevices(chosen=(ChosenDevice("HAMi", holder.container, "GPU-1"),)))
    state = replace(STATE, pods={pod.key: chosen})
    assert "HAMi chose GPU-1 for it, whatever the id says (pod annotation)." in _words("GPU-0", state=state)


@pytest.mark.parametrize(
    ("state", "device", "why"),
    [
        (STATE, "GPU-0", ""),
        (STATE, "GPU-7", ""),
        (STATE, "GPU-1", "free: no pod holds it"),
        (
            replace(STATE, failure=Failure("List", "UNSETTLED", "it does not list all pods yet", 999.0)),
            "GPU-1",
            "the last good List names no holder; List has failed since, so a pod may hold it now",
        ),
        (
            replace(STATE, snapshot=replace(SNAPSHOT, complete=False)),
            "GPU-1",
            "List names no holder",
        ),
        (
            replace(STATE, anomalies=(Anomaly("unattributed", GPU, "GPU-1", devices=("GPU-1",)),)),
            "GPU-1",
            "its plugin allocated it, and List names no holder: an init container has it",
        ),
        (
            State(snapshot=Snapshot((device("GPU-1", ok=False),)), taken_at=1.0),
            "GPU-1",
            "no pod holds it, and the kubelet does not allocate it",
        ),
    ],
)
def test_why_no_pod_is_the_holder(state: State, device: str, why: str) -> None:
    found = explain(state, device, reader=read_id).why_nobody
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_the_last_sentence_is_the_freshness() -> None:
    failing = replace(STATE, failure=Failure("List", "UNSETTLED", "it does not list all pods yet", 999.0))
    words = "2 s ago; it is the last good answer: List has failed since 1970-01-01 00:16:39 UTC: UNSETTLED"
    assert words in _words("GPU-0", state=failing)
    assert "100 s ago, and stale." in _words("GPU-0", now=1100.0)


def test_a_parent_and_a_node_of_the_plugin_alone() -> None:
    report = {DeviceKey(GPU, "share-1"): AdvertisedDevice(healthy=True, numa_nodes=(1,), parent="card0")}
    snapshot = build(
        api_pb2.ListPodResourcesResponse(), api_pb2.AllocatableResourcesResponse(), advertised=report
    )
    state = State(snapshot=snapshot, taken_at=1000.0)
    words = _words("share-1", state=state)
    assert "is a share of card0, by its plugin; its id does not name the parent." in words
    assert "It is on NUMA node 1, reported by its plugin." in words


def test_a_users_rule_is_named() -> None:
    mine = rule("acme", r"0000:(?P<parent>\w+):00\.(?P<replica>\d)", resource=NIC, kind=DeviceKind.REPLICA)
    found = explain(STATE, "0000:3b:00.0", NIC, reader=IdReader([mine, *BUILT_IN_RULES]))
    assert (found.reading.rule, found.reading.replica) == ("acme", "0")


def test_a_very_long_id_leaves_the_sentences_readable() -> None:
    holder = Holder("ml", "llama-0", "trainer")
    other = holder._replace(pod="llama-1")
    snapshot = scene.snapshot(
        device(LONG, holder),
        device(f"{LONG}::0", other, parent=LONG),
        device(f"{LONG}::1", parent=LONG),
    )
    anomalies = find(snapshot)
    assert anomalies
    assert all(len(anomaly.evidence) < 400 for anomaly in anomalies)
    state = scene.state(snapshot, at=1000.0, anomalies=anomalies)
    for name in (LONG, f"{LONG}::0"):
        found = _found(name, state=state)
        assert (found.key.device, found.subject) == (name, Subject.DEVICE)
        words = sentences(found, state, now=1002.0, stale_after=60.0)
        assert max(map(len, words)) < 800, words
        assert words[0].startswith(f"{name[:80]}")
        assert f"{name[-40:]} of {GPU}" in words[0]
    with pytest.raises(UnknownDevice) as unknown:
        _found(f"{LONG}::2", state=state)
    assert len(str(unknown.value)) < 900


@settings(max_examples=30, deadline=None, derandomize=True)
@given(listings(), st.none() | allocatables(), st.booleans())
def test_every_device_of_any_answer_can_be_explained(
    listed: api_pb2.ListPodResourcesResponse,
    offered: api_pb2.AllocatableResourcesResponse | None,
    report: bool,
) -> None:
    snapshot = build(listed, offered)
    devices = {d.key.device: AdvertisedDevice(healthy=False, reason="\x1b") for d in snapshot.devices}
    resources = {
        r: AdvertisedResource(registered=True, streams=0, devices=devices) for r in snapshot.resources()
    }
    advertised = merge_reports([PluginReport("p", resources, 1.0)]) if report else NO_REPORTS
    state = State(
        snapshot=snapshot, taken_at=1.0, advertised=advertised, anomalies=find(snapshot, advertised)
    )
    for one in snapshot.devices:
        try:
            found = explain(state, one.key.device, one.key.resource, reader=read_id)
        except AmbiguousDevice:
            continue  # another device's id is spelled as this one is shown
        assert found.key == one.key or found.key.device == one.key.device
        assert all(sentences(found, state, now=2.0, stale_after=60.0))
        assert bool(one.holders) == (found.why_nobody == "")


def test_before_the_first_answer_nothing_is_known_to_be_absent() -> None:
    for name, resource in (("GPU-0", ""), ("GPU-0", GPU), ("x", "no.such/resource")):
        with pytest.raises(NotKnownYet, match="the kubelet has not answered yet"):
            _found(name, resource, State())


def test_a_device_that_is_no_longer_offered() -> None:
    gone = replace(device("GPU-1", ok=False), no_longer_offered_since=1792621200.0)
    others = tuple(replace(gone, key=DeviceKey(GPU, f"GPU-{number}")) for number in range(2, 12))
    snapshot = scene.snapshot(device("GPU-0"), gone, *others)
    anomalies = find(snapshot, further=no_longer_offered((gone, *others), snapshot))
    state = scene.state(snapshot, at=scene.START, anomalies=anomalies)
    words = sentences(explain(state, "GPU-1", reader=read_id), state, now=scene.START, stale_after=60.0)
    assert (
        f"The kubelet has not offered this device since {utc(1792621200.0)}: its plugin is gone, no longer "
        "lists it, or reports it unhealthy."
    ) in words
    (said,) = (one for one in words if one.startswith("Anomaly"))
    assert "no_longer_offered: the kubelet no longer offers 11 of its 12 devices; its plugin is gone" in said
    assert explain(state, "GPU-0", reader=read_id).anomalies == (), "not of a device that is offered"
