"""The status page's rows, resources and findings."""

from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    Anomaly,
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Device,
    DeviceKey,
    Holder,
    PluginReport,
    PodKey,
    ResourceCounts,
    Snapshot,
    merge_reports,
)
from exporter.mapping.state import Moment, State
from exporter.views.query import Filters, PageQuery, RowGroup, device_link, parse_page, pod_link
from exporter.web.pages import rows
from exporter.web.pages.parts import Finding, Frame, findings, freshness_banner
from exporter.web.pages.rows import RowItem
from exporter.web.pages.status import bars, resources, status_page
from exporter.web.pages.times import filled

HOLDER = Holder("ml", "pod-1", "main")


def seen(state: State, now: float) -> Moment:
    return Moment(state, "node", now, 60.0)


def device(name: str, parent: str = "", *, healthy: bool = True, holders: int = 0) -> Device:
    held = tuple(Holder("ns", f"pod-{i}", "c") for i in range(holders))
    return Device(DeviceKey("r.example/x", name), parent, (), healthy, held)


def row(found: Device | ClaimDevice, *, complete: bool = True, pod: PodKey | None = None) -> rows.Row:
    devices = (found,) if isinstance(found, Device) else ()
    state = State(snapshot=Snapshot(devices, complete=complete), taken_at=0)
    return rows.row(RowItem(found, pod), seen(state, 100.0))


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
    found = row(device("d", holders=rows.HOLDERS + 7))
    assert len(found.holdings) == rows.HOLDERS
    assert found.more == 7


def test_a_claimed_device_has_a_row_with_a_holding_for_each_claim() -> None:
    holders = (ClaimHolder(HOLDER, "ml", "mine"), ClaimHolder(HOLDER, "other", "theirs"))
    device = ClaimDevice(ClaimDeviceKey("drv", "pool", "gpu-0", "s1"), holders, ("cdi=1",))
    claim = row(device)
    assert claim.claim is device
    assert [one.key[-2:] for one in claim.holdings] == [("ml", "mine"), ("other", "theirs")]
    assert (claim.stem, claim.tail, claim.resource) == ("pool/", "gpu-0", "drv")
    assert (claim.state, claim.words, claim.address) == ("held", "held by 2", "/claims/drv/pool/gpu-0")


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_a_bar_shows_every_state_that_there_is_and_stays_within_its_bounds(
    held: int, unhealthy: int, free: int
) -> None:
    known = held + unhealthy + free
    counts = ResourceCounts(known, held + free, held + unhealthy, unhealthy, free)
    found = bars(counts, complete=True)
    expected = {"held": held, "unhealthy": unhealthy, "free": free}
    assert {state for _, _, state in found} == {state for state, count in expected.items() if count}
    assert all(width > 0 and x >= 0 and x + width <= 1000 for x, width, _ in found)
    assert [x for x, _, _ in found] == sorted(x for x, _, _ in found)
    if known <= 32:
        assert len(found) == known


def test_an_anomaly_of_several_holders_is_one_sentence() -> None:
    holders = [Holder("a", "one", "c"), Holder("b", "two", "c")]
    found = findings((Anomaly("double_held", "r/x", "d-1", h, "2 pods hold it") for h in holders), 100.0)
    assert [f.sentence for f in found.shown] == [
        "r/x d-1 is not shared, but a/one (c) and b/two (c) hold it."
    ]
    assert found.shown[0].address == "/?device=d-1"


