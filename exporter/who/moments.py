"""Times as people write them on a command line. Pure."""

import re
from datetime import datetime, timedelta, tzinfo
from typing import Final

import click

from exporter.web.moments import parse_moment

EXPECTED: Final = (
    "2026-11-20T03:12:00Z, '2026-11-20 03:12' or 03:12 (this machine's zone), seconds since 1970, or -1h30m"
)

_CLOCK: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")


def parse_time(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Unix time of `text`: what the API takes, a time without a zone in `zone` (None: this machine's), or a
    clock time, the last one that has been by `now`.

    Raises ValueError for anything else.
    """
    clock = _CLOCK.fullmatch(text.strip())
    if clock is not None:
        hour, minute, second = (int(part or 0) for part in clock.groups())
        here = datetime.fromtimestamp(now).astimezone(zone)
        found = _local(here.replace(hour=hour, minute=minute, second=second, microsecond=0), zone)
        if found > now:
            before = (here - timedelta(days=1)).replace(hour=hour, minute=minute, second=second)
            found = _local(before.replace(microsecond=0), zone)
        return found
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    try:
        if moment is not None and moment.tzinfo is None and not text.strip().isdigit():
            return _local(moment, zone)
        return parse_moment(text, now)
    except (ValueError, OverflowError):
        raise ValueError(f"found {text!r}, expected {EXPECTED}") from None


def _local(moment: datetime, zone: tzinfo | None) -> float:
    """Unix time of a clock's reading in `zone`, whatever offset was in force then."""
    plain = moment.replace(tzinfo=None)
    return (plain.replace(tzinfo=zone) if zone is not None else plain.astimezone()).timestamp()


def time_of(text: str | None, name: str, now: float) -> float | None:
    """The time of the flag `name`, None if it is not given. Raises BadParameter."""
    if text is None:
        return None
    try:
        return parse_time(text, now)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=name) from error
