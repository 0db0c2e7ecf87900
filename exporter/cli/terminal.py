"""Tables on a terminal, drawn by rich, with colours and as wide as the terminal.

A table that is wider uses short forms. If that is not enough, it loses, in this order and only as needed: the
columns LEFT_OUT_FIRST, the middle of device ids, and the columns LEFT_OUT_LAST. Names of pods stay whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as DrawnTable
from rich.text import Text

from exporter.cli.table import Row, coloured
from runtime.text import shortened, visible

LEFT_OUT_FIRST: Final = ("CONTAINER", "HELD FOR", "UNTIL", "SINCE", "FIRST SEEN")
LEFT_OUT_LAST: Final = ("RESOURCE", "REASON", "EVIDENCE", "TO", "FROM", "KIND", "STATE")
_FLOWING: Final[Mapping[str, int]] = {"REASON": 20, "EVIDENCE": 20}
"""Columns whose texts continue on the next line, and their least widths."""
_ID: Final = "DEVICE"
_ID_LEAST: Final = 16
"""The least width of device ids beside the columns LEFT_OUT_LAST."""
_ID_SHORTEST: Final = 8
_GAP: Final = 2
"""Spaces between two columns."""
_STYLES: Final[Mapping[str, str]] = {
    "unhealthy": "bold red",
    "free": "green",
    "perhaps": "yellow",
    "*": "bold reverse",
}
"""By the cell's text."""
_UNLIMITED: Final = 100_000
"""Columns of an output without a width."""
_LONGEST: Final = 320
"""Characters of a text on a terminal; -o wide and pipes have all. A pod's NAMESPACE/NAME has at most 317."""


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
    names: Sequence[str], rows: Sequence[Row], out: TextIO, *, unlimited: bool = False, headers: bool = True
) -> list[str]:
    """The lines of a table for `out`."""
    console = open_console(out, unlimited=unlimited)
    with console.capture() as captured:
        console.print(draw(names, rows, console.width, headers=headers))
    return captured.get().splitlines()


def draw(names: Sequence[str], rows: Sequence[Row], width: int, *, headers: bool = True) -> DrawnTable:
    """A rich table for a terminal of so many columns."""
    titles = names if headers else [""] * len(names)

    def widest(texts: Sequence[Sequence[str]]) -> list[int]:
        return [max(map(cell_len, (title, *(row[i] for row in texts)))) for i, title in enumerate(titles)]

    texts = [[cell.text for cell in row] for row in rows]
    widths = dict(enumerate(widest(texts)))
    if _needed(widths.values()) > width:
        texts = [[visible(cell.short or cell.text, _LONGEST) for cell in row] for row in rows]
        widths = fitted(names, widest(texts), width)
    table = DrawnTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.show_header = headers
    for i, columns in widths.items():
        table.add_column(titles[i], width=columns, overflow="fold")
    for row in texts:
        shown = [_narrowed(row[i], columns) if names[i] == _ID else row[i] for i, columns in widths.items()]
        table.add_row(*(Text(text, _STYLES.get(text, "")) for text in shown))
    return table


def _needed(widths: Iterable[int]) -> int:
    return sum(columns + _GAP for columns in widths) - _GAP


def fitted(names: Sequence[str], natural: Sequence[int], width: int) -> dict[int, int]:
    """The columns that a terminal of `width` has space for, by index, with their widths. `natural` are the
    widths of their short forms.
    """
    least = {i: min(natural[i], _FLOWING.get(name, natural[i])) for i, name in enumerate(names)}
    place = {name: i for i, name in enumerate(names)}

    def leave_out(columns: Iterable[str]) -> None:
        for name in columns:
            if name in place and _needed(least.values()) > width:
                del least[place[name]]

    def shorten_ids(limit: int) -> None:
        if _ID in place and _needed(least.values()) > width:
            least[place[_ID]] = min(natural[place[_ID]], limit)

    leave_out(LEFT_OUT_FIRST)
    shorten_ids(_ID_LEAST)
    leave_out(LEFT_OUT_LAST)
    shorten_ids(_ID_SHORTEST)
    spare = width - _needed(least.values())
    while spare < 0 and max(least.values()) > 1:
        # Wider than the terminal by themselves: the widest texts continue on the next line.
        least[max(least, key=least.__getitem__)] -= 1
        spare += 1
    for i in sorted(least, key=lambda i: names[i] != _ID):
        more = min(natural[i] - least[i], max(0, spare)) if names[i] == _ID or names[i] in _FLOWING else 0
        least[i] += more
        spare -= more
    return least


def _narrowed(text: str, columns: int) -> str:
    """An id, cut in the middle to so many columns of the terminal."""
    limit = max(columns, 3)  # `a…b`
    while cell_len(cut := shortened(text, limit)) > columns and limit > 3:
        limit -= 1
    return cut
