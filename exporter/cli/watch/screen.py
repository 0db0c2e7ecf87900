"""The table, redrawn in place on a terminal."""

from collections.abc import Callable
from typing import Final, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from exporter.cli.select import Answer, Question
from exporter.cli.show import columns, rows
from exporter.cli.table.draw import cut, lines, painted
from exporter.cli.table.fit import Cell, Column, Fitted, fit, whole
from exporter.cli.table.terminal import Look
from exporter.views.wording import clock_time, counted
from runtime.text import visible

_MARKED: Final = 15.0
"""Seconds for which a change is marked."""
_MARK: Final = Column(" ")
_TIMES: Final = frozenset({"SINCE", "FIRST SEEN"})


class Screen:
    """Shows answers to `question` on `out`. What changed is marked with a star for a while."""

    def __init__(
        self,
        out: TextIO,
        look: Callable[[], Look],
        question: Question,
        *,
        wide: bool,
        clock: Callable[[], float],
        colour: bool,
    ) -> None:
        self._look = look
        self._question = question
        self._wide = wide
        self._clock = clock
        self._answer: Answer | None = None
        self._at = 0.0
        self._why = ""
        self._notes: tuple[str, ...] = ()
        self._known: dict[tuple[str, ...], float] = {}
        self._console = Console(
            file=out, force_terminal=True, no_color=not colour, highlight=False, markup=False, emoji=False
        )
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            screen=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start()

    def answered(self, answer: Answer) -> None:
        """There is an answer."""
        first = self._answer is None
        self._answer, self._at, self._why = answer, self._clock(), ""
        present = set(self._keys(answer))
        self._known = {key: self._known.get(key, 0.0 if first else self._at) for key in sorted(present)}
        self.tick()

    def lost(self, why: str) -> None:
        """It could not be asked: what was told last stays, and is said to be old."""
        self._why = why
        self.tick()

    def said(self, text: str) -> None:
        """Something should be known."""
        self._notes = (text,)
        self.tick()

    def tick(self) -> None:
        """Draw anew: ages, marks and the terminal's size change by themselves."""
        look = self._look()
        self._live.update(Group(*map(_text, self._drawn(look))), refresh=True)

    def close(self) -> None:
        """It is over: the table stays, and the cursor is there again."""
        self._live.stop()

    def _drawn(self, look: Look) -> list[str]:
        room, height = self._console.width, self._console.height
        first = self._status(look)
        notes = (*self._notes, *(self._answer.notes if self._answer is not None else ()))
        above = [first, *(painted(visible(note, room), "perhaps", look) for note in notes[:3])]
        if self._answer is None:
            return above
        shown = self._table(self._answer, look)
        table = list(lines(shown, look))
        missing = cut(shown, look)
        below = [painted(visible(missing, room), "dim", look)] if missing else []
        # The cursor needs a line of its own.
        free = max(2, height - len(above) - len(below) - 1)
        if len(table) > free:
            hidden = len(table) - free + 1
            words = f"… {counted(hidden, 'row')} more: a taller terminal, or a narrower question, shows them"
            table = [*table[: free - 1], painted(words, "dim", look)]
        return [*above, *table, *below]

    def _table(self, answer: Answer, look: Look) -> Fitted:
        now = self._clock()
        cells = rows(answer, self._question, wide=self._wide)
        marked = [
            (Cell("*" if now - self._known.get(key, now) < _MARKED else "", style="changed"), *row)
            for key, row in zip(self._keys(answer), cells, strict=True)
        ]
        names = (_MARK, *columns(answer, wide=self._wide))
        return whole(names, marked) if look.room is None else fit(names, marked, look.room)

    def _keys(self, answer: Answer) -> list[tuple[str, ...]]:
        """What each row is known by: everything but how long it is held, which changes by itself."""
        times = {i for i, column in enumerate(columns(answer, wide=True)) if column.name in _TIMES}
        return [
            tuple(cell.text for i, cell in enumerate(row) if i not in times)
            for row in rows(answer, self._question, wide=True)
        ]

    def _status(self, look: Look) -> str:
        answer = self._answer
        if answer is None:
            return painted("waiting for the first answer", "dim", look)
        at = f"{clock_time(self._at, self._clock())}Z"
        if self._why:
            return painted(visible(f"as of {at}, for now: {self._why}; trying again", 500), "unhealthy", look)
        freshness = {told.document.freshness for told in answer.told} - {"fresh"}
        state = f", {', '.join(sorted(freshness))}" if freshness and not answer.fleet else ""
        held = sum(1 for told in answer.told for device in told.document.devices if device.holders)
        known = sum(len(told.document.devices) for told in answer.told)
        return f"{visible(answer.origin)}: {held} of {counted(known, 'device')} held, as of {at}{state}"


def _text(line: str) -> Text:
    text = Text.from_ansi(line)
    text.no_wrap, text.overflow = True, "crop"
    return text