@pytest.mark.parametrize(
    ("anomaly", "sentence", "address"),
    [
        (
            Anomaly("unhealthy_held", "r/x", "d", HOLDER, "…"),
            "ml/pod-1 (main) holds r/x d, which is unhealthy.",
            "/?device=d",
        ),
        (
            Anomaly("plugin_gone", "r/x", evidence="none is allocatable, while 2 of its devices are held"),
            (
                "r/x: none is allocatable, while 2 of its devices are held. "
                "Its plugin is gone, or none of its devices is healthy."
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
            "ml/pod-1 (main) holds r/x d, which is unhealthy; its plugin says why: dust.",
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
    (found,) = findings([anomaly], 100.0).shown
    assert (found.sentence, found.address) == (sentence, address)


def links(finding: Finding) -> dict[str, str]:
    return {shown: href for shown, href in finding.pieces if href}


@pytest.mark.parametrize(
    ("anomaly", "expected"),
    [
        (
            Anomaly("unhealthy_held", "r/x", "d", HOLDER, "it is; a d in words, and GPU d of another one"),
            {"ml/pod-1": "/pods/ml/pod-1", "d": "/devices/r/x/d"},
        ),
        (
            Anomaly(
                *("plugin_gone", "r/x"),
                evidence="none is allocatable, while 2 of its devices are held by a/b, a/b-1",
                pods=(("a", "b"), ("a", "b-1"), ("c", "not-told")),
            ),
            {"a/b": "/pods/a/b", "a/b-1": "/pods/a/b-1"},
        ),
        (
            Anomaly(
                *("double_held", "r/x", "d", HOLDER, "a/b holds it as a whole, c/d.e a part of it: d::0"),
                devices=("d", "d::0"),
                pods=(("a", "b"), ("c", "d.e")),
            ),
            {"d": "/devices/r/x/d", "a/b": "/pods/a/b", "c/d.e": "/pods/c/d.e"},
        ),
        (
            Anomaly("unattributed", "r/x", "[.*+?(", None, "it is r/x [.*+?("),
            {"[.*+?(": "/devices/r/x/%5B.%2A%2B%3F%28"},
        ),
        (Anomaly("plugin_gone", "r/x", evidence="none is allocatable"), {}),
        (
            Anomaly(
                "unheard_of", "r/x", "d", None, "as x/a/b, a/b/c, a/bc and a/b.c say", pods=(("a", "b"),)
            ),
            {"d": "/devices/r/x/d"},
        ),
    ],
)
def test_a_sentence_leads_to_the_pages_of_those_that_it_names_and_of_no_other(
    anomaly: Anomaly, expected: dict[str, str]
) -> None:
    (found,) = findings([anomaly], 100.0).shown
    assert links(found) == expected


@given(
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=4), st.text(max_size=5), st.text()
)
def test_whatever_names_there_are_the_pieces_are_the_sentence(
    pods: list[tuple[str, str]], device: str, evidence: str
) -> None:
    holder = HOLDER._replace(pod=device)
    anomaly = Anomaly(
        "numa_split", "r/x", device, holder, evidence + " ".join(map("/".join, pods)), pods=tuple(pods)
    )
    (found,) = findings([anomaly], 100.0).shown
    known = {device_link("r/x", device), pod_link("ml", device), *(pod_link(*pod) for pod in pods)}
    assert set(links(found).values()) <= known
    assert all(shown for shown, _ in found.pieces)
    assert found.sentence.endswith(".")


def test_very_many_anomalies_are_folded_away_and_counted() -> None:
    found = findings((Anomaly("unhealthy_held", "r/x", f"d-{i}", HOLDER, "") for i in range(150)), 100.0)
    assert (len(found.shown), found.left_out, len(found)) == (100, 50, 150)


def test_a_finding_says_since_when_the_first_of_its_anomalies_is_known() -> None:
    anomalies = [
        Anomaly("double_held", "r/x", "d", HOLDER._replace(pod=f"p{since}"), since=since)
        for since in (70.0, 40.0, None)
    ]
    (found,) = findings(anomalies, 100.0).shown
    assert found.since is not None
    assert (found.since.iso, filled(found.since.ago.encode(), 100.0)) == (
        "1970-01-01T00:00:40.000Z",
        b"1 min",
    )
    (unknown,) = findings(anomalies[2:], 100.0).shown
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
    advertised = merge_reports([PluginReport("p", {"r.example/x": resource}, 1.0, problem)])
    state = State(snapshot=Snapshot((ill, well)), taken_at=0, advertised=advertised)
    found = rows.row(RowItem(ill), seen(state, 100.0)).reason
    assert (None if found is None else found.shown) == reason
    assert rows.row(RowItem(well), seen(state, 100.0)).reason is None, "the kubelet's word on health wins"


def test_a_row_tells_what_its_plugin_knows_of_the_device_as_far_as_it_fits() -> None:
    told = AdvertisedDevice(
        healthy=False,
        reason="dust",
        since=40.0,
        attributes=(
            ("address", "0000:3b:00.0"),
            ("driver", "x"),
            ("model", "H100"),
            ("path", "/dev/" + "p" * 60),
        ),
    )
    advertised = merge_reports(
        [PluginReport("p", {"r.example/x": AdvertisedResource(True, 1, {"d": told})}, 1.0)]
    )
    ill = device("d", healthy=False, holders=1)
    state = State(snapshot=Snapshot((ill,)), taken_at=0, advertised=advertised)
    found = rows.row(RowItem(ill), seen(state, 100.0))
    assert [value.shown for value in found.attributes] == ["H100", "0000:3b:00.0"]
    assert found.ill == 40.0


def test_since_when_it_is_unhealthy_is_else_since_when_it_was_seen() -> None:
    ill = device("d", healthy=False, holders=1)
    anomaly = Anomaly("unhealthy_held", *ill.key, ill.holders[0], "…", since=70.0)
    state = State(snapshot=Snapshot((ill,)), taken_at=0, anomalies=(anomaly,))
    found = rows.row(RowItem(ill), seen(state, 100.0))
    assert found.ill == 70.0


def test_a_claimed_device_is_held_since_as_others_are_each_claim_by_itself() -> None:
    through = tuple(ClaimHolder(HOLDER, "ml", claim) for claim in ("first", "second", "third"))
    claimed = ClaimDevice(ClaimDeviceKey("drv", "pool", "gpu-0"), through)
    first, second, _ = (Holding(claimed.held(one), HOLDER) for one in through)
    none = State(snapshot=Snapshot(claims=(claimed,)), taken_at=0)
    some = replace(none, since={first: HeldSince(40.0), second: HeldSince(70.0, exact=False)})
    moment = seen(some, 100.0)
    frame = Frame(moment, "", "", "/", freshness_banner(moment))
    found = [frame.since(*holding) for holding in rows.row(RowItem(claimed), moment).holdings]
    ago = [when and (filled(when.ago.encode(), 100.0), when.exact) for when in found]
    assert ago == [(b"1 min", True), (b"30 s", False), None]
    assert rows.row_inputs(RowItem(claimed), moment) != rows.row_inputs(RowItem(claimed), seen(none, 100.0))


def test_the_inputs_of_a_row_change_with_all_that_it_tells() -> None:
    held = device("d", healthy=False, holders=1)
    holder, key = held.holders[0], held.key
    identity = PodIdentity("ns", "pod-0", "u", workload=Workload("Job", "j"))
    told = AdvertisedDevice(healthy=True)
    states = [State(snapshot=Snapshot((held,)), taken_at=0)]
    states += [
        replace(states[0], snapshot=Snapshot((held,), complete=False)),
        replace(states[0], since={Holding(key, holder): HeldSince(5.0)}),
        replace(states[0], pods={("ns", "pod-0"): identity}),
        replace(states[0], anomalies=(Anomaly("unhealthy_held", *key, holder, "…", since=70.0),)),
        *(
            replace(
                states[0],
                advertised=merge_reports(
                    [
                        PluginReport(
                            "p", {key.resource: AdvertisedResource(True, streams, {"d": told})}, 1.0, problem
                        )
                    ]
                ),
            )
            for streams, problem in ((1, ""), (0, ""), (1, "gone"))
        ),
    ]
    moments = [seen(state, 100.0) for state in states] + [seen(states[0], 100.0 + 86400)]
    found = [rows.row_inputs(RowItem(held), moment) for moment in moments]
    assert all(one != other for i, one in enumerate(found) for other in found[:i])
    assert found[0] == rows.row_inputs(RowItem(device("d", healthy=False, holders=1)), seen(states[0], 101.0))


@given(st.integers(9, 60), st.sets(st.integers(0, 59), max_size=12), st.none() | st.integers(0, 59))
def test_very_many_resources_are_folded_but_for_what_is_wrong_or_asked_for(
    number: int, wrong: set[int], asked: int | None
) -> None:
    snapshot = Snapshot(
        tuple(Device(DeviceKey(f"r.example/{i:02}", "d"), allocatable=i not in wrong) for i in range(number))
    )
    asked_for = "" if asked is None or asked >= number else f"r.example/{asked:02}"
    found = resources(State(snapshot=snapshot, taken_at=0), PageQuery(Filters(resource=asked_for)))
    names = [row.name.shown for row in found.first]
    assert len(names) == 6
    assert names == sorted(names)
    assert len(found.further) == number - 6
    assert not asked_for or asked_for in names
    hidden = sum(row.alarming for row in found.further)
    alarming = {f"r.example/{i:02}" for i in wrong if i < number}
    assert hidden == 0 or all(row.alarming or row.selected for row in found.first)
    assert (f"{hidden} of them with problems" in found.summary) == bool(hidden)
    assert hidden + sum(row.alarming for row in found.first) == len(alarming)


def test_eight_resources_are_not_worth_folding() -> None:
    snapshot = Snapshot(tuple(Device(DeviceKey(f"r.example/{i}", "d")) for i in range(8)))
    found = resources(State(snapshot=snapshot, taken_at=0), PageQuery())
    assert (len(found.first), found.further, found.summary) == (8, (), "")


def test_a_heading_sorts_then_turns_then_lets_go() -> None:
    page = status_page(seen(State(), 1.0), PageQuery(), tag="", triggers=())
    assert [h.name for h in page.headings if not h.address] == ["container"]
    query, found = PageQuery(Filters(q="x"), page=4, group=RowGroup.POD), list[tuple[str, str]]()
    for _ in range(4):
        page = status_page(seen(State(), 1.0), query, tag="", triggers=())
        heading = next(h for h in page.headings if h.name == "since")
        found.append((heading.order, heading.address))
        query = parse_page(parse_qsl(urlsplit(heading.address).query))
    assert found == [
        ("", "/?q=x&sort=since&group=pod"),
        ("ascending", "/?q=x&sort=-since&group=pod"),
        ("descending", "/?q=x&group=pod"),
        ("", "/?q=x&sort=since&group=pod"),
    ]
