"""Prometheus exposition: metric families as text in both formats, and the format that a client accepts.

Formats: Prometheus' text format 0.0.4 and OpenMetrics 1.0. What devicelens exposes differs between them in
the heads of counters and in the end mark only. Timestamps, exemplars, and units are not used.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from typing import Final, Generic, Protocol, TypeVar

from runtime.blocks import EMPTY, Block, BlockCache, block, stored

TEXT_KEPT: Final = 4 << 20
"""Bytes of a family's text that are kept beside its compressed form: those of 16 000 devices."""
_SMALL: Final = 1024
"""Bytes of text that are not worth their compression at each scrape."""
_OPENMETRICS: Final = frozenset({"1.0.0", "0.0.1"})
"""Versions of OpenMetrics that a client may ask for."""


class Format(Enum):
    """An exposition format by its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


END: Final[Mapping[Format, Block]] = {Format.TEXT: EMPTY, Format.OPENMETRICS: block(b"# EOF\n")}
"""The end of a document."""


@lru_cache(maxsize=64)
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


@lru_cache(maxsize=64)
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


@lru_cache(maxsize=1024)
def number(value: float) -> str:
    """A sample's value, as Go writes it: with an exponent from a million on."""
    value = float(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    text = repr(value)
    dot = text.find(".")
    if value < 0 or dot <= 6:
        return text
    digits = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
    return f"{digits}e+{dot - 1:02d}"


class _Line:
    """Writes samples of one name and set of labels. prometheus_client sorts labels by name; so does this."""

    __slots__ = ("_order", "_template")

    def __init__(self, name: str, labels: tuple[str, ...], constant: tuple[tuple[str, str], ...]) -> None:
        self._order = tuple(sorted(range(len(labels)), key=labels.__getitem__))
        pairs = dict.fromkeys(labels, "%s")
        pairs |= {label: escaped(value).replace("%", "%%") for label, value in constant}
        text = ",".join([f'{label}="{pairs[label]}"' for label in sorted(pairs)])
        self._template = f"{name}{{{text}}} " if text else f"{name} "

    def __call__(self, values: Sequence[str], value: float) -> str:
        return f"{self.series(values)}{number(value)}\n"

    def series(self, values: Sequence[str]) -> str:
        """What comes before the value."""
        if len(values) != len(self._order):
            raise ValueError(f"{len(values)} values for {len(self._order)} labels: {self._template}")
        return self._template % tuple([escaped(values[at]) for at in self._order])


_line: Final = lru_cache(maxsize=256)(_Line)
"""The writer of the samples of a name with these labels."""


@lru_cache(maxsize=256)
def _histogram_series(
    name: str, labels: tuple[str, ...], values: tuple[str, ...], bounds: tuple[str, ...]
) -> tuple[str, ...]:
    """What comes before the values of a histogram: its buckets, the count, the sum."""
    bucket = _Line(f"{name}_bucket", (*labels, "le"), ())
    buckets = [bucket.series((*values, bound)) for bound in bounds]
    return (*buckets, *[_Line(f"{name}_{part}", labels, ()).series(values) for part in ("count", "sum")])


class Kind(Enum):
    """The type of a family."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Family:
    """A metric family, whose samples are written when they are added. A gauge is the same in both formats."""

    __slots__ = ("_constant", "_help", "_kind", "_labels", "_line", "_lines", "name")

    def __init__(
        self,
        kind: Kind,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        constant: Mapping[str, str] | None = None,
    ) -> None:
        """`name` without `_total`; `text` is the HELP, without double quotes, which the formats escape
        differently; `constant` are labels that every sample has.
        """
        if '"' in text:
            raise ValueError(f"{name}: double quotes in {text}")
        self._kind, self.name = kind, name
        self._help = text.replace("\\", r"\\").replace("\n", r"\n")
        self._labels, self._constant = tuple(labels), tuple((constant or {}).items())
        self._line = _line(f"{name}_total" if kind is Kind.COUNTER else name, self._labels, self._constant)
        self._lines: list[str] = []

    def add(self, values: Sequence[str], value: float) -> None:
        """Add the sample with these values of the labels, in the order of their names."""
        self._lines.append(self._line(values, value))

    def add_labelled(self, labels: Mapping[str, str], value: float) -> None:
        """Add a sample with labels of its own besides the constant ones."""
        self._lines.append(_line(self.name, tuple(labels), self._constant)(tuple(labels.values()), value))

    def add_histogram(
        self, values: Sequence[str], bounds: Sequence[str], counts: Sequence[int], total: float
    ) -> None:
        """Add the samples of a histogram without constant labels: the cumulative `counts` of its buckets, by
        their bounds, and the sum.
        """
        series = _histogram_series(self.name, self._labels, tuple(values), tuple(bounds))
        for one, value in zip(series, (*counts, counts[-1], total), strict=True):
            self._lines.append(f"{one}{number(value)}\n")

    def head(self, form: Format = Format.TEXT) -> str:
        """HELP and TYPE."""
        name = self.name
        if self._kind is Kind.COUNTER and form is Format.TEXT:
            name += "_total"
        return f"# HELP {name} {self._help}\n# TYPE {name} {self._kind.value}\n"

    def lines(self) -> str:
        """The samples, which are the same in both formats."""
        return "".join(self._lines)

    def text(self, form: Format = Format.TEXT) -> str:
        """Head and samples."""
        return self.head(form) + self.lines()


def gauge(name: str, text: str, labels: Sequence[str] = (), value: float | None = None) -> Family:
    """A gauge, with its sample where it has no labels."""
    family = Family(Kind.GAUGE, name, text, labels)
    if value is not None:
        family.add((), value)
    return family


def counter(name: str, text: str, labels: Sequence[str] = (), value: float | None = None) -> Family:
    """A counter; `name` without `_total`."""
    family = Family(Kind.COUNTER, name, text, labels)
    if value is not None:
        family.add((), value)
    return family


def histogram(name: str, text: str, labels: Sequence[str] = ()) -> Family:
    """A histogram."""
    return Family(Kind.HISTOGRAM, name, text, labels)


class HistogramCounts:
    """Observations counted by bucket. Counts are plain numbers, written at the scrape."""

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

    def after(self, values: Iterable[float]) -> "HistogramCounts":
        """These observations and further ones."""
        found = HistogramCounts(self._bounds)
        found._counts, found._total = self._counts.copy(), self._total
        for value in values:
            found.observe(value)
        return found

    def add_to(self, family: Family, labels: Sequence[str] = ()) -> None:
        """Add these observations to a family, under these values of its labels."""
        bounds = (*map(number, self._bounds), "+Inf")
        family.add_histogram(labels, bounds, tuple(accumulate(self._counts)), self._total)


class Collector(Protocol):
    """A part of the process with metric families."""

    def condition(self) -> object:
        """All that the families depend on, to be compared with that of the scrape before."""
        ...

    def families(self) -> Iterable[Family]:
        """The families at this moment."""
        ...


class CollectorBlocks:
    """The families of a collector as one block, written again where its condition changed."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._kept: dict[Format, tuple[object, Block]] = {}

    def of(self, form: Format) -> Block:
        """The block in the format `form`."""
        condition, kept = self._collector.condition(), self._kept.get(form)
        if kept is None or kept[0] != condition:
            text = "".join([family.text(form) for family in self._collector.families()])
            write = block if len(text) > _SMALL else stored
            kept = self._kept[form] = (condition, write(text.encode()))
        return kept[1]


T = TypeVar("T")


class ItemFamily(Generic[T]):
    """A family with samples of many items, in blocks: those of items that did not change are kept."""

    def __init__(self, new: Callable[[], Family], add: Callable[[Family, T], None]) -> None:
        """`new` returns the family without samples; `add` adds those of one item."""
        self._new, self._add = new, add
        self._heads = {form: block(new().head(form).encode()) for form in Format}
        self._cache = BlockCache[T](self._write, keep_text=TEXT_KEPT)

    def blocks(
        self, groups: Iterable[tuple[Hashable, Sequence[T]]], form: Format = Format.TEXT
    ) -> list[Block]:
        """The blocks of the family; groups as in BlockCache.of."""
        return [self._heads[form], *self._cache.of(groups)]

    def _write(self, items: Sequence[T]) -> bytes:
        family = self._new()
        for item in items:
            self._add(family, item)
        return family.lines().encode()
