"""A drawing of holdings over time: the places of bars, labels, ticks and gaps. timeline.html draws it. Pure.

Horizontally everything is a percentage of the width, so that a drawing fits any screen while its text keeps
its size; vertically everything is in pixels. A bar is solid where observations before and after show the
holding, and hatched between the last observation without it and the first with it. All times are unix, shown
in UTC.

The server does not know the width of the screen. So each label has a place for each of a few widths, and the
style sheet shows the one of the present width (facts.css has the same widths).
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final
from unicodedata import east_asian_width

from msgspec import Struct

from exporter.history.coverage import CoverageGap, GapReason

BARS: Final = 500
"""Holdings that begin in one drawing. It also has those that lasted already."""
LANES: Final = 60
"""Lanes of one drawing."""
WIDTHS: Final = (300, 520, 760, 1040)
"""Pixels from which a drawing has each width; a narrower one has the first."""

_DAY: Final = 86400
_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200),
    *(_DAY, 2 * _DAY, 5 * _DAY, 10 * _DAY, 20 * _DAY, 50 * _DAY, 100 * _DAY, 200 * _DAY),
    *(500 * _DAY, 1000 * _DAY, 5000 * _DAY),
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MAX_TICKS: Final = 64
_CHARACTER: Final = 7.0
"""Pixels of a label's character, rounded up."""
_PADDING: Final = 14.0
"""Pixels around a label."""
_FEWEST: Final = 4
"""Characters of a cut name, at least."""
_LANE: Final = 28
_NAME: Final = 20
_AXIS: Final = 26
_TOP: Final = 4
_MIN_WIDTH: Final = 0.35
"""Percent of the width that a bar takes at least."""


class Stretch(Struct, frozen=True):
    """One holding to draw, in unix times.

    It began after `earliest` (None: unknown), was observed from `since` to `until`, and had ended by
    `latest`. Where `since` is after `until`, no observation is certain. `lane` is the key of its lane,
    `names` are the bar's long and short name, `state` is held, ended or doubt.
    """

    key: str
    lane: str
    names: tuple[str, ...]
    href: str
    title: str
    detail: str
    earliest: float | None
    since: float
    until: float
    latest: float
    state: str


class Lane(Struct, frozen=True):
    """A lane of bars: its name ("" for none), and its address."""

    key: str
    name: str = ""
    href: str = ""


class Span(Struct, frozen=True):
    """A part of the width, in percent, as text."""

    x: str
    width: str


class Label(Struct, frozen=True):
    """A name: `x` in percent, `dx` pixels beside it, anchored at its `start` or `end`, `inside` its bar or
    beside it.
    """

    text: str
    x: str
    dx: int
    anchor: str
    inside: bool


class Bar(Struct, frozen=True):
    """One holding: `y` in pixels, the certain part (None: nothing), the uncertain parts, its `edges` in
    percent, and its labels, each with the classes of its widths.
    """

    stretch: Stretch
    y: int
    whole: Span
    sure: Span | None
    unsure: tuple[Span, ...]
    edges: tuple[str, ...]
    labels: tuple[tuple[Label, str], ...]


class Tick(Struct, frozen=True):
    """A time on the axis: its place in percent, its label and the label's anchor. `whole`: a day begins."""

    x: str
    anchor: str
    label: str
    whole: bool


class Timeline(Struct, frozen=True):
    """The drawing. `headers` are lanes and their y; `shades` are gaps and their reasons; `foot` is the y of
    the axis; `wide` and `narrow` are its ticks; `now` and `mark` are in percent, "" outside the range.
    """

    height: int
    foot: int
    bars: tuple[Bar, ...]
    headers: tuple[tuple[Lane, int], ...]
    shades: tuple[tuple[Span, GapReason], ...]
    wide: tuple[Tick, ...]
    narrow: tuple[Tick, ...]
    now: str
    mark: str
    left_out: int


