"""A table's lines. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from exporter.cli.table.fit import GAP, Cell, Column, Fitted, fit, whole
from exporter.cli.table.terminal import Look
from exporter.cli.table.width import closed, padded, width

_STYLES: Final[Mapping[str, str]] = {
    "head": "1",
    "unhealthy": "1;31",
    "free": "32",
    "perhaps": "33",
    "changed": "1;7",
    "dim": "2",
}
_SAID: Final = 4
"""Columns that are named where they are left out."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], look: Look) -> Fitted:
    """What is shown of a table."""
    return whole(columns, rows) if look.room is None else fit(columns, rows, look.room)


def lines(shown: Fitted, look: Look) -> Iterator[str]:
    """The table's lines, without line ends: names, then rows. No blanks at a line's end."""
    widths = [
        max(width(column.name), max((width(row[i].text) for row in shown.rows), default=0))
        for i, column in enumerate(shown.columns)
    ]
    yield _line([Cell(column.name, style="head") for column in shown.columns], widths, look)
    for row in shown.rows:
        yield _line(row, widths, look)


def _line(cells: Sequence[Cell], widths: Sequence[int], look: Look) -> str:
    last = max((i for i, cell in enumerate(cells) if cell.text), default=0)
    parts: list[str] = []
    for i, cell in enumerate(cells[: last + 1]):
        text = closed(cell.text) if look.terminal else cell.text
        blanks = "" if i == last else padded("", widths[i] - width(cell.text) + GAP)
        parts.append(painted(text, cell.style, look) + blanks)
    return "".join(parts)


def painted(text: str, style: str, look: Look) -> str:
    """`text` in a style, where colours are shown."""
    code = _STYLES.get(style)
    return f"\x1b[{code}m{text}\x1b[0m" if look.colour and code and text else text


def cut(shown: Fitted, look: Look) -> str:
    """What is not shown, in a sentence; "" for nothing."""
    if not shown.cut or look.room is None:
        return ""
    said: list[str] = []
    if shown.left_out:
        names = ", ".join(shown.left_out[:_SAID])
        more = f" and {len(shown.left_out) - _SAID} more" if len(shown.left_out) > _SAID else ""
        said.append(f"{names}{more} {'is' if len(shown.left_out) == 1 else 'are'} left out")
    if shown.shortened:
        said.append("texts are shortened")
    return f"{look.room} columns do not hold it all: {' and '.join(said)}; -o wide shows all"
