"""The status page's rows: what they show, their order, and their groups."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.mapping.dra import ClaimName, PublishedDevice, PublishedName, Taint
from exporter.mapping.holdings import HeldSince, Holding, holdings
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    AdvertisedDevice,
    Anomaly,
    ClaimHolding,
    Device,
    Holder,
    PodKey,
)
from exporter.mapping.state import Moment, State
from exporter.views.matching import ItemMatcher
from exporter.views.query import Filters, RowGroup, Sort, SortColumn
from exporter.web.pages.parts import Frame, HolderLine, freshness_banner, natural
from exporter.web.pages.rows import (
    HOLDERS,
    Cluster,
    Row,
    RowItem,
    arranged,
    clusters,
    row,
    row_inputs,
    row_items,
)
from exporter.web.pages.status import group_header
from exporter.web.pages.times import filled
from harness import scene
from harness.scene import GPU, device, reported

HOLDER = Holder("ml", "pod-1", "main")
PODS = [Holder("ns", f"pod-{i}", "c") for i in range(HOLDERS + 7)]


def seen(*items: Device, now: float = 100.0, complete: bool = True, **changes: Any) -> Moment:
    """The moment `now` of a mapping of `items`."""
    shown = scene.snapshot(*items, complete=complete)
    given: dict[str, Any] = {"anomalies": (), **changes}
    return Moment(scene.state(shown, at=0.0, **given), "node", now, 60.0)


def item(device: Device, state: State | None = None, pod: PodKey | None = None) -> RowItem:
    return RowItem((state or seen(device).state).status_of(device), pod)


def shown(device: Device, **changes: Any) -> Row:
    moment = seen(device, **changes)
    return row(item(device, moment.state), moment)


def claimed(*claims: tuple[str, Holder], share: str = "", name: str = "gpu-0", **facts: Any) -> Device:
    through = [ClaimHolding(holder, "ml", claim, share) for claim, holder in claims]
    return scene.claimed(name, *through, driver="drv", pool="pool", cdi=("cdi=1",), **facts)


def ids(rows: Sequence[RowItem]) -> list[str]:
    return [one.device.key.device.rpartition("pool/")[2] for one in rows]


GONE = replace(device("d", ok=False), no_longer_offered_since=40.0)


# --- what a row shows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "complete", "state", "words"),
    [
        (device("d"), True, "free", "free"),
        (device("d", PODS[0]), True, "held", "held"),
        (device("d", *PODS[:3]), True, "held", "held by 3"),
        (device("d", PODS[0], ok=False), True, "unhealthy", "unhealthy, held"),
        (device("d", PODS[0], ok=False), False, "held", "held"),
        (device("d", ok=False), True, "unhealthy", "unhealthy"),
        (GONE, True, "unhealthy", "no longer offered"),
    ],
)
def test_state(found: Device, complete: bool, state: str, words: str) -> None:
    one = shown(found, complete=complete)
    assert (one.state, one.words) == (state, words)


def test_the_parent_of_a_share_is_the_stem_of_its_id() -> None:
    share = shown(device("GPU-1::3", parent="GPU-1"))
    assert (share.stem, share.tail, share.parent) == ("GPU-1", "::3", None)
    slice_of = shown(device("MIG-GPU-1/7/0", parent="GPU-1"))
    assert (slice_of.stem, slice_of.tail) == ("", "MIG-GPU-1/7/0")
    assert slice_of.parent is not None
    assert slice_of.parent.shown == "GPU-1"
    assert shown(device("whole")).parent is None


def test_a_device_of_many_pods_shows_some_and_counts_the_rest() -> None:
    found = shown(device("d", *PODS))
    assert (len(found.lines), found.more) == (HOLDERS, 7)


def test_a_claimed_device_has_a_line_for_each_holder_with_its_claims_and_start() -> None:
    other = Holder("ns", "pod-2", "main")
    one = claimed(("first", HOLDER), ("second", HOLDER), ("third", other))
    since = {
        Holding(one.key, HOLDER): HeldSince(40.0),
        Holding(one.key, other): HeldSince(70.0, exact=False),
    }
    moment = seen(one)
    moment = replace(moment, state=replace(moment.state, since=since, statuses=None))
    found = row(item(one, moment.state), moment)
    assert (found.stem, found.tail, found.device) == ("pool/", "gpu-0", one.key)
    assert (found.state, found.words, found.note) == (
        "held",
        "held by 2",
        "perhaps for administration; health not reported",
    )
    assert found.address == "/devices/drv/pool%2Fgpu-0"
    assert [line.claims for line in found.lines] == [(("first", ""), ("second", "")), (("ml/third", ""),)]
    frame = Frame(moment, "", "", "/", freshness_banner(moment))
    when = [frame.since(found.device, line.holder) for line in found.lines]
    ages = [stamp and (filled(stamp.ago.encode(), 100.0), stamp.exact) for stamp in when]
    assert ages == [(b"1 min", True), (b"30 s", False)]
    assert row_inputs(item(one, moment.state), moment) != row_inputs(item(one), seen(one))
    assert found.details is not None
    assert [(name, value.shown) for name, value in found.details] == [
        ("driver", "drv"),
        ("pool", "pool"),
        ("CDI", "cdi=1"),
    ]


def test_an_administrator_is_a_line_and_no_holder() -> None:
    admin = ClaimHolding(Holder("ops", "watcher", "main"), "ops", "watch", admin=True)
    found = shown(scene.claimed("gpu-0", admin))
    assert (found.state, found.words) == ("free", "free")
    assert [(line.claims, line.admin) for line in found.lines] == [((("watch", ""),), True)]
    several = [ClaimHolding(Holder("ns", f"p-{n}", "c"), "ns", f"c-{n}") for n in (1, 2)]
    assert shown(scene.claimed("gpu-0", *several)).note == "perhaps for administration; health not reported"


def test_what_a_container_asked_by_stands_where_it_is_not_the_resource() -> None:
    asked = ClaimHolding(HOLDER, "ml", "mine", "s-1", requested_as=GPU, admin=False)
    (line,) = shown(scene.claimed("gpu-0", asked)).lines
    assert (line.claims, line.requested_as) == ((("mine", "s-1"),), GPU)
    assert shown(scene.claimed("gpu-0", asked, resource=GPU)).lines[0].requested_as == ""
    assert shown(device("d", HOLDER)).lines == (HolderLine(HOLDER),)


def test_a_claimed_device_has_what_its_slice_says() -> None:
    published = PublishedDevice(
        PublishedName("drv", "pool", "gpu-0"),
        model="H100",
        pci_address="0000:3b:00.0",
        capacity=(("memory", "80Gi"),),
        taints=(Taint("example.com/xid", "79", "NoExecute", 40.0),),
    )
    found = shown(claimed(("mine", HOLDER), published=published, allocatable=False))
    assert [value.shown for value in found.attributes] == ["H100", "0000:3b:00.0"]
    assert (found.state, found.words, found.ill) == ("unhealthy", "unhealthy, held", 40.0)
    assert found.reason is not None
    assert found.reason.shown == "taint example.com/xid=79:NoExecute"
    assert found.details is not None
    assert [value.shown for _, value in found.details[-2:]] == ["80Gi", "example.com/xid=79:NoExecute"]


def test_a_reserved_device_is_not_free() -> None:
    reserved = claimed(name="gpu-0", parent="gpu", reserved=[ClaimName("ml", "next")])
    spare, held = claimed(name="gpu-1", parent="gpu"), claimed(("mine", HOLDER), name="gpu-2", parent="gpu")
    found = shown(reserved)
    assert (found.state, found.words) == ("reserved", "reserved")
    state = seen(reserved, spare, held).state
    rows = [item(one, state) for one in (reserved, spare, held)]
    assert ids(arranged(rows, Sort(SortColumn.STATE), state)) == ["gpu-2", "gpu-0", "gpu-1"]
    group = group_header(Cluster(("device", "pool", "gpu"), tuple(rows), tuple(rows)), state)
    assert group is not None
    assert group.counts == "3 devices of drv: 1 held, 1 free, 1 unavailable"


def test_an_alternative_is_below_its_physical_device_and_not_free() -> None:
    whole = claimed(name="gpu-0")
    spare = claimed(name="a-half", parent="pool/gpu-0", alternative=True)
    found = shown(spare)
    assert (found.state, found.words) == ("alternative", "alternative")
    state = seen(whole, spare).state
    assert ids(arranged([item(spare, state), item(whole, state)], Sort(SortColumn.RESOURCE), state)) == [
        *("gpu-0", "a-half")
    ]
    by_device = clusters([item(whole, state), item(spare, state)], RowGroup.DEVICE, 0, 9)
    (heading,) = (group_header(one, state) for one in by_device)
    assert heading is not None
    assert heading.counts == "1 device of drv: 1 free, 1 alternative"


DUST = AdvertisedDevice(healthy=False, reason="dust\x1b")


@pytest.mark.parametrize(
    ("report", "streams", "problem", "reason"),
    [
        (DUST, 1, "", "dust\\x1b"),
        (AdvertisedDevice(healthy=False), 1, "", None),
        (DUST, 1, "refused", "its plugin does not answer"),
        (AdvertisedDevice(healthy=True), 1, "", "its plugin reports it healthy"),
        (AdvertisedDevice(healthy=True), 0, "", "the kubelet does not watch its plugin"),
        (None, 1, "", None),
    ],
)
def test_the_reason_of_an_unhealthy_device(
    report: AdvertisedDevice | None, streams: int, problem: str, reason: str | None
) -> None:
    ill, well = device("d", ok=False), device("w")
    devices = {} if report is None else {"d": report, "w": report}
    moment = seen(ill, well, advertised=reported(devices, streams=streams, problem=problem))
    found = row(item(ill, moment.state), moment).reason
    assert (None if found is None else found.shown) == reason
    assert row(item(well, moment.state), moment).reason is None, "the kubelet decides on health"


def test_a_row_has_as_many_attributes_as_fit_and_the_start_of_the_failure() -> None:
    attributes = {"address": "0000:3b:00.0", "driver": "x", "model": "H100", "path": "/dev/" + "p" * 60}
    report = AdvertisedDevice(healthy=False, since=40.0, attributes=tuple(attributes.items()))
    ill = device("d", PODS[0], ok=False)
    found = shown(ill, advertised=reported({"d": report}))
    assert [value.shown for value in found.attributes] == ["H100", "0000:3b:00.0"]
    assert found.ill == 40.0
    anomaly = Anomaly("unhealthy_held", *ill.key, ill.holders[0], "…", since=70.0)
    assert shown(ill, anomalies=(anomaly,)).ill == 70.0
    assert (shown(GONE).ill, shown(GONE).reason) == (40.0, None)


def test_the_inputs_of_a_row_change_with_what_it_shows() -> None:
    held = device("d", PODS[0], ok=False)
    holder, key = held.holders[0], held.key
    identity = PodIdentity("ns", "pod-0", "u", workload=Workload("Job", "j"))
    well = {"d": AdvertisedDevice(healthy=True)}
    moments = [
        seen(held),
        seen(held, complete=False),
        seen(held, since=5.0),
        seen(held, pods={("ns", "pod-0"): identity}),
        seen(held, anomalies=(Anomaly("unhealthy_held", *key, holder, "…", since=70.0),)),
        seen(held, advertised=reported(well)),
        seen(held, advertised=reported(well, streams=0)),
        seen(held, advertised=reported(well, problem="gone")),
        seen(held, now=100.0 + 86400),
    ]
    found = [row_inputs(item(held, moment.state), moment) for moment in moments]
    assert all(one != other for i, one in enumerate(found) for other in found[:i])
    assert found[0] == row_inputs(item(device("d", PODS[0], ok=False)), seen(held, now=101.0))


# --- order ----------------------------------------------------------------------------------------------


def dated(*items: Device, complete: bool = True) -> State:
    """Pods hold since the unix time at the end of their name."""
    found = seen(*items, complete=complete).state
    since = {h: HeldSince(float(h.holder.pod.rpartition("-")[2])) for h in holdings(found.snapshot)}
    return replace(found, since=since, statuses=None)


def pod(at: int) -> Holder:
    return Holder("ns", f"p-{at}", "c")


SORTED: tuple[Device, ...] = (
    device("d-1", pod(30), resource="r/x", numa=(1,)),
    device("d-2", pod(4), pod(9), resource="r/x", numa=(3,)),
    device("d-10", resource="r/x", numa=(2,), ok=False),
    device("d-3", pod(100), resource="a/y", ok=False),
    device("d-4", resource="a/y"),
    claimed(("mine", pod(5))),
)


@pytest.mark.parametrize(
    ("column", "ascending", "descending"),
    [
        ("resource", "d-3 d-4 gpu-0 d-1 d-2 d-10", "d-1 d-2 d-10 gpu-0 d-3 d-4"),
        ("device", "d-1 d-2 d-3 d-4 d-10 gpu-0", "gpu-0 d-10 d-4 d-3 d-2 d-1"),
        ("state", "d-3 d-10 gpu-0 d-1 d-2 d-4", "d-4 gpu-0 d-1 d-2 d-10 d-3"),
        ("pod", "d-2 gpu-0 d-1 d-3 d-4 d-10", "d-3 d-1 gpu-0 d-2 d-4 d-10"),
        ("since", "d-2 gpu-0 d-1 d-3 d-4 d-10", "d-3 d-1 gpu-0 d-2 d-4 d-10"),
        ("numa", "d-1 d-10 d-2 d-3 d-4 gpu-0", "d-2 d-10 d-1 d-3 d-4 gpu-0"),
    ],
)
def test_every_column_sorts_both_ways_and_rows_without_a_value_are_last(
    column: str, ascending: str, descending: str
) -> None:
    state = dated(*SORTED)
    items = [item(one, state) for one in SORTED]
    for down, expected in ((False, ascending), (True, descending)):
        found = arranged(items, Sort(SortColumn(column), descending=down), state)
        assert " ".join(ids(found)) == expected


def test_an_unknown_health_is_not_sorted_as_unhealthy() -> None:
    free, held = device("a"), device("b", pod(1), ok=False)
    state = dated(free, held, complete=False)
    assert ids(arranged([item(free, state), item(held, state)], Sort(SortColumn.STATE), state)) == ["b", "a"]


@pytest.mark.parametrize("shared", [device("d", pod(4), pod(9)), claimed(("mine", pod(4)), ("mine", pod(9)))])
def test_a_row_of_one_pod_is_sorted_by_that_pod(shared: Device) -> None:
    rows = [item(shared, pod=("ns", "p-9")), item(shared, pod=("ns", "p-4"))]
    assert arranged(rows, Sort(SortColumn.SINCE), dated(shared)) == rows[::-1]


def test_names_are_in_the_order_of_their_decimal_numbers() -> None:
    wanted = ["0000:3b:00.0", "0000:3b:00.1", "GPU-52e-a", "GPU-9f-a", "dev-1", "dev-2", "dev-10"]
    rows = (item(device(name)) for name in reversed(wanted))
    assert ids(arranged(rows, Sort(SortColumn.RESOURCE), State())) == wanted
    long = "1-" * 100
    assert sorted((f"{long}10", f"{long}9", "a2"), key=natural) == [f"{long}9", f"{long}10", "a2"]
    assert natural("a2") is natural("a2")
    assert natural(long) is not natural(long), "the cache has short names only"


@given(st.lists(st.text(st.sampled_from("0019aB-:/. "), max_size=24), max_size=8))
def test_names_are_compared_part_by_part(names: list[str]) -> None:
    def parts(name: str) -> list[tuple[int, str]]:
        found = re.split(r"([0-9]+)(?![0-9A-Za-z])", name)
        return [(int(one), one) if at % 2 and len(one) <= 18 else (-1, one) for at, one in enumerate(found)]

    assert sorted(names, key=natural) == sorted(names, key=parts)


NAMES = st.text(max_size=8)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(NAMES, NAMES, st.lists(NAMES, max_size=2), st.booleans(), st.integers(0, 3)), max_size=12
    ),
    st.builds(Sort, st.sampled_from(SortColumn), descending=st.booleans()),
)
def test_any_rows_can_be_sorted_and_none_is_lost(
    rows: list[tuple[str, str, list[str], bool, int]], sort: Sort
) -> None:
    items = [
        device(name, *(Holder("n", pod, "c") for pod in pods), resource=resource, numa=(numa,), ok=ok)
        for resource, name, pods, ok, numa in rows
    ]
    state = seen(*items).state
    every = [*(item(one, state) for one in items), item(SORTED[-1])]
    found = arranged(every, sort, state)
    assert sorted(map(id, found)) == sorted(map(id, every))
    assert arranged(found, sort, state) == found, "stable"


# --- groups ---------------------------------------------------------------------------------------------

A, B = Holder("ml", "a-0", "main"), Holder("ml", "b-0", "main")
SHARED = f"{GPU}.shared"
GROUPED: tuple[Device, ...] = (
    device("G-1"),
    device("G-2::0", A, parent="G-2", resource=SHARED),
    device("G-2::1", A, B, parent="G-2", resource=SHARED),
    device("MIG-1", parent="G-2", resource="nvidia.com/mig"),
    device("G-2", A, resource="other.com/gpu"),
    claimed(("mine", B), name="g-7", share="s1"),
    claimed(("mine", B), name="g-8"),
)
STATE = replace(
    seen(*GROUPED).state,
    pods={("ml", "a-0"): PodIdentity("ml", "a-0", "u", workload=Workload("StatefulSet", "a"))},
    statuses=None,
)
BY_POD = Sort(SortColumn.POD)


def grouped(
    group: RowGroup,
    *,
    first: int = 0,
    number: int = 100,
    filters: Filters | None = None,
    sort: Sort = BY_POD,
    items: Sequence[Device] = GROUPED,
) -> tuple[Cluster, ...]:
    rows = row_items([STATE.status_of(one) for one in items], group, ItemMatcher(filters or Filters()))
    return clusters(arranged(rows, sort, STATE), group, first, number)


def named(found: Sequence[Cluster]) -> list[tuple[str, list[str]]]:
    return [("/".join(one.key[1:]) or one.key[0] if one.key else "", ids(one.shown)) for one in found]


def test_by_device_shares_and_slices_of_any_resource_follow_their_parent() -> None:
    assert named(grouped(RowGroup.DEVICE, sort=Sort(SortColumn.RESOURCE))) == [
        ("", ["g-7", "g-8", "G-1"]),
        ("nvidia.com/G-2", ["G-2::0", "G-2::1", "MIG-1"]),
        ("", ["G-2"]),  # another vendor's, of the same name
    ]


def test_by_pod_each_pod_has_its_devices_and_free_devices_are_last() -> None:
    found = grouped(RowGroup.POD)
    assert named(found) == [
        ("ml/a-0", ["G-2::0", "G-2::1", "G-2"]),
        ("ml/b-0", ["g-7", "g-8", "G-2::1"]),
        ("free", ["G-1", "MIG-1"]),
    ]
    assert [row.holders for one in found for row in one.shown if row.device.key.device == "G-2::1"] == [
        (A,),
        (B,),
    ]
    last = named(grouped(RowGroup.POD, sort=Sort(SortColumn.STATE, descending=True)))[-1]
    assert last == ("free", ["G-1", "MIG-1"])
    assert [key for key, _ in named(grouped(RowGroup.POD, filters=Filters(pod="B-")))] == ["ml/b-0", "free"]


def test_group_headings_have_counts_and_links() -> None:
    unheaded, gpu = (
        group_header(one, STATE)
        for one in grouped(RowGroup.DEVICE, items=GROUPED[:4], sort=Sort(SortColumn.RESOURCE))
    )
    assert unheaded is None
    assert gpu is not None
    assert (gpu.name.shown, gpu.address) == ("G-2", f"/devices/{SHARED}/G-2")
    assert gpu.counts == f"2 devices of {SHARED} and 1 of nvidia.com/mig: 2 held, 1 free"
    owner, _, free = (group_header(one, STATE) for one in grouped(RowGroup.POD))
    assert owner is not None
    assert free is not None
    assert (owner.before and owner.before.shown, owner.name.shown) == ("ml", "a-0")
    assert (owner.address, owner.of) == ("/pods/ml/a-0", "StatefulSet a")
    assert owner.counts == f"2 devices of {SHARED} and 1 of other.com/gpu"
    assert (free.name.shown, free.address) == ("Held by no pod", "")
    ill = device("G-2::0", A, parent="G-2", ok=False), device("G-2::1", B, parent="G-2")
    (heading,) = (group_header(one, STATE) for one in grouped(RowGroup.DEVICE, items=ill))
    assert heading is not None
    assert heading.counts == f"2 devices of {GPU}: 2 held (1 of them unhealthy)"


@settings(max_examples=40)
@given(st.sampled_from(RowGroup), st.integers(0, 12), st.integers(1, 12))
def test_pages_follow_one_another_without_gap_or_repetition(group: RowGroup, first: int, number: int) -> None:
    whole = [row for one in grouped(group) for row in one.shown]
    part = grouped(group, first=first, number=number)
    assert [row for one in part for row in one.shown] == whole[first : first + number]
    assert all(one.shown for one in part)


def test_a_group_continued_from_the_page_before_counts_all_its_rows() -> None:
    found = grouped(RowGroup.POD, first=1, number=3)
    assert named(found) == [("ml/a-0", ["G-2::1", "G-2"]), ("ml/b-0", ["g-7"])]
    assert [(one.continued, len(one.every)) for one in found] == [(True, 3), (False, 3)]
