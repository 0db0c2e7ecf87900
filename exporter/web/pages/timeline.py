"""Holdings over time as a drawing: where each bar, label, tick and gap is. Pure; timeline.html draws it.

Across, everything is a share of the width, so that a drawing fits any screen while its text keeps its size;
down, everything is in pixels. What is not known is drawn as not known: a bar is solid only where looks
before and after show it, and hatched between the last look without it and the first with it.

Where a time axis has its ticks, and what they say. Pure. All times are unix, shown in UTC.

Times as places across a drawing, in percent of its width. Pure.

Where a bar's name is written: in it, beside it, or nowhere, by how wide the drawing is. Pure.

The server does not know how wide a screen is. So a place is found for each of a few widths, and the style
shows the label that belongs to the present one (facts.css has the same widths).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from unicodedata import east_asian_width

_DAY: Final = 86400
_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200),
    *(_DAY, 2 * _DAY, 5 * _DAY, 10 * _DAY, 20 * _DAY, 50 * _DAY, 100 * _DAY, 200 * _DAY),
    *(500 * _DAY, 1000 * _DAY, 5000 * _DAY),
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MOST: Final = 64
"""Ticks at all, of a range that no step suits."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A time on the axis, and what is written at it. `whole`: a day begins."""

    at: float
    label: str
    whole: bool


