"""The dictionary of history's file: repeated names as numbers.

A row has the number of a name, or the name itself where the dictionary is full. So the dictionary never has
to forget a name, and its size is bounded.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from exporter.history.rows import DamagedError

TEXTS: Final = 32_768
"""Names in the dictionary."""
CHARACTERS: Final = 1 << 20
"""Characters of all names in the dictionary."""
_SHORTEST: Final = 3
"""Characters of the shortest name for which a number is shorter."""


class Texts:
    """The table `texts`, in memory."""

    def __init__(self, rows: Iterable[Sequence[object]]) -> None:
        """`rows` of numbers and texts. Raises DamagedError."""
        self._texts: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._characters = 0
        self._fresh: list[tuple[int, str]] = []
        for number, text in rows:
            if not isinstance(number, int) or not isinstance(text, str):
                raise DamagedError("a row of texts is invalid")
            self._set(number, text)
        self._next = max(self._texts, default=0) + 1

    def _set(self, number: int, text: str) -> None:
        self._texts[number] = text
        self._numbers[text] = number
        self._characters += len(text)

    def code(self, text: str) -> int | str:
        """What rows have for `text`."""
        return self._numbers.get(text, text)

    def add(self, text: str) -> int | str:
        """The same for a row to be written: `text` gets a number if there is room."""
        number = self._numbers.get(text)
        if number is not None:
            return number
        full = len(self._texts) >= TEXTS or self._characters + len(text) > CHARACTERS
        if full or len(text) < _SHORTEST:
            return text
        number, self._next = self._next, self._next + 1
        self._set(number, text)
        self._fresh.append((number, text))
        return number

    def fresh(self) -> list[tuple[int, str]]:
        """The rows that are not written yet."""
        return self._fresh

    def written(self) -> None:
        """Note that all rows are written."""
        self._fresh = []

    def undo(self) -> None:
        """Forget the rows that are not written: the transaction failed."""
        for number, text in self._fresh:
            del self._texts[number], self._numbers[text]
            self._characters -= len(text)
        self._fresh = []

    def text(self, code: object) -> str:
        """The text of a row's value. Raises DamagedError."""
        if isinstance(code, str):
            return code
        found = self._texts.get(code) if isinstance(code, int) else None
        if found is None:
            raise DamagedError("a row names a text that is not there")
        return found
