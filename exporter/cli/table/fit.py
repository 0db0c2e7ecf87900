"""Which columns of a table there is room for, and how much of each. Pure.

First some columns get their short form, then texts are shortened to what still tells them apart, then columns
are left out, the least needed first. What an id or a pod's name is known by is at its end, so that stays.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from exporter.cli.table.width import head, tail, width

GAP: Final = 2
"""Columns between two."""
_TINY: Final = 4
"""Columns to which a text is shortened at the utmost."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, how soon it is left out (0: never; else the larger the sooner), and the columns to
    which its texts may be shortened (0: not at all).
    """

    name: str
    drop: int = 0
    least: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """A text, how it may be said in short ("": not), and its style's name."""

    text: str
    short: str = ""
    style: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Fitted:
    """The table as it is shown. `left_out` are columns' names; `shortened`: some texts are not whole."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: tuple[str, ...] = ()
    shortened: bool = False

    @property
    def cut(self) -> bool:
        """Whether anything is missing."""
        return bool(self.left_out) or self.shortened


def whole(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> Fitted:
    """All of it, as wide as it is."""
    return Fitted(tuple(columns), tuple(tuple(row) for row in rows))


def fit(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], room: int) -> Fitted:
    """As much as `room` columns hold."""
    fitting = _Fitting(columns, rows, room)
    fitting.say_in_short()
    fitting.leave_out()
    return fitting.shortened()


class _Fitting:
    """A table on its way to being narrower."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], room: int) -> None:
        self._columns = columns
        self._cells = [list(row) for row in rows]
        self._room = room
        self._kept = list(range(len(columns)))
        self._natural = [self._width(i) for i in self._kept]
        self._lost = False

    def _width(self, i: int) -> int:
        """Columns that a column takes as it is."""
        widest = max((width(row[i].text) for row in self._cells), default=0)
        return max(width(self._columns[i].name), widest)

    def _least(self, i: int) -> int:
        column = self._columns[i]
        return (
            min(self._natural[i], max(column.least, width(column.name))) if column.least else self._natural[i]
        )

    def _needs(self, widths: Sequence[int]) -> int:
        return sum(widths) + GAP * (len(self._kept) - 1)

    def say_in_short(self) -> None:
        """Use short forms, from the right, until it fits."""
        for i in reversed(self._kept):
            if self._needs(self._natural) <= self._room:
                return
            if any(row[i].short for row in self._cells):
                self._lost = True
                for row in self._cells:
                    row[i] = Cell(row[i].short or row[i].text, "", row[i].style)
                self._natural[i] = self._width(i)

    def leave_out(self) -> None:
        """Leave columns out until the rest fits, each as short as it may be."""
        while self._needs([self._least(i) for i in self._kept]) > self._room:
            droppable = [i for i in self._kept if self._columns[i].drop]
            if not droppable:
                return
            self._kept.remove(max(droppable, key=lambda i: self._columns[i].drop))

    def shortened(self) -> Fitted:
        """The rest, shortened as far as it must be."""
        kept = self._kept
        least = [self._least(i) for i in kept]
        if self._needs(least) > self._room:
            least = [min(one, _TINY) for one in least]
        room = self._room - GAP * (len(kept) - 1)
        shown = [[row[i] for i in kept] for row in self._cells]
        names = [self._columns[i] for i in kept]
        for at, given in enumerate(_shared([self._natural[i] for i in kept], least, room)):
            if given < self._natural[kept[at]]:
                words = shorten((row[at].text for row in shown), given)
                self._lost |= any(text != word for text, word in words.items())
                for row in shown:
                    row[at] = Cell(words[row[at].text], "", row[at].style)
                if width(names[at].name) > given:
                    names[at] = replace(names[at], name=head(names[at].name, given))
        out = tuple(column.name for i, column in enumerate(self._columns) if i not in kept)
        return Fitted(tuple(names), tuple(map(tuple, shown)), out, self._lost)


def _shared(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths that add up to `room` at most: the widest give way first."""
    found = list(natural)
    over = sum(found) - room
    while over > 0:
        giving = [i for i in range(len(found)) if found[i] > least[i]]
        if not giving:
            break
        most = max(found[i] for i in giving)
        widest = [i for i in giving if found[i] == most]
        following = max([found[i] for i in giving if found[i] < most] + [least[i] for i in widest], default=0)
        step = max(1, min(most - following, over // len(widest)))
        for i in widest:
            taken = min(step, over, found[i] - least[i])
            found[i] -= taken
            over -= taken
    return found


def shorten(texts: Iterable[str], room: int) -> dict[str, str]:
    """Each text within `room` columns, by what is at its end and a little of its beginning: in the way that
    leaves as many of them different as there can be.
    """
    known = list(dict.fromkeys(texts))
    long = [text for text in known if width(text) > room]
    best: dict[str, str] = {}
    if not long:
        return {text: text for text in known}
    for end in _ends(room):
        found = {text: _cut(text, room, end) if width(text) > room else text for text in known}
        if not best or len(set(found.values())) > len(set(best.values())):
            best = found
        if len(set(best.values())) == len(known):
            break
    return best


def _ends(room: int) -> list[int]:
    """How much of the end to keep, the most pleasing first."""
    half = max(1, (room - 1) * 3 // 5)
    others = sorted(range(room), key=lambda end: abs(end - half))
    return others[:24]


def _cut(text: str, room: int, end: int) -> str:
    behind = tail(text, end)
    return f"{head(text, room - 1 - width(behind))}…{behind}"
