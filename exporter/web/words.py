"""Times, ages, sizes and text from outside, as a person reads them. Pure.

The page's module counts ages on by itself; static/devicelens.js has the same rules as `lasting`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from daemon.text import visible

WHOLE_LIMIT: Final = 8192
"""Characters of a text from outside that are shown at all, on a hint or in a search."""

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class Text:
    """Text from outside: `shown` with nothing hidden in it, `whole` where what is shown was cut, else ""."""

    shown: str
    whole: str = ""


def text(raw: str, limit: int = 72) -> Text:
    """`raw` with control and bidirectional characters spelled out; cut in the middle to `limit` characters,
    for the ends of two ids differ more often than their beginnings.
    """
    whole = spelled(raw)
    if len(whole) <= limit:
        return Text(whole)
    tail = limit // 3
    return Text(f"{whole[: limit - tail - 1]}…{whole[-tail:]}", whole)


def spelled(raw: str) -> str:
    """`raw` with control and bidirectional characters spelled out, bounded by WHOLE_LIMIT."""
    return visible(raw, limit=WHOLE_LIMIT)


def rfc3339(at: float) -> str:
    """Unix time `at` as RFC 3339 in UTC with milliseconds: `2026-11-20T22:41:03.250Z`."""
    moment = datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock_time(at: float, now: float) -> str:
    """Unix time `at` in UTC, as short as `now` allows: `22:41:03`, `19 Nov 22:41`, `2025-11-19 22:41`."""
    then, today = datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC)
    if then.date() == today.date():
        return f"{then:%H:%M:%S}"
    if then.year == today.year:
        return f"{then.day} {_MONTHS[then.month - 1]} {then:%H:%M}"
    return f"{then:%Y-%m-%d %H:%M}"


def lasting(seconds: float) -> str:
    """A length of time in at most two units: `7 s`, `4 min`, `2 h 5 min`, `3 d 1 h`. Never negative."""
    whole = int(max(0.0, seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        return _two(whole // _HOUR, "h", whole % _HOUR // _MINUTE, "min")
    return _two(whole // _DAY, "d", whole % _DAY // _HOUR, "h")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 device`, `2 devices`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def listed(items: Sequence[str], limit: int = 5) -> str:
    """`a, b and c`; beyond `limit` items `a, b and 7 more`."""
    if len(items) <= 1:
        return "".join(items)
    if len(items) <= limit:
        return f"{', '.join(items[:-1])} and {items[-1]}"
    return f"{', '.join(items[:limit])} and {len(items) - limit} more"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in the kernel's list format, as `taskset -c` takes it: `0-3,8`."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def size(number: int) -> str:
    """Bytes in the largest binary unit of which there is at least one: `200 MiB`, `1.5 GiB`."""
    value, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"
