"""runtime.exposition: who gets which format, and documents that every reader takes."""

import gzip
import zlib
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest as plain_text
from prometheus_client.openmetrics.exposition import generate_latest as plain_openmetrics

from runtime import exposition
from runtime.exposition import EMPTY, Collector, Format, accepts_gzip, assemble, negotiate, render

QUICK = settings(max_examples=30)

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


class Listed:
    """Families as a collector."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _gauge(name: str, *rows: Sequence[str], labels: Sequence[str] = ("node", "device")) -> Metric:
    family = GaugeMetricFamily(name, "Help \\ with\nodd characters.", labels=labels)
    for number, row in enumerate(rows):
        family.add_metric(row, number + 0.5)
    return family


def _plain(form: Format, *collectors: Collector) -> bytes:
    families = Listed(*(family for collector in collectors for family in collector.collect()))
    if form is Format.TEXT:
        return plain_text(families)
    document: bytes = plain_openmetrics(families)  # type: ignore[no-untyped-call]
    return document


def _own_metrics() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("dl_asked_total", "Asked.", ("code",), registry=registry).labels("OK").inc(3)
    Histogram("dl_took_seconds", "Took.", registry=registry, buckets=(0.1, 1)).observe(0.5)
    return registry


_VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    [
        *('"', "\\", "\n", '\\"', "\\n", '",x="', "}", "} 1\n", "# EOF\n", "\r", "\x00", "\u2028", "", " "),
        "é東\U0001f600",
    ]
)
_ROWS = st.lists(st.tuples(_VALUES, _VALUES), max_size=6, unique=True)


@QUICK
@given(rows=_ROWS, form=st.sampled_from(Format), with_body=st.booleans())
def test_an_assembled_document_is_the_one_rendered_whole(
    rows: list[tuple[str, str]], form: Format, with_body: bool
) -> None:
    body, tail = Listed(_gauge("dl_body", *rows)), _own_metrics()
    kept = render(list(body.collect()), form) if with_body else EMPTY
    document = assemble(kept, tail, form, compress=False)
    assert document == (_plain(form, body, tail) if with_body else _plain(form, tail))
    assert document.endswith(b"# EOF\n") is (form is Format.OPENMETRICS)
    # Compressed, it is one valid gzip member.
    compressed = assemble(kept, tail, form, compress=True)
    member = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert member.decompress(compressed) == document
    assert member.eof
    assert member.unused_data == b""


def test_a_large_body_is_compressed_once_and_to_a_tenth() -> None:
    body = render([_gauge("dl_body", *(("node", f"GPU-{n:032x}") for n in range(4_000)))], Format.TEXT)
    assert len(body.deflated) * 8 < len(body.text)
    first = assemble(body, _own_metrics(), Format.TEXT, compress=True)
    assert body.deflated in first
    assert gzip.decompress(first).startswith(body.text)


def test_a_text_that_is_too_large_to_keep_is_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    family = GaugeMetricFamily("x", "Something.", labels=["a"])
    for number in range(100):
        family.add_metric([f"{number}"], number)
    end = CollectorRegistry()
    for form in Format:
        whole = render([family], form)
        monkeypatch.setattr(exposition, "LARGE", 100)
        large = render([family], form)
        monkeypatch.undo()
        assert (whole.kept, large.kept) == (whole.text, None)
        assert (large.text, large.crc, large.size) == (whole.text, whole.crc, len(whole.text))
        document = assemble(whole, end, form, compress=False)
        assert assemble(large, end, form, compress=False) == document
        assert gzip.decompress(assemble(large, end, form, compress=True)) == document