class Scale:
    """Times as percentages of the width."""

    def __init__(self, since: float, until: float) -> None:
        self.since, self.until = since, max(until, since + 1e-3)

    def at(self, time: float) -> float:
        """The place of a time, within the drawing."""
        share = (time - self.since) / (self.until - self.since)
        return 100.0 * min(1.0, max(0.0, share))

    def place(self, time: float | None) -> str:
        """The place of a time as text, "" outside the range."""
        return percent(self.at(time)) if time is not None and self.since <= time <= self.until else ""

    def span(self, first: float, last: float) -> Span:
        """The part between two times."""
        x, end = self.at(first), self.at(last)
        return Span(percent(x), percent(max(0.0, end - x)))

    def bounds(self, stretch: Stretch) -> tuple[float, float]:
        """The part of the range in which a holding may have lasted."""
        first = self.since if stretch.earliest is None else max(stretch.earliest, self.since)
        return first, max(first, min(stretch.latest, self.until))

    def extent(self, stretch: Stretch) -> tuple[float, float]:
        """The place of a bar, at least as wide as is visible."""
        x, end = map(self.at, self.bounds(stretch))
        return x, max(end, min(x + _MIN_WIDTH, 100.0))

    def overlaps(self, since: float | None, until: float | None) -> bool:
        """Whether a time span is partly in the range."""
        return (since is None or since <= self.until) and (until is None or until >= self.since)


def percent(value: float) -> str:
    """`12.5%`, to a hundred-thousandth of the width."""
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


def timeline(
    stretches: Iterable[Stretch],
    lanes: Sequence[Lane],
    gaps: Iterable[CoverageGap] = (),
    *,
    since: float,
    until: float,
    now: float,
    mark: float | None = None,
) -> Timeline:
    """The drawing from `since` to `until`, in `lanes`, with a `mark` at a moment."""
    scale = Scale(since, until)
    within = [s for s in stretches if scale.overlaps(s.earliest, s.latest)]
    within.sort(key=lambda s: (scale.bounds(s)[0], s.key))
    by_lane: dict[str, list[Stretch]] = {}
    for stretch in within:
        by_lane.setdefault(stretch.lane, []).append(stretch)
    bars: list[Bar] = []
    headers: list[tuple[Lane, int]] = []
    y, count = _TOP, 0
    for lane in lanes:
        packed = _packed(by_lane.get(lane.key, []), scale)
        if count and count + len(packed) > LANES:
            break
        if packed and lane.name:
            headers.append((lane, y))
            y += _NAME
        for line in packed[: LANES - count]:
            labels = place_labels([(*scale.extent(stretch), stretch.names) for stretch in line])
            bars.extend(_bar(stretch, scale, y, own) for stretch, own in zip(line, labels, strict=True))
            y += _LANE
        count += len(packed)
    foot = y + 2
    return Timeline(
        height=foot + _AXIS,
        foot=foot,
        bars=tuple(bars),
        headers=tuple(headers),
        shades=tuple(_shade(gap, scale) for gap in gaps if scale.overlaps(gap.since, gap.until)),
        wide=ticks(scale, 9),
        narrow=ticks(scale, 3),
        now=scale.place(now),
        mark=scale.place(mark),
        left_out=len(within) - len(bars),
    )


def _shade(gap: CoverageGap, scale: Scale) -> tuple[Span, GapReason]:
    first = scale.since if gap.since is None else gap.since
    last = scale.until if gap.until is None else gap.until
    return scale.span(first, last), gap.why


def _packed(stretches: list[Stretch], scale: Scale) -> list[list[Stretch]]:
    """Lines without overlaps, each in order of time; each stretch goes to the first line with room."""
    lines: list[list[Stretch]] = []
    ends: list[float] = []
    for stretch in stretches:
        x, end = scale.extent(stretch)
        free = next((i for i, last in enumerate(ends) if last <= x + 1e-9), None)
        if free is None:
            lines.append([])
            ends.append(0.0)
            free = len(lines) - 1
        lines[free].append(stretch)
        ends[free] = end
    return lines


