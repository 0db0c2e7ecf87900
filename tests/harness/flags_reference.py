"""Generates docs/flags.md from the commands: `cd tests && python -m harness.flags_reference` writes it."""

import os
import sys
from pathlib import Path
from typing import Final

import click

from devicelens import main

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "flags.md"
_COMMANDS: Final = ("exporter", "plugin")
_HEAD: Final = """\
# Flags

Flags of the two long-running commands. Every flag has an environment variable: `--poll.interval` is
`DEVICELENS_POLL_INTERVAL`. A flag on the command line takes precedence. Durations are written as in
Prometheus (`250ms`, `5s`, `1h30m`), sizes in bytes or as `64MiB`. A value that is not valid ends the process
with exit status 2 and one line that says what was found and expected.

The flags of `who`, `history`, and `explain` are in [command line](command-line.md). This page is generated
from the code.
"""


def document() -> str:
    """The whole page."""
    return "\n".join((_HEAD, *(_section(name) for name in _COMMANDS))).rstrip() + "\n"


def _section(name: str) -> str:
    command = main.get_command(click.Context(main), name)
    if command is None:
        raise LookupError(name)
    context = click.Context(command, info_name=name)
    options = [param for param in command.params if isinstance(param, click.Option)]
    rows = (_row(option, context) for option in options if option.opts[0] != "--help")
    return "\n".join(
        (f"## `devicelens {name}`", "", "| flag | default | meaning |", "|---|---|---|", *rows, "")
    )


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
    words = " ".join((option.help or "").split()).replace("|", "\\|")
    return f"| `{option.opts[0]} {kind.strip('[]')}` | {cell} | {words} |"


if __name__ == "__main__":
    # Defaults that depend on the environment are not those of whoever writes the page.
    for variable in [name for name in os.environ if name.startswith("DEVICELENS_")]:
        del os.environ[variable]
    sys.stdout.write("written\n" if DOCUMENT.write_text(document()) else "")
