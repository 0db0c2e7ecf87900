"""Charts of how cost grows, as SVG files of their own: logarithmic axes, light and dark. Pure.

On logarithmic axes, proportional growth is a straight line of slope one; a line that bends upwards grows
faster.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 180, 36, 44
_LINES: Final = 6
"""As many lines as there are colours; the last is the floor's."""
_STYLE: Final = """\
text { font: 12px system-ui, sans-serif; fill: #4a5463 }
.title { font-weight: 600; fill: #14181f }
.grid { stroke: #d9dee6 } .axis { stroke: #7b8696 }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round }
.floor polyline { stroke-dasharray: 5 4 }
.c0 polyline { stroke: #1d5fc4 } .c0 circle { fill: #1d5fc4 }
.c1 polyline { stroke: #b3261e } .c1 circle { fill: #b3261e }
.c2 polyline { stroke: #1b7f3b } .c2 circle { fill: #1b7f3b }
.c3 polyline { stroke: #8a5a00 } .c3 circle { fill: #8a5a00 }
.c4 polyline { stroke: #6a3fb5 } .c4 circle { fill: #6a3fb5 }
.c5 polyline { stroke: #5d6878 } .c5 circle { fill: #5d6878 }
@media (prefers-color-scheme: dark) {
text { fill: #b3bccb } .title { fill: #eef2f8 } .grid { stroke: #2f3745 } .axis { stroke: #8590a3 }
.c0 polyline { stroke: #7cb0ff } .c0 circle { fill: #7cb0ff }
.c1 polyline { stroke: #ff8a80 } .c1 circle { fill: #ff8a80 }
.c2 polyline { stroke: #6fd08c } .c2 circle { fill: #6fd08c }
.c3 polyline { stroke: #e0b050 } .c3 circle { fill: #e0b050 }
.c4 polyline { stroke: #b79bff } .c4 circle { fill: #b79bff }
.c5 polyline { stroke: #9aa5b8 } .c5 circle { fill: #9aa5b8 }
}
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its points (x and y above 0, in order of x); a `floor` is dashed."""

    name: str
    points: Sequence[tuple[float, float]]
    floor: bool = False


@dataclass(frozen=True, slots=True)
class _Scale:
    """From a value to its place: `start` at the low end, `end` at the high one."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where `value` is drawn."""
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round numbers between both ends: each power of ten, and where those are few 2 and 5 of each too."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        few = len(powers) <= 4
        every = [step * 10.0**power for power in powers for step in ((1, 2, 5) if few else (1,))]
        return [tick for tick in every if self.low <= tick <= self.high]


def chart(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    """The chart as an SVG document. `across` and `up` name the axes with their units.

    Raises ValueError for no point at all, for one that is not above 0, and for more lines than colours.
    """
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    if not xs or min(*xs, *ys) <= 0 or len(lines) > _LINES:
        raise ValueError(
            f"expected 1 to {_LINES} lines of points above 0, found {len(lines)} with {xs}, {ys}"
        )
    x, y = _scale(xs, _LEFT, _WIDTH - _RIGHT), _scale(ys, _HEIGHT - _BOTTOM, _TOP)
    middle, beside = (x.start + x.end) / 2, f"translate(14 {(y.start + y.end) / 2:.1f}) rotate(-90)"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{_STYLE}</style>",
        f'<text class="title" x="{_LEFT}" y="20">{escape(title)}</text>',
        *_grid(x, y),
        f'<text x="{middle:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>',
        f'<text transform="{beside}" text-anchor="middle">{escape(up)}</text>',
        *_drawn(x, y, lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _scale(values: Sequence[float], start: float, end: float) -> _Scale:
    low, high = min(values), max(values)
    return _Scale(low / 1.15, high * 1.15, start, end)


def _grid(x: _Scale, y: _Scale) -> Iterator[str]:
    for tick in x.ticks():
        at = x.at(tick)
        yield f'<path class="grid" d="M{at:.1f} {y.start:.1f}V{y.end:.1f}"/>'
        yield f'<text x="{at:.1f}" y="{y.start + 16:.1f}" text-anchor="middle">{_number(tick)}</text>'
    for tick in y.ticks():
        at = y.at(tick)
        yield f'<path class="grid" d="M{x.start:.1f} {at:.1f}H{x.end:.1f}"/>'
        yield f'<text x="{x.start - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
    yield f'<path class="axis" fill="none" d="M{x.start:.1f} {y.end:.1f}V{y.start:.1f}H{x.end:.1f}"/>'


def _drawn(x: _Scale, y: _Scale, lines: Sequence[Line]) -> Iterator[str]:
    # Names stand beside the ends of their lines, apart from each other.
    wanted = {number: y.at(line.points[-1][1]) for number, line in enumerate(lines)}
    places = dict(wanted)
    last = -math.inf
    for number in sorted(wanted, key=wanted.__getitem__):
        last = places[number] = max(wanted[number], last + 15)
    over = max(0.0, last - y.start)
    for number, line in enumerate(lines):
        points = " ".join(f"{x.at(one):.1f},{y.at(other):.1f}" for one, other in line.points)
        kind = "c5 floor" if line.floor else f"c{number}"
        yield f'<g class="{kind}"><polyline points="{points}"/>'
        for one, other in line.points:
            words = escape(f"{line.name}: {_number(one)}, {_number(other)}")
            yield f'<circle cx="{x.at(one):.1f}" cy="{y.at(other):.1f}" r="3"><title>{words}</title></circle>'
        place = places[number] - over
        yield f'<text x="{x.end + 8:.1f}" y="{place + 4:.1f}">{escape(line.name)}</text></g>'


def _number(value: float) -> str:
    """Three digits, and no power of ten for what people write without."""
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"