def _bar(stretch: Stretch, scale: Scale, y: int, labels: tuple[tuple[Label, str], ...]) -> Bar:
    first, last = scale.bounds(stretch)
    sure_from, sure_to = max(stretch.since, first), min(stretch.until, last)
    sure, unsure = None, [(first, last)]
    if sure_from <= sure_to:
        sure, unsure = scale.span(sure_from, sure_to), [(first, sure_from), (sure_to, last)]
    starts = stretch.earliest is not None and scale.since < first <= scale.until
    ends = stretch.state != "held" and stretch.latest <= scale.until
    edges = [first] if starts or first == last else []
    if ends and scale.at(last) - scale.at(first) > _MIN_WIDTH:
        edges.append(last)
    return Bar(
        stretch=stretch,
        y=y,
        whole=scale.span(first, last),
        sure=sure,
        unsure=tuple(scale.span(a, b) for a, b in unsure if scale.at(b) - scale.at(a) >= 0.02),
        edges=tuple(percent(scale.at(edge)) for edge in edges),
        labels=labels,
    )


# --- labels ---------------------------------------------------------------------------------------------

Piece = tuple[float, float, tuple[str, ...]]
"""A bar: x and end in percent of the width, and its names, the longer first."""


def place_labels(line: Sequence[Piece]) -> list[tuple[tuple[Label, str], ...]]:
    """The labels of each bar of a line, each with the classes (`w0 w1`) of its widths."""
    found: list[dict[Label, list[str]]] = [{} for _ in line]
    for number, width in enumerate(WIDTHS):
        for piece, label in enumerate(_placed(line, width)):
            if label is not None:
                found[piece].setdefault(label, []).append(f"w{number}")
    return [tuple((label, " ".join(classes)) for label, classes in places.items()) for places in found]


def _placed(line: Sequence[Piece], width: int) -> list[Label | None]:
    """A label for each bar at one width: in the bar, after it, or before it."""
    found: list[Label | None] = []
    taken = 0.0
    for number, (start, stop, names) in enumerate(line):
        x, end = start * width / 100, stop * width / 100
        after = line[number + 1][0] * width / 100 if number + 1 < len(line) else float(width)
        label, reached = None, end
        for name in names:
            room = text_width(name)
            if room <= end - x:
                label = Label(name, percent(start), 7, "start", inside=True)
            elif room <= after - end:
                label, reached = Label(name, percent(stop), 5, "start", inside=False), end + room
            elif room <= x - taken:
                label = Label(name, percent(start), -5, "end", inside=False)
            if label is not None:
                break
        taken = max(taken, reached)
        found.append(label or _cut(names[-1], start, end - x))
    return found


def _cut(name: str, start: float, room: float) -> Label | None:
    """The beginning of a name in its bar, if enough of it has room."""
    fitting = int((room - _PADDING) / _CHARACTER) - 1
    while fitting >= _FEWEST and text_width(f"{name[:fitting]}…") > room:
        fitting -= 1
    if fitting < _FEWEST:
        return None
    return Label(f"{name[:fitting]}…", percent(start), 7, "start", inside=True)


def text_width(text: str) -> float:
    """Pixels of a label, rounded up."""
    return sum(2.0 if east_asian_width(c) in {"W", "F"} else 1.0 for c in text) * _CHARACTER + _PADDING


# --- the axis -------------------------------------------------------------------------------------------


def ticks(scale: Scale, most: int) -> tuple[Tick, ...]:
    """Round times on the axis, at most `most`."""
    span = scale.until - scale.since
    step = next((step for step in _STEPS if span / step <= most), int(span // most) + 1)
    first = -(-scale.since // step)
    times = ((first + number) * step for number in range(min(most, _MAX_TICKS)))
    return tuple(_tick(at, step, scale.at(at)) for at in times if at <= scale.until)


def _tick(at: float, step: int, x: float) -> Tick:
    then, whole = datetime.fromtimestamp(at, UTC), at % _DAY == 0
    label = f"{then:%H:%M:%S}" if step < 60 else f"{then:%H:%M}"
    if whole:
        year = f" {then.year}" if step >= 100 * _DAY else ""
        label = f"{then.day} {_MONTHS[then.month - 1]}{year}"
    anchor = "start" if x < 4 else "end" if x > 96 else "middle"
    return Tick(percent(x), anchor, label, whole)
