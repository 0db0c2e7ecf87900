"""Generates docs/flags.md from the commands: `cd tests && python -m harness.flags_reference` writes it."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from devicelens import main

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "flags.md"
_COMMANDS: Final = ("exporter", "plugin")
_HEAD: Final = """\
# Flags

Flags of the two long-running commands, generated from the code; for the others see
[command line](command-line.md). Every flag has an environment variable: `--poll.interval` is
`DEVICELENS_POLL_INTERVAL`. A flag on the command line takes precedence. Durations are `250ms`, `5s`, or
`1h30m`, sizes bytes or `64MiB`. An invalid value ends the process with exit status 2.
"""


def document() -> str:
    """The whole page."""
    rows = {name: _rows(name) for name in _COMMANDS}
    common = [row for row in rows["exporter"] if row in rows["plugin"]]
    own = {f"`devicelens {name}`": [row for row in rows[name] if row not in common] for name in _COMMANDS}
    sections = (_section(title, found) for title, found in {"Both": common, **own}.items())
    return "\n".join((_HEAD, *sections)).rstrip() + "\n"


def _section(title: str, rows: Sequence[str]) -> str:
    return "\n".join((f"## {title}", "", "| flag | default | meaning |", "|---|---|---|", *rows, ""))


def _rows(name: str) -> list[str]:
    command = main.get_command(click.Context(main), name)
    if command is None:
        raise LookupError(name)
    context = click.Context(command, info_name=name)
    options = [param for param in command.params if isinstance(param, click.Option)]
    return [_row(option, context) for option in options if option.opts[0] != "--help"]


def _row(option: click.Option, context: click.Context) -> str:
    shown = option.show_default if isinstance(option.show_default, str) else None
    extra = option.get_help_extra(context).get("default")
    default = shown or (extra if extra and shown is None else "")
    # A file name or an address is set as code, a description such as (in memory) is not.
    cell = "" if not default else default.strip("()") if default.startswith("(") or shown else f"`{default}`"
    kind = (
        "\\|".join(option.type.choices)
        if isinstance(option.type, click.Choice)
        else option.make_metavar(context)
    )
    form = option.opts[0] if option.is_flag else f"{option.opts[0]} {kind.strip('[]')}"
    words = " ".join((option.help or "").split()).replace("|", "\\|")
    # The list of presets is in docs/configuration.md.
    words = re.sub(r": (?:[a-z-]+, ){9,}[a-z-]+\.", ": see [presets](configuration.md#presets).", words)
    return f"| `{form}` | {cell} | {words} |"


if __name__ == "__main__":
    # Defaults that depend on the environment are not those of whoever writes the page.
    for variable in [name for name in os.environ if name.startswith("DEVICELENS_")]:
        del os.environ[variable]
    sys.stdout.write("written\n" if DOCUMENT.write_text(document()) else "")
