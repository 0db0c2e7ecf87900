"""Where a bar's name is written: in it, beside it, or nowhere, by how wide the drawing is. Pure.

The server does not know how wide a screen is. So a place is found for each of a few widths, and the style
shows the label that belongs to the present one (facts.css has the same widths).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from unicodedata import east_asian_width

from exporter.web.pages.scale import percent

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
