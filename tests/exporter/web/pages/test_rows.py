"""The status page's rows, resources and findings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.core.advertised import AdvertisedDevice, AdvertisedResource, Telling, merged
from exporter.core.anomalies import Anomaly
from exporter.core.model import (
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Container,
    Device,
    DeviceKey,
    Holder,
    PinnedMemory,
    PodKey,
    ResourceCounts,
    Snapshot,
)
from exporter.core.state import State
from exporter.web.pages import rows
from exporter.web.pages.containers import container_row
from exporter.web.pages.findings import findings
from exporter.web.pages.resources import bars
from exporter.web.pages.sorting import Entry
from exporter.web.pages.whens import filled

HOLDER = Holder("ml", "pod-1", "main")


def device(name: str, parent: str = "", *, healthy: bool = True, holders: int = 0) -> Device:
    held = tuple(Holder("ns", f"pod-{i}", "c") for i in range(holders))
    return Device(DeviceKey("r.example/x", name), parent, (), healthy, held)


def row(found: Device | ClaimDevice, *, complete: bool = True, pod: PodKey | None = None) -> rows.Row:
    devices = (found,) if isinstance(found, Device) else ()
    state = State(snapshot=Snapshot(devices, complete=complete), taken_at=0)
    return rows.row(Entry(found, pod), rows.scene(state, 100.0))


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (device("d"), "free", "free"),
        (device("d", holders=1), "held", "held"),
        (device("d", holders=3), "held", "held by 3"),
        (device("d", healthy=False, holders=1), "unhealthy", "unhealthy, held"),
        (device("d", healthy=False), "unhealthy", "unhealthy"),
    ],
)
def test_a_device_s_state_is_a_sign_and_words(found: Device, state: str, words: str) -> None:
    assert (row(found).state, row(found).words) == (state, words)


def test_without_allocatable_nothing_is_called_unhealthy() -> None:
    assert row(device("d", healthy=False, holders=1), complete=False).state == "held"


def test_what_a_share_has_in_common_with_its_device_is_set_apart() -> None:
    share = row(device("GPU-1::3", "GPU-1"))
    assert (share.stem, share.tail, share.parent) == ("GPU-1", "::3", None)
    slice_of = row(device("MIG-GPU-1/7/0", "GPU-1"))
    assert (slice_of.stem, slice_of.tail) == ("", "MIG-GPU-1/7/0")
    assert slice_of.parent is not None
    assert slice_of.parent.shown == "GPU-1"
    assert row(device("whole")).parent is None


def test_a_device_of_very_many_pods_shows_some_and_counts_the_rest() -> None:
    found = row(device("d", holders=rows.HOLDERS_LIMIT + 7))
    assert len(found.holders) == rows.HOLDERS_LIMIT
    assert found.more == 7


def test_claims_and_containers_have_rows_of_their_own() -> None:
    holders = (ClaimHolder(HOLDER, "ml", "mine"), ClaimHolder(HOLDER, "other", "theirs"))
    claim = row(ClaimDevice(ClaimDeviceKey("drv", "pool", "gpu-0", "s1"), holders, ("cdi=1",)))
    assert [line.claim and line.claim.shown for line in claim.holders] == ["mine", "other/theirs"]
    assert claim.share is not None
    assert (claim.stem, claim.tail, claim.resource.shown) == ("pool/", "gpu-0", "drv")
    assert (claim.state, claim.words, claim.address) == ("held", "held by 2", "/claims/drv/pool/gpu-0")
    memory = (PinnedMemory("hugepages-1Gi", (0, 1), 4 << 30), PinnedMemory("memory", (), 1 << 20))
    container = container_row(Container(HOLDER, {}, (0, 1, 2, 9), memory, (0, 1)))
    assert (container.cpus, container.cpu_count, container.numa) == ("0-2,9", "4 CPUs", "0-1")
    assert [m.shown for m in container.memory] == ["4 GiB hugepages-1Gi on NUMA 0-1", "1 MiB memory"]


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_a_bar_shows_every_state_that_there_is_and_stays_within_its_bounds(
    held: int, unhealthy: int, free: int
) -> None:
    known = held + unhealthy + free
    counts = ResourceCounts(known, held + free, held + unhealthy, unhealthy, free)
    found = bars(counts, complete=True)
    expected = {"held": held, "unhealthy": unhealthy, "free": free}
    assert {bar.state for bar in found} == {state for state, count in expected.items() if count}
    assert all(bar.width > 0 and bar.x >= 0 and bar.x + bar.width <= 1000 for bar in found)
    assert [bar.x for bar in found] == sorted(bar.x for bar in found)
    if known <= 32:
        assert len(found) == known


def test_an_anomaly_of_several_holders_is_one_sentence() -> None:
    holders = [Holder("a", "one", "c"), Holder("b", "two", "c")]
    found = findings((Anomaly("double_held", "r/x", "d-1", h, "2 pods hold it") for h in holders), 100.0)
    assert [f.sentence for f in found.first] == [
        "r/x d-1 is not shared, yet a/one (c) and b/two (c) hold it."
    ]
    assert found.first[0].address == "/?device=d-1"


@pytest.mark.parametrize(
    ("anomaly", "sentence", "address"),
    [
        (
            Anomaly("unhealthy_held", "r/x", "d", HOLDER, "…"),
            "ml/pod-1 (main) holds r/x d, which is no longer healthy.",
            "/?device=d",
        ),
        (
            Anomaly("plugin_gone", "r/x", evidence="none is allocatable, while 2 of its devices are held"),
            (
                "r/x: none is allocatable, while 2 of its devices are held. "
                "Its plugin is gone, or none of them is healthy."
            ),
            "/?resource=r%2Fx",
        ),
        (
            Anomaly("numa_split", "r/x", holder=HOLDER, evidence="its 2 devices span NUMA nodes 0, 1"),
            "ml/pod-1 (main), r/x: its 2 devices span NUMA nodes 0, 1.",
            "/?resource=r%2Fx&namespace=ml&pod=pod-1",
        ),
        (Anomaly("unheard_of", "r/x", "d", None, "it hums"), "r/x d: it hums.", "/?device=d"),
        (
            Anomaly(
                *("unhealthy_held", "r/x", "d", HOLDER),
                "it is held but not allocatable; its plugin says why: dust",
            ),
            "ml/pod-1 (main) holds r/x d, which is no longer healthy; its plugin says why: dust.",
            "/?device=d",
        ),
        (
            Anomaly("plugin_gone", "r/x", evidence="none is allocatable; its plugin does not answer: gone"),
            "r/x: none is allocatable; its plugin does not answer: gone.",
            "/?resource=r%2Fx",
        ),
        (
            Anomaly(
                *("double_held", "r/x", "d", HOLDER, "a/b holds it as a whole, c/d a part of it: d::0"),
                devices=("d", "d::0"),
            ),
            "r/x d: a/b holds it as a whole, c/d a part of it: d::0.",
            "/?device=d",
        ),
        (
            Anomaly("numa_split", "", holder=HOLDER, evidence="its 2 devices span NUMA nodes 0, 1"),
            "ml/pod-1 (main): its 2 devices span NUMA nodes 0, 1.",
            "/?namespace=ml&pod=pod-1",
        ),
        (
            Anomaly("unattributed", "r/x", "d", None, "its plugin gave it out, and no pod has listed it"),
            "r/x d: its plugin gave it out, and no pod has listed it.",
            "/?device=d",
        ),
    ],
)
def test_each_kind_of_anomaly_has_its_sentence_and_the_rows_it_is_about(
    anomaly: Anomaly, sentence: str, address: str
) -> None:
    (found,) = findings([anomaly], 100.0).first
    assert (found.sentence, found.address) == (sentence, address)


def test_very_many_anomalies_are_folded_away_and_counted() -> None:
    found = findings((Anomaly("unhealthy_held", "r/x", f"d-{i}", HOLDER, "") for i in range(150)), 100.0)
    assert (len(found.first), len(found.further), found.left_out, len(found)) == (6, 94, 50, 150)


def test_a_finding_says_since_when_the_first_of_its_anomalies_is_known() -> None:
    anomalies = [
        Anomaly("double_held", "r/x", "d", HOLDER._replace(pod=f"p{since}"), since=since)
        for since in (70.0, 40.0, None)
    ]
    (found,) = findings(anomalies, 100.0).first
    assert found.since is not None
    assert (found.since.iso, filled(found.since.ago.encode(), 100.0)) == (
        "1970-01-01T00:00:40.000Z",
        b"1 min",
    )
    (unknown,) = findings(anomalies[2:], 100.0).first
    assert unknown.since is None


@pytest.mark.parametrize(
    ("told", "streams", "problem", "reason"),
    [
        (AdvertisedDevice(healthy=False, reason="dust\x1b"), 1, "", "dust\\x1b"),
        (AdvertisedDevice(healthy=False), 1, "", None),
        (AdvertisedDevice(healthy=False, reason="dust"), 1, "refused", "its plugin does not answer"),
        (AdvertisedDevice(healthy=True), 1, "", "its plugin calls it healthy"),
        (AdvertisedDevice(healthy=True), 0, "", "the kubelet does not follow its plugin"),
        (None, 1, "", None),
    ],
)
def test_why_a_device_is_unhealthy_is_its_plugins_word(
    told: AdvertisedDevice | None, streams: int, problem: str, reason: str | None
) -> None:
    ill, well = device("d", healthy=False), device("w")
    devices = {} if told is None else {"d": told, "w": told}
    resource = AdvertisedResource(registered=True, streams=streams, devices=devices)
    advertised = merged([Telling("p", {"r.example/x": resource}, 1.0, problem)])
    state = State(snapshot=Snapshot((ill, well)), taken_at=0, advertised=advertised)
    found = rows.row(Entry(ill), rows.scene(state, 100.0)).reason
    assert (None if found is None else found.shown) == reason
    assert rows.row(Entry(well), rows.scene(state, 100.0)).reason is None, "the kubelet's word on health wins"
