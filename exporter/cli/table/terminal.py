"""What the output is: how wide, and whether colours are shown."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TextIO

_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Look:
    """`terminal`: somebody reads along. `room` is the columns there are (None: as many as it takes)."""

    terminal: bool = False
    colour: bool = False
    room: int | None = None


def look(out: TextIO, environment: Mapping[str, str]) -> Look:
    """How to write on `out`."""
    terminal = out.isatty()
    return Look(terminal, colours(terminal=terminal, environment=environment), _room(out, environment))


def colours(*, terminal: bool, environment: Mapping[str, str]) -> bool:
    """Whether colours are wanted: https://no-color.org, https://bixense.com/clicolors."""
    if environment.get("NO_COLOR"):
        return False
    if environment.get("CLICOLOR_FORCE", "0") not in {"", "0"}:
        return True
    return terminal and environment.get("TERM") != "dumb" and environment.get("CLICOLOR") != "0"


def _room(out: TextIO, environment: Mapping[str, str]) -> int | None:
    if not out.isatty():
        return None
    told = environment.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and 0 < int(told[:6]) <= _LIMIT:
        return int(told)
    try:
        columns = os.get_terminal_size(out.fileno()).columns
    except (OSError, ValueError):
        return 80
    # A terminal that does not know its size says 0.
    return columns or 80
