"""Findings as sentences with links, and the resources and headings of the status page."""

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.model import Anomaly, Holder, ResourceCounts
from exporter.mapping.state import Moment, State
from exporter.views.query import Filters, PageQuery, RowGroup, device_link, parse_page, pod_link
from exporter.web.pages.parts import Finding, findings
from exporter.web.pages.status import bars, resources, status_page
from exporter.web.pages.times import filled
from harness.scene import device, snapshot

HOLDER = Holder("ml", "pod-1", "main")
DEVICE = ("r/x", "d")


def finding(*anomalies: Anomaly) -> Finding:
    (found,) = findings(anomalies, 100.0).shown
    return found


def links(found: Finding) -> dict[str, str]:
    return {shown: href for shown, href in found.pieces if href}


@pytest.mark.parametrize(
    ("anomaly", "sentence", "address"),
    [
        (
            Anomaly("unhealthy_held", *DEVICE, HOLDER, "…"),
            "ml/pod-1 (main) holds r/x d, which is unhealthy.",
            "/?device=d",
        ),
        (
            Anomaly("unhealthy_held", *DEVICE, HOLDER, "it is held; its plugin says why: dust"),
            "ml/pod-1 (main) holds r/x d, which is unhealthy; its plugin says why: dust.",
            "/?device=d",
        ),
        (
            Anomaly("plugin_gone", "r/x", evidence="none is allocatable"),
            "r/x: none is allocatable. Its plugin is gone, or none of its devices is healthy.",
            "/?resource=r%2Fx",
        ),
        (
            Anomaly("plugin_gone", "r/x", evidence="none is allocatable; its plugin does not answer: gone"),
            "r/x: none is allocatable; its plugin does not answer: gone.",
            "/?resource=r%2Fx",
        ),
        (
            Anomaly(
                "double_held", *DEVICE, HOLDER, "a/b holds the whole, c/d a share", devices=("d", "d::0")
            ),
            "r/x d: a/b holds the whole, c/d a share.",
            "/?device=d",
        ),
        (
            Anomaly("numa_split", "r/x", holder=HOLDER, evidence="its 2 devices span NUMA nodes 0, 1"),
            "ml/pod-1 (main), r/x: its 2 devices span NUMA nodes 0, 1.",
            "/?resource=r%2Fx&namespace=ml&pod=pod-1",
        ),
        (
            Anomaly("numa_split", "", holder=HOLDER, evidence="its 2 devices span NUMA nodes 0, 1"),
            "ml/pod-1 (main): its 2 devices span NUMA nodes 0, 1.",
            "/?namespace=ml&pod=pod-1",
        ),
        (Anomaly("unattributed", *DEVICE, None, "no pod lists it"), "r/x d: no pod lists it.", "/?device=d"),
        (Anomaly("a newer kind", *DEVICE, None, "it hums"), "r/x d: it hums.", "/?device=d"),
    ],
)
def test_each_kind_of_anomaly_has_a_sentence_and_the_address_of_its_rows(
    anomaly: Anomaly, sentence: str, address: str
) -> None:
    found = finding(anomaly)
    assert (found.sentence, found.address) == (sentence, address)


def test_several_holders_of_one_device_are_one_finding_since_the_first() -> None:
    holders = [Holder("a", "one", "c"), Holder("b", "two", "c"), Holder("b", "two", "d")]
    anomalies = [
        Anomaly("double_held", *DEVICE, holder, "…", since=since)
        for holder, since in zip(holders, (70.0, 40.0, None), strict=True)
    ]
    found = finding(*anomalies)
    assert found.sentence == "r/x d is not shared, but a/one (c), b/two (c) and b/two (d) hold it."
    assert found.since is not None
    assert filled(found.since.ago.encode(), 100.0) == b"1 min"
    assert finding(*anomalies[2:]).since is None


