"""runtime.exposition: who gets which format, and families as prometheus_client writes them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest as library_text
from prometheus_client.openmetrics.exposition import generate_latest as library_openmetrics
from prometheus_client.utils import floatToGoString

from runtime import blocks
from runtime.blocks import Block, plain
from runtime.exposition import (
    END,
    CollectorBlocks,
    Family,
    Format,
    HistogramCounts,
    ItemFamily,
    Kind,
    accepts_gzip,
    counter,
    gauge,
    histogram,
    negotiate,
    number,
)

QUICK = settings(max_examples=60, deadline=None, derandomize=True)

OM = "application/openmetrics-text"
PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7"


_NEGOTIATED: dict[Format, list[str | None]] = {
    Format.OPENMETRICS: [
        # Prometheus 3.x, 2.54, 2.43, 2.5, and one that prefers protobuf, as they send it.
        (
            f"{OM};version=1.0.0;escaping=allow-utf-8;q=0.6,{OM};version=0.0.1;q=0.5,"
            "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
        ),
        f"{OM};version=1.0.0;q=0.5,{OM};version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        f"{OM};version=1.0.0,{OM};version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        f"{OM}; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        f"{PROTOBUF},{OM};version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
        # A tie goes to OpenMetrics.
        f"{OM};q=0.5,text/plain;q=0.5",
        "APPLICATION/OpenMetrics-Text ; Version=1.0.0 ; Q=1",
        f'{OM};version="1.0.0"',
        f"{OM};version=2.0.0,{OM};q=0.1",
    ],
    Format.TEXT: [
        # Prometheus 1.8, curl, browsers, and nobody.
        f"{PROTOBUF},text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
        "*/*",
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        *("text/*", "", None),
        # q-values decide; 0 is a refusal; an unknown version or a malformed clause does not count.
        *(f"{OM};q=0.4,text/plain;q=0.5", f"{OM};q=0", f"{OM};q=0,text/plain;q=0", f"{OM};version=2.0.0"),
        *(f"{OM};q=high,text/plain;q=0.1", f"{OM};q=nan", ";;,,;q=,=;/,"),
    ],
}


@pytest.mark.parametrize(
    ("form", "accept"), [(form, accept) for form, accepted in _NEGOTIATED.items() for accept in accepted]
)
def test_a_client_gets_the_format_that_it_prefers(form: Format, accept: str | None) -> None:
    assert negotiate(accept) is form


_CLAUSES = st.lists(
    st.sampled_from(
        [
            *(OM, "text/plain", "*/*", ",", ";", "q=0.5", "q=nan", "q=-1", "q=1e999"),
            *("version=1.0.0", "version=", "=", '"', " ", "q", "\x00"),
        ]
    )
).map("".join)


@settings(max_examples=60)
@given(st.text() | _CLAUSES)
def test_no_header_makes_the_negotiation_fail(header: str) -> None:
    assert negotiate(header) in Format
    assert accepts_gzip(header) in {True, False}


@pytest.mark.parametrize(
    ("allowed", "headers"),
    [
        (True, ["gzip", "gzip, deflate, br", "deflate, GZIP;q=0.5", "x-gzip", "*", "*;q=0.1"]),
        (True, ["*;q=0, gzip", "x-gzip;q=0, gzip"]),
        (False, ["gzip;q=0", "gzip;q=0, *", "*;q=0", "gzip; q=0.0", "gzip;q=much", "identity", "deflate"]),
        (False, ["", None]),
    ],
)
def test_gzip_is_used_only_where_it_is_accepted(allowed: bool, headers: list[str | None]) -> None:
    assert [accepts_gzip(header) for header in headers] == [allowed] * len(headers)


@dataclass(frozen=True)
class Listed:
    """Families for prometheus_client."""

    families: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _library(families: Sequence[Metric], form: Format) -> str:
    if form is Format.TEXT:
        return library_text(Listed(families)).decode()
    document: bytes = library_openmetrics(Listed(families))  # type: ignore[no-untyped-call]
    return document.decode()


def _own(families: Sequence[Family], form: Format) -> str:
    return "".join([family.text(form) for family in families]) + plain([END[form]]).decode()


HELP = "Help \\ with\nodd characters. [ALPHA]"
LABELS = st.lists(st.from_regex(r"\A[a-z_][a-z0-9_]{0,5}\Z"), max_size=4, unique=True)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    [
        *('"', "\\", "\n", '\\"', "\\n", '",x="', "}", "} 1\n", "# EOF\n", "\r", "\x00", "\u2028", "", " "),
        *("%", "%s", "%%d", "é東\U0001f600"),
    ]
)
NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**63), 2**63) | st.booleans()


@given(NUMBERS | st.sampled_from([math.nan, 999_999.0, 1e6, 1e7, 123456789.25, 1.7e9, 1e22, 1e-7, -1e9]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_numbers_are_written_as_prometheus_client_writes_them(value: float) -> None:
    number.cache_clear()  # 0.0 and -0.0 are one key
    assert number(value) == floatToGoString(value)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("form", Format)
@QUICK
@given(labels=LABELS, data=st.data())
def test_families_are_written_as_prometheus_client_writes_them(
    form: Format, labels: list[str], data: st.DataObject
) -> None:
    rows = st.lists(
        st.tuples(st.lists(VALUES, min_size=len(labels), max_size=len(labels)), NUMBERS), max_size=4
    )
    own: list[Family] = []
    library: list[Metric] = []
    for own_kind, library_kind in ((gauge, GaugeMetricFamily), (counter, CounterMetricFamily)):
        name = f"dl_{own_kind.__name__}"
        ours, theirs = own_kind(name, HELP, labels), library_kind(name, HELP, labels=labels)
        for values, value in data.draw(rows):
            ours.add(values, value)
            theirs.add_metric(values, value)
        own.append(ours)
        library.append(theirs)
    assert _own(own, form) == _library(library, form)


@pytest.mark.parametrize("form", Format)
@QUICK
@given(
    labels=LABELS.map(lambda names: [name for name in names if name != "le"]),
    observed=st.lists(st.floats(0, 1e9), max_size=6),
    data=st.data(),
)
def test_histograms_are_written_as_prometheus_client_writes_them(
    form: Format, labels: list[str], observed: list[float], data: st.DataObject
) -> None:
    values = data.draw(st.lists(VALUES, min_size=len(labels), max_size=len(labels)))
    bounds, counts = (0.0025, 1, 3600), HistogramCounts((0.0025, 1, 3600))
    for value in observed:
        counts.observe(value)
    ours = histogram("dl_seconds", HELP, labels)
    counts.add_to(ours, values)
    theirs = HistogramMetricFamily("dl_seconds", HELP, labels=labels)
    buckets = [
        (floatToGoString(bound), sum(one <= bound for one in observed))  # type: ignore[no-untyped-call]
        for bound in (*bounds, math.inf)
    ]
    total = 0.0
    for value in observed:
        total += value
    theirs.add_metric(values, buckets, total)
    assert _own([ours], form) == _library([theirs], form)
    assert counts.count == len(observed)


@QUICK
@given(LABELS, VALUES, VALUES, NUMBERS)
def test_constant_labels_are_labels_of_every_sample(
    labels: list[str], constant: str, value: str, sample: float
) -> None:
    ours = Family(Kind.GAUGE, "dl_gauge", HELP, labels, {"node": constant})
    theirs = GaugeMetricFamily("dl_gauge", HELP, labels=["node", *labels])
    ours.add([value] * len(labels), sample)
    theirs.add_metric([constant, *[value] * len(labels)], sample)
    own = Metric("dl_gauge", HELP, "gauge")
    own.samples = [*theirs.samples]
    ours.add_labelled({"other": value}, 1)
    own.add_sample("dl_gauge", {"node": constant, "other": value}, 1)
    assert _own([ours], Format.TEXT) == _library([own], Format.TEXT)


def test_a_gauge_is_the_same_in_both_formats() -> None:
    family = gauge("dl_gauge", HELP, ["a"])
    family.add(['"'], 1)
    assert family.text(Format.TEXT) == family.text(Format.OPENMETRICS)
    with pytest.raises(ValueError, match="double quotes"):
        gauge("dl_gauge", 'a "quoted" word')


def test_a_sample_has_a_value_for_each_label() -> None:
    with pytest.raises(ValueError, match="1 values for 2 labels"):
        gauge("dl_gauge", HELP, ["a", "b"]).add(["x"], 1)


@dataclass
class Counting:
    """A collector that counts how often it is asked."""

    state: dict[str, int] = field(default_factory=dict[str, int])
    asked: int = 0

    def condition(self) -> object:
        return dict(self.state)

    def families(self) -> Iterable[Family]:
        self.asked += 1
        family = counter("dl_counted", "Counted.", ["what"])
        for what, count in self.state.items():
            family.add([what], count)
        yield family


def test_a_collector_is_asked_again_when_its_condition_changed() -> None:
    collector = Counting({"a": 1})
    kept = CollectorBlocks(collector)
    first = {form: kept.of(form) for form in Format}
    assert {form: kept.of(form) for form in Format} == first
    assert collector.asked == 2
    assert plain([first[Format.TEXT]]).startswith(b"# HELP dl_counted_total ")
    assert plain([first[Format.OPENMETRICS]]).startswith(b"# HELP dl_counted ")
    collector.state["a"] = 2
    assert plain([kept.of(Format.TEXT)]).endswith(b'dl_counted_total{what="a"} 2.0\n')


@QUICK
@given(st.lists(st.dictionaries(st.integers(0, 400), st.integers(0, 3)), max_size=4))
def test_kept_samples_of_items_equal_those_written_anew(steps: list[Mapping[int, int]]) -> None:
    def new() -> Family:
        return gauge("dl_item", "An item.", ["item"])

    def add(family: Family, item: tuple[int, int]) -> None:
        family.add([str(item[0])], item[1])

    kept, known = ItemFamily(new, add), dict[tuple[int, int], tuple[int, int]]()
    for step in steps:
        items = [known.setdefault(item, item) for item in sorted(step.items())]
        family = new()
        for item in items:
            add(family, item)
        assert plain(kept.blocks([("", items)])).decode() == family.text()


def test_only_text_that_changed_is_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    compressed: list[bytes] = []

    def block(text: bytes) -> Block:
        compressed.append(text)
        return blocks.EMPTY if not text else real(text)

    real = blocks.block
    monkeypatch.setattr(blocks, "block", block)
    family = ItemFamily[list[str]](
        lambda: gauge("dl_item", "An item.", ["item"]), lambda f, item: f.add(item, 1)
    )
    first = family.blocks([("", [["a"], ["b"]])])
    # Other objects with the same text.
    assert family.blocks([("", [["a"], ["b"]])])[1] is first[1]
    family.blocks([("", [["a"], ["c"]])])
    assert len(compressed) == 2
