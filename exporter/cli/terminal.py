"""Tables on a terminal, drawn by rich, with colours and as wide as the terminal."""

from collections.abc import Mapping, Sequence
from typing import Final, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from exporter.cli.table import Row, coloured
from runtime.text import visible

_ONE_LINE: Final = frozenset({" ", "STATE", "NUMA"})
"""Columns whose texts never continue on the next line."""
_STYLES: Final[Mapping[str, str]] = {
    "unhealthy": "bold red",
    "free": "green",
    "perhaps": "yellow",
    "*": "bold reverse",
}
"""By the cell's text."""
_UNLIMITED: Final = 100_000
"""Columns of an output without a width."""
_LONGEST: Final = 300
"""Characters of a text on a terminal; -o wide and pipes have all."""


def open_console(out: TextIO, *, unlimited: bool = False) -> Console:
    """A console for `out`, as wide as the terminal; a pipe and an `unlimited` table have any width."""
    terminal = out.isatty()
    return Console(
        file=out,
        force_terminal=terminal,
        color_system="standard" if coloured(out) else None,
        width=None if terminal and not unlimited else _UNLIMITED,
        highlight=False,
        markup=False,
        emoji=False,
    )


def drawn_lines(
    names: Sequence[str], rows: Sequence[Row], out: TextIO, *, unlimited: bool = False
) -> list[str]:
    """The lines of a table for `out`."""
    console = open_console(out, unlimited=unlimited)
    with console.capture() as captured:
        console.print(draw(names, rows, console.width))
    return captured.get().splitlines()


def draw(names: Sequence[str], rows: Sequence[Row], width: int) -> Table:
    """A rich table for a terminal of so many columns."""
    columns = [[name, *(row[i].text for row in rows)] for i, name in enumerate(names)]
    natural = sum(max(map(cell_len, column)) + 2 for column in columns) - 2
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=name in _ONE_LINE, overflow="fold")
    for row in rows:
        shown = [
            cell.text if natural <= width else visible(cell.short or cell.text, _LONGEST) for cell in row
        ]
        table.add_row(*(Text(text, _STYLES.get(text, "")) for text in shown))
    return table