def ticks(since: float, until: float, most: int) -> tuple[Tick, ...]:
    """Round times from `since` to `until`, at most `most`."""
    span = until - since
    if not span > 0 or most < 1:
        return ()
    step = next((step for step in _STEPS if span / step <= most), int(span // most) + 1)
    first = -(-since // step)
    found: list[Tick] = []
    for number in range(min(most, _MOST)):
        at = (first + number) * step
        if at > until:
            break
        found.append(_tick(at, step))
    return tuple(found)


def _tick(at: float, step: int) -> Tick:
    then = datetime.fromtimestamp(at, UTC)
    midnight = at % _DAY == 0
    if midnight:
        year = f" {then.year}" if step >= 100 * _DAY else ""
        return Tick(at, f"{then.day} {_MONTHS[then.month - 1]}{year}", whole=True)
    return Tick(at, f"{then:%H:%M:%S}" if step < 60 else f"{then:%H:%M}", whole=False)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the width, in percent, as text."""

    x: str
    width: str


class Scale:
    """Times as percent of the width."""

    def __init__(self, since: float, until: float) -> None:
        self.since, self.until = since, max(until, since + 1e-3)

    def at(self, time: float) -> float:
        """Where a time is, within the drawing."""
        share = (time - self.since) / (self.until - self.since)
        return 100.0 * min(1.0, max(0.0, share))

    def inside(self, time: float) -> bool:
        """Whether a time is in the range."""
        return self.since <= time <= self.until

    def span(self, first: float, last: float) -> Span:
        """The part between two times."""
        x, end = self.at(first), self.at(last)
        return Span(percent(x), percent(max(0.0, end - x)))


def percent(value: float) -> str:
    """`12.5%`, to a hundred-thousandth of the width."""
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


WIDTHS: Final = (300, 520, 760, 1040)
"""Pixels from which on a drawing counts as so wide; a narrower one counts as the first."""

_CHARACTER: Final = 7.0
"""Pixels of a character of the label's type, amply."""
_PADDING: Final = 14.0
"""Pixels around a label."""
_FEWEST: Final = 4
"""Characters of a name that is cut."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A bar, in percent of the width, and its names, the fuller one first."""

    x: float
    end: float
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """A name, `x` in percent with `dx` pixels beside it, hanging there by `anchor` (start or end), for the
    widths whose classes are `shown`; `inside` its bar or beside it.
    """

    text: str
    x: str
    dx: int
    anchor: str
    inside: bool
    shown: str


@dataclass(frozen=True, slots=True)
class _Place:
    text: str
    x: float
    dx: int
    anchor: str
    inside: bool


def width_of(text: str) -> float:
    """Pixels that a text takes, amply."""
    return sum(2.0 if east_asian_width(c) in {"W", "F"} else 1.0 for c in text) * _CHARACTER + _PADDING


def place(lane: Sequence[Piece]) -> list[tuple[Label, ...]]:
    """The labels of each bar of a lane, which are in order and do not overlap."""
    found: list[dict[_Place, list[int]]] = [{} for _ in lane]
    for number, width in enumerate(WIDTHS):
        for piece, chosen in enumerate(_placed(lane, width)):
            if chosen is not None:
                found[piece].setdefault(chosen, []).append(number)
    return [tuple(_label(chosen, numbers) for chosen, numbers in places.items()) for places in found]


def _label(chosen: _Place, numbers: list[int]) -> Label:
    shown = " ".join(f"w{number}" for number in numbers)
    return Label(chosen.text, percent(chosen.x), chosen.dx, chosen.anchor, chosen.inside, shown)


def _placed(lane: Sequence[Piece], width: int) -> list[_Place | None]:
    found: list[_Place | None] = []
    taken = 0.0
    for number, piece in enumerate(lane):
        x, end = piece.x * width / 100, piece.end * width / 100
        after = lane[number + 1].x * width / 100 if number + 1 < len(lane) else float(width)
        chosen, reached = None, end
        for name in piece.names:
            room = width_of(name)
            if room <= end - x:
                chosen = _Place(name, piece.x, 7, "start", inside=True)
            elif room <= after - end:
                chosen, reached = _Place(name, piece.end, 5, "start", inside=False), end + room
            elif room <= x - taken:
                chosen = _Place(name, piece.x, -5, "end", inside=False)
            if chosen is not None:
                break
        if chosen is None and piece.names:
            chosen = _cut(piece, end - x)
        taken = max(taken, reached)
        found.append(chosen)
    return found


def _cut(piece: Piece, room: float) -> _Place | None:
    """As much of the shortest name as is in its bar, where that is enough to be told by."""
    fitting = int((room - _PADDING) / _CHARACTER) - 1
    name = piece.names[-1]
    while fitting >= _FEWEST and width_of(f"{name[:fitting]}…") > room:
        fitting -= 1
    if fitting < _FEWEST:
        return None
    return _Place(f"{name[:fitting]}…", piece.x, 7, "start", inside=True)


BARS: Final = 500
"""Bars of one drawing: those that begin latest; the table below has what is left out."""
LANES: Final = 60
"""Rows of bars of one drawing."""

_LANE: Final = 28
_BAR: Final = 20
_NAME: Final = 20
_AXIS: Final = 26
_TOP: Final = 4
_APART: Final = 0.35
"""Percent of the width that a bar takes at least where it is put beside others: it is drawn with an edge."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One holding to be drawn, in unix times.

    It began after `earliest` (None: nobody knows) and was held from `since` to `until` by what was seen, and
    it was over by `latest`. Where `since` is later than `until` no look ever showed it for sure. `group` is
    the row that it goes to. `state` is held, ended or doubt.
    """

    key: str
    group: str
    name: str
    short: str
    href: str
    title: str
    detail: str
    earliest: float | None
    since: float
    until: float
    latest: float
    state: str

    def bounds(self, since: float, until: float) -> tuple[float, float]:
        """When it may have been held at all, within a range."""
        first = since if self.earliest is None else max(self.earliest, since)
        return first, max(first, min(self.latest, until))


@dataclass(frozen=True, slots=True)
class Named:
    """A row of bars: its name as it is shown, and where it leads; "" for a row that needs none."""

    key: str
    name: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True)
class Silent:
    """A time at which nobody looked, and the reason in words; None is without end."""

    since: float | None
    until: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One holding: `y` in pixels, what is sure (None: nothing), what is not, its `edges` in percent."""

    key: str
    href: str
    title: str
    detail: str
    state: str
    y: int
    whole: Span
    sure: Span | None
    unsure: tuple[Span, ...]
    edges: tuple[str, ...]
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """The name of a row."""

    name: str
    href: str
    y: int
    line: int


@dataclass(frozen=True, slots=True)
class Shade:
    """A time at which nobody looked."""

    span: Span
    why: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A tick: where in percent, how its label hangs on it (start, middle, end), and what it says."""

    x: str
    anchor: str
    label: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """The drawing. `foot` is the line of the axis; `now` and `mark` in percent, "" where they
    are not in the range.
    """

    height: int
    foot: int
    bars: tuple[Bar, ...]
    headers: tuple[Header, ...]
    shades: tuple[Shade, ...]
    wide: tuple[Mark, ...]
    narrow: tuple[Mark, ...]
    now: str
    mark: str
    left_out: int


def timeline(
    stretches: Iterable[Stretch],
    groups: Sequence[Named],
    silent: Iterable[Silent] = (),
    *,
    since: float,
    until: float,
    now: float,
    mark: float | None = None,
) -> Timeline:
    """The drawing of `stretches` from `since` to `until`, in the rows `groups`, seen at `now`; with a `mark`
    at a moment. All in unix time.
    """
    scale = Scale(since, until)
    within = [s for s in stretches if _overlaps(s, scale)]
    within.sort(key=lambda s: (s.bounds(scale.since, scale.until)[0], s.key))
    kept = within[-BARS:]
    by_group: dict[str, list[Stretch]] = {}
    for stretch in kept:
        by_group.setdefault(stretch.group, []).append(stretch)
    bars: list[Bar] = []
    headers: list[Header] = []
    y, lanes = _TOP, 0
    for group in groups:
        mine = by_group.get(group.key, [])
        if not mine:
            continue
        packed = _packed(mine, scale)
        if lanes and lanes + len(packed) > LANES:
            break
        if group.name:
            headers.append(Header(group.name, group.href, y + _NAME - 6, y))
            y += _NAME
        for lane in packed[: LANES - lanes]:
            bars.extend(_bars(lane, scale, y))
            y += _LANE
        lanes += len(packed)
    foot = y + 2
    return Timeline(
        height=foot + _AXIS,
        foot=foot,
        bars=tuple(bars),
        headers=tuple(headers),
        shades=tuple(_shade(s, scale) for s in silent if _seen(s, scale)),
        wide=_marks(scale, 9),
        narrow=_marks(scale, 3),
        now=percent(scale.at(now)) if scale.inside(now) else "",
        mark=percent(scale.at(mark)) if mark is not None and scale.inside(mark) else "",
        left_out=len(within) - len(bars),
    )


def _overlaps(stretch: Stretch, scale: Scale) -> bool:
    return (stretch.earliest is None or stretch.earliest <= scale.until) and stretch.latest >= scale.since


def _extent(stretch: Stretch, scale: Scale) -> tuple[float, float]:
    first, last = stretch.bounds(scale.since, scale.until)
    x, end = scale.at(first), scale.at(last)
    return x, max(end, min(x + _APART, 100.0))


def _packed(stretches: list[Stretch], scale: Scale) -> list[list[Stretch]]:
    """Lanes in which no two overlap, each in order of time; the first that is free takes the next."""
    lanes: list[list[Stretch]] = []
    ends: list[float] = []
    for stretch in stretches:
        x, end = _extent(stretch, scale)
        free = next((i for i, last in enumerate(ends) if last <= x + 1e-9), None)
        if free is None:
            lanes.append([])
            ends.append(0.0)
            free = len(lanes) - 1
        lanes[free].append(stretch)
        ends[free] = end
    return lanes


def _bars(lane: list[Stretch], scale: Scale, y: int) -> list[Bar]:
    pieces = [Piece(*_extent(stretch, scale), (stretch.name, stretch.short)) for stretch in lane]
    return [_bar(stretch, scale, y, labels) for stretch, labels in zip(lane, place(pieces), strict=True)]


def _bar(stretch: Stretch, scale: Scale, y: int, labels: tuple[Label, ...]) -> Bar:
    first, last = stretch.bounds(scale.since, scale.until)
    sure_from, sure_to = max(stretch.since, first), min(stretch.until, last)
    unsure: list[tuple[float, float]]
    if sure_from <= sure_to:
        sure = scale.span(sure_from, sure_to)
        unsure = [(first, sure_from), (sure_to, last)]
    else:
        sure, unsure = None, [(first, last)]
    starts = stretch.earliest is not None and scale.inside(first) and first > scale.since
    ends = stretch.state != "held" and stretch.latest <= scale.until
    edges = [first] if starts or first == last else []
    if ends and scale.at(last) - scale.at(first) > _APART:
        edges.append(last)
    return Bar(
        key=stretch.key,
        href=stretch.href,
        title=stretch.title,
        detail=stretch.detail,
        state=stretch.state,
        y=y,
        whole=scale.span(first, last),
        sure=sure,
        unsure=tuple(scale.span(a, b) for a, b in unsure if scale.at(b) - scale.at(a) >= 0.02),
        edges=tuple(percent(scale.at(edge)) for edge in edges),
        labels=labels,
    )


def _seen(silent: Silent, scale: Scale) -> bool:
    return (silent.since is None or silent.since < scale.until) and (
        silent.until is None or silent.until > scale.since
    )


def _shade(silent: Silent, scale: Scale) -> Shade:
    first = scale.since if silent.since is None else silent.since
    last = scale.until if silent.until is None else silent.until
    return Shade(scale.span(first, last), silent.why)


def _marks(scale: Scale, most: int) -> tuple[Mark, ...]:
    return tuple(_mark(tick, scale.at(tick.at)) for tick in ticks(scale.since, scale.until, most))


def _mark(tick: Tick, x: float) -> Mark:
    anchor = "start" if x < 4 else "end" if x > 96 else "middle"
    return Mark(percent(x), anchor, tick.label, tick.whole)