@pytest.mark.parametrize(
    ("anomaly", "expected"),
    [
        (
            Anomaly("unhealthy_held", *DEVICE, HOLDER, "it is; a d in words, and GPU d of another one"),
            {"ml/pod-1": "/pods/ml/pod-1", "d": "/devices/r/x/d"},
        ),
        (
            Anomaly(
                "plugin_gone",
                "r/x",
                evidence="held by a/b, a/b-1",
                pods=(("a", "b"), ("a", "b-1"), ("c", "d")),
            ),
            {"a/b": "/pods/a/b", "a/b-1": "/pods/a/b-1"},
        ),
        (
            Anomaly(
                *("double_held", *DEVICE, HOLDER, "a/b holds the whole, c/d.e a share: d::0"),
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
            Anomaly("new", *DEVICE, None, "as x/a/b, a/b/c, a/bc and a/b.c say", pods=(("a", "b"),)),
            {"d": "/devices/r/x/d"},
        ),
    ],
)
def test_a_sentence_links_the_objects_that_it_names_and_no_other(
    anomaly: Anomaly, expected: dict[str, str]
) -> None:
    assert links(finding(anomaly)) == expected


SHORT = st.text(max_size=5)


@settings(max_examples=50)
@given(st.lists(st.tuples(SHORT, SHORT), max_size=4), SHORT, st.text())
def test_links_of_any_names_are_pieces_of_the_sentence(
    pods: list[tuple[str, str]], name: str, evidence: str
) -> None:
    words = evidence + " ".join(map("/".join, pods))
    found = finding(Anomaly("numa_split", "r/x", name, HOLDER._replace(pod=name), words, pods=tuple(pods)))
    known = {device_link("r/x", name), pod_link("ml", name), *(pod_link(*pod) for pod in pods)}
    assert set(links(found).values()) <= known
    assert all(shown for shown, _ in found.pieces)
    assert found.sentence.endswith(".")


def test_findings_are_bounded_and_the_rest_counted() -> None:
    found = findings((Anomaly("unhealthy_held", "r/x", f"d-{i}", HOLDER, "") for i in range(150)), 100.0)
    assert (len(found.shown), found.left_out, len(found)) == (100, 50, 150)


@settings(max_examples=50)
@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_a_bar_shows_every_state_that_occurs_within_its_width(held: int, unhealthy: int, free: int) -> None:
    known = held + unhealthy + free
    found = bars(ResourceCounts(known, held + free, held + unhealthy, unhealthy, free), known=True)
    expected = {"held": held, "unhealthy": unhealthy, "free": free}
    assert {state for _, _, state in found} == {state for state, count in expected.items() if count}
    assert all(width > 0 and x >= 0 and x + width <= 1000 for x, width, _ in found)
    assert [x for x, _, _ in found] == sorted(x for x, _, _ in found)
    assert known > 32 or len(found) == known


@settings(max_examples=40)
@given(st.integers(9, 60), st.sets(st.integers(0, 59), max_size=12), st.none() | st.integers(0, 59))
def test_many_resources_fold_except_those_with_problems_and_the_selected_one(
    number: int, wrong: set[int], selected: int | None
) -> None:
    names = [f"r.example/{i:02}" for i in range(number)]
    shown = snapshot(*(device("d", resource=name, ok=i not in wrong) for i, name in enumerate(names)))
    wanted = "" if selected is None or selected >= number else names[selected]
    found = resources(State(snapshot=shown, taken_at=0), PageQuery(Filters(resource=wanted)))
    first = [row.name.shown for row in found.first]
    assert (len(first), first, len(found.further)) == (6, sorted(first), number - 6)
    assert not wanted or wanted in first
    hidden = sum(row.alarming for row in found.further)
    assert hidden == 0 or all(row.alarming or row.selected for row in found.first)
    assert (f"{hidden} of them with problems" in found.summary) == bool(hidden)
    assert hidden + sum(row.alarming for row in found.first) == sum(i < number for i in wrong)


def test_eight_resources_do_not_fold() -> None:
    shown = snapshot(*(device("d", resource=f"r.example/{i}") for i in range(8)))
    found = resources(State(snapshot=shown, taken_at=0), PageQuery())
    assert (len(found.first), found.further, found.summary) == (8, (), "")


def test_a_heading_sorts_ascending_then_descending_then_by_default() -> None:
    query, found = PageQuery(Filters(q="x"), page=4, group=RowGroup.POD), list[tuple[str, str]]()
    for _ in range(4):
        page = status_page(Moment(State(), "node", 1.0, 60.0), query, tag="", triggers=())
        assert [h.name for h in page.headings if not h.address] == ["container"]
        heading = next(h for h in page.headings if h.name == "since")
        found.append((heading.order, heading.address))
        query = parse_page(parse_qsl(urlsplit(heading.address).query))
    assert found == [
        ("", "/?q=x&sort=since&group=pod"),
        ("ascending", "/?q=x&sort=-since&group=pod"),
        ("descending", "/?q=x&group=pod"),
        ("", "/?q=x&sort=since&group=pod"),
    ]
