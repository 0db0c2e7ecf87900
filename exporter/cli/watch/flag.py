"""--watch, which may have a duration behind it."""

from collections.abc import Callable
from typing import Any, Final

import click

from exporter.cli.common import F
from runtime.flags import parse_duration

AUTO: Final = 0.0
"""As often as fits the source."""
_LEAST: Final = 0.2
_NAMES: Final = ("--watch", "-w")


class _Interval(click.ParamType[Any]):
    """A duration, or "" for AUTO."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if not value:
            return AUTO
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds < _LEAST:
            self.fail(f"found {value!r}, expected at least {_LEAST:g}s", param, ctx)
        return seconds


def watch_flag() -> Callable[[F], F]:
    """--watch [DURATION]; None where it is not given."""
    return click.option(
        *_NAMES,
        "watch",
        type=_Interval(),
        default=None,
        metavar="[DURATION]",
        help="Go on, and tell what changes: at once by an exporter, else asked so often (2s a kubelet, 15s "
        "Prometheus).",
    )


class WatchCommand(click.Command):
    """A command that knows `--watch` alone, `--watch 5s` and `--watch=5s`, and takes no resource's name for a
    duration.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does."""
        return super().parse_args(ctx, with_value(args))


def with_value(args: list[str]) -> list[str]:
    """The arguments with --watch always in one word with its value."""
    found: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*found, word, *rest]
        if word not in _NAMES:
            found.append(word)
        elif rest and _is_duration(rest[0]):
            found.append(f"--watch={rest.pop(0)}")
        else:
            found.append("--watch=")
    return found


def _is_duration(text: str) -> bool:
    try:
        parse_duration(text)
    except ValueError:
        return False
    return True
