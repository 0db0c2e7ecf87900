"""Times as people and programs write them. Pure."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from daemon.durations import parse_duration

EXPECTED: Final = (
    "a time with its zone such as 2026-11-20T03:12:00Z, seconds since 1970, or a time ago such as -1h30m"
)

LOOSELY: Final = "2026-11-20T03:12:00Z, '2026-11-20 03:12' or 03:12 ({zone}), seconds since 1970, or -1h30m"
"""What parse_time takes, for a message: `zone` says in words which one a time without its own is in."""

_CLOCK: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_UNIX: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
# A plus sign that was not escaped in an address arrives as a space.
_LOST_PLUS: Final = re.compile(r" ([0-9]{2}:?[0-9]{2})")
_LAST: Final = datetime(9999, 12, 30, tzinfo=UTC).timestamp()


def parse_moment(text: str, now: float) -> float:
    """Unix time of RFC 3339 text, of seconds since 1970, of `-1h30m` (before `now`) or of `now`.

    Raises ValueError for anything else.
    """
    text = text.strip()
    if text == "now":
        return now
    if text.startswith("-"):
        at = now - parse_duration(text[1:])
    elif _UNIX.fullmatch(text):
        at = float(text)
    else:
        try:
            moment = datetime.fromisoformat(_LOST_PLUS.sub(r"+\1", text))
        except ValueError:
            raise ValueError(f"found {text!r}, expected {EXPECTED}") from None
        if moment.tzinfo is None:
            raise ValueError(f"found {text!r} without a zone, expected {EXPECTED}")
        try:
            at = moment.timestamp()
        except OverflowError:
            raise ValueError(f"found {text!r}, expected a time after 1970") from None
    if not 0.0 <= at <= _LAST:
        raise ValueError(f"found {text!r}, expected a time after 1970 and before the year 9999")
    return at


def parse_time(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Unix time of `text` as people type it: what parse_moment takes, a time without a zone in `zone` (None:
    this machine's), or a clock time, the last one that has been by `now`.

    Raises ValueError for anything else, with what was found.
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
        raise ValueError(f"found {text!r}") from None


def _local(moment: datetime, zone: tzinfo | None) -> float:
    """Unix time of a clock's reading in `zone`, whatever offset was in force then."""
    plain = moment.replace(tzinfo=None)
    return (plain.replace(tzinfo=zone) if zone is not None else plain.astimezone()).timestamp()
