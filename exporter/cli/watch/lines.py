"""Changes written one by one."""

from collections.abc import Callable
from typing import TextIO

from exporter.cli.select import Answer, Pod
from exporter.cli.table.terminal import Look
from exporter.cli.watch.changes import Memory
from exporter.cli.watch.words import as_json_line, as_line
from exporter.views.wording import rfc3339


class Lines:
    """Writes what changes to `out`, each as soon as it is known; in JSON with `json`."""

    def __init__(
        self,
        out: TextIO,
        look: Look,
        *,
        pod: Pod | None,
        json: bool,
        clock: Callable[[], float],
        tell: Callable[[str], None],
    ) -> None:
        self._out = out
        self._look = look
        self._json = json
        self._clock = clock
        self._tell = tell
        self._memory = Memory(pod)
        self._why = ""
        self._notes: frozenset[str] = frozenset()

    def answered(self, answer: Answer) -> None:
        """There is an answer."""
        if self._why:
            self._tell(f"{answer.origin} answers again")
            self._why = ""
        for note in answer.notes:
            if note not in self._notes:
                self._tell(note)
        self._notes = frozenset(answer.notes)
        now = rfc3339(self._clock())
        for change in self._memory.advance(answer):
            line = (
                as_json_line(change, now)
                if self._json
                else as_line(change, now, self._look, fleet=answer.fleet)
            )
            self._out.write(f"{line}\n")
        self._out.flush()

    def lost(self, why: str) -> None:
        """It could not be asked."""
        if why != self._why:
            self._tell(f"{why}; trying again")
            self._why = why

    def said(self, text: str) -> None:
        """Something should be known."""
        self._tell(text)

    def tick(self) -> None:
        """Time passes."""

    def close(self) -> None:
        """It is over."""
