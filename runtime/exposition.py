"""Prometheus exposition: the format for a client, and renderings that are cached between scrapes.

A document has two parts. The body is large and rarely changes (a snapshot's series): it is rendered and
compressed once. The tail is small and often changes (the process's own counters): it is rendered and
compressed for each scrape. Together they are one gzip member: the compressed body ends on a byte boundary
(Z_FULL_FLUSH), and its checksum is continued.
"""

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Final, Protocol

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import generate_latest as render_text
from prometheus_client.openmetrics.exposition import generate_latest as render_openmetrics
from prometheus_client.utils import floatToGoString

_GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
LARGE: Final = 12 << 20
"""Bytes of text above which only the compressed form is kept."""
_LEVEL: Final = 1
"""zlib's fastest level: exposition text still shrinks to a tenth."""


_OPENMETRICS: Final = frozenset({"1.0.0", "0.0.1"})
"""Versions of OpenMetrics that a client may ask for."""


class Format(Enum):
    """An exposition format by its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Collector(Protocol):
    """What prometheus_client renders."""

    def collect(self) -> Iterable[Metric]:
        """The families at this moment."""
        ...


@dataclass(frozen=True, slots=True)
class Body:
    """A rendered part without an end mark: deflated up to a byte boundary, with CRC-32 and size of its text.

    `kept` is the text, None for a large one, which is decompressed when needed.
    """

    deflated: bytes
    crc: int
    size: int
    kept: bytes | None

    @property
    def text(self) -> bytes:
        """The text."""
        if self.kept is not None:
            return self.kept
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(self.deflated)


class HistogramCounts:
    """Observations counted by bucket. Counts are plain numbers, made into metric families at the scrape."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper bounds of the buckets, ascending; a last bucket has everything above."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self._counts)

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Add these observations to a family, under these values of its labels."""
        names = (*map(floatToGoString, self._bounds), "+Inf")
        family.add_metric(
            labels, list(zip(names, accumulate(self._counts), strict=True)), sum_value=self._total
        )


EMPTY: Final = Body(b"", 0, 0, b"")


@dataclass(frozen=True, slots=True)
class Lines:
    """A large family of gauges: `family` without samples, and the samples as rendered lines, in pieces.

    A gauge's lines are the same in both formats. Their writer escapes values with `escaped` and keeps the
    order of the labels, as prometheus_client does.
    """

    family: Metric
    lines: Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Families:
    """Families as a collector."""

    families: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self.families


def negotiate(accept: str | None) -> Format:
    """The format for an Accept header: OpenMetrics 1.0 where it is preferred, else text.

    Never fails: a clause that cannot be read is ignored, and an unknown version of OpenMetrics is answered in
    text (RFC 9110, section 12.5.1, for q-values).
    """
    quality_of = {Format.TEXT: 0.0, Format.OPENMETRICS: 0.0}
    for media, parameters, quality in _clauses(accept or "*/*"):
        if media == "application/openmetrics-text" and parameters.get("version", "1.0.0") in _OPENMETRICS:
            quality_of[Format.OPENMETRICS] = max(quality_of[Format.OPENMETRICS], quality)
        elif media in {"text/plain", "text/*", "*/*"}:
            quality_of[Format.TEXT] = max(quality_of[Format.TEXT], quality)
    better = quality_of[Format.OPENMETRICS] > 0 and quality_of[Format.OPENMETRICS] >= quality_of[Format.TEXT]
    return Format.OPENMETRICS if better else Format.TEXT


def accepts_gzip(accept_encoding: str | None) -> bool:
    """Whether an Accept-Encoding header allows gzip."""
    qualities = [(coding, quality) for coding, _, quality in _clauses(accept_encoding or "")]
    named = [quality for coding, quality in qualities if coding in {"gzip", "x-gzip"}]
    return max(named or [quality for coding, quality in qualities if coding == "*"], default=0.0) > 0


def _clauses(header: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """The clauses of a header with q-values: the value, its parameters, its quality; all in lower case."""
    for clause in header.lower().split(","):
        value, *raw = (part.strip() for part in clause.split(";"))
        pairs = (part.partition("=") for part in raw)
        parameters = {key.strip(): text.strip().strip('"') for key, _, text in pairs}
        yield value, parameters, _quality(parameters.get("q"))


def _quality(text: str | None) -> float:
    if text is None:
        return 1.0
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return min(max(quality, 0.0), 1.0) if quality == quality else 0.0  # noqa: PLR0124 -- NaN


def escaped(value: str) -> str:
    """A label's value escaped for the quotes of both formats."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def render(families: Sequence[Metric | Lines], form: Format) -> Body:
    """Render and compress families that are served many times. May run in a thread."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    deflated, crc, size = bytearray(), 0, 0
    kept: list[bytes] | None = []
    for piece in _pieces(families, form):
        deflated += compressor.compress(piece)
        crc, size = zlib.crc32(piece, crc), size + len(piece)
        if size > LARGE:
            kept = None
        elif kept is not None:
            kept.append(piece)
    deflated += compressor.flush(zlib.Z_FULL_FLUSH)
    return Body(bytes(deflated), crc, size, None if kept is None else b"".join(kept))


def _pieces(families: Iterable[Metric | Lines], form: Format) -> Iterator[bytes]:
    for family in families:
        if isinstance(family, Lines):
            yield _render(Families((family.family,)), form)
            yield from family.lines
        else:
            yield _render(Families((family,)), form)


def assemble(body: Body, tail: Collector, form: Format, *, compress: bool) -> bytes:
    """The whole document: a cached `body`, the families of `tail` at this moment, and the end mark."""
    end = _render(tail, form) + (b"# EOF\n" if form is Format.OPENMETRICS else b"")
    if not compress:
        return body.text + end
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    deflated = compressor.compress(end) + compressor.flush(zlib.Z_FINISH)
    size = (body.size + len(end)) & 0xFFFFFFFF
    trailer = struct.pack("<II", zlib.crc32(end, body.crc), size)
    return _GZIP_HEADER + body.deflated + deflated + trailer


def _render(collector: Collector, form: Format) -> bytes:
    if form is Format.OPENMETRICS:
        # This function of prometheus_client has no types.
        document: bytes = render_openmetrics(collector)  # type: ignore[no-untyped-call]
        return document.removesuffix(b"# EOF\n")
    return render_text(collector)
