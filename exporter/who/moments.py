"""Times as people write them on a command line. Pure."""

from datetime import tzinfo
from typing import Final

import click

from exporter.web import moments

EXPECTED: Final = moments.LOOSELY.format(zone="this machine's zone")


def parse_time(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Unix time of `text`, as exporter.web.moments has it. Raises ValueError, with what was expected."""
    try:
        return moments.parse_time(text, now, zone)
    except ValueError as error:
        raise ValueError(f"{error}, expected {EXPECTED}") from None


def time_of(text: str | None, name: str, now: float) -> float | None:
    """The time of the flag `name`, None if it is not given. Raises BadParameter."""
    if text is None:
        return None
    try:
        return parse_time(text, now)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=name) from error
