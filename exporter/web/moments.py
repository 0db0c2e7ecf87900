"""Times as people and programs write them. Pure."""

import re
from datetime import UTC, datetime
from typing import Final

from daemon.durations import parse_duration

EXPECTED: Final = (
    "a time with its zone such as 2026-11-20T03:12:00Z, seconds since 1970, or a time ago such as -1h30m"
)

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
