"""Times, ages, sizes and untrusted text, as people read and write them. Pure.

static/times.js has the same rules as `clock_time` and `lasting`, because it advances the ages on a page.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from msgspec import Struct

from exporter.mapping.names import WHOLE_LIMIT
from runtime.text import parse_duration, shortened, visible

_RUN: Final = 24
_BREAKS: Final = re.compile(r"[\s/._-]")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


class Text(Struct, frozen=True):
    """Untrusted text: `shown` without hidden characters, and `whole` where `shown` is cut, else ""."""

    shown: str
    whole: str = ""

    @property
    def unbroken(self) -> bool:
        """As `unbroken`."""
        return unbroken(self.shown)


def unbroken(shown: str) -> bool:
    """Whether browsers find no place for a line break in 25 characters. Pages offer one after / . and _,
    and browsers break after -.
    """
    return len(shown) > _RUN and any(len(run) > _RUN for run in _BREAKS.split(shown))


def text(raw: str, limit: int = 72) -> Text:
    """`raw` with control and bidirectional characters spelled out, shortened to `limit` characters."""
    whole = spelled(raw)
    return Text(whole) if len(whole) <= limit else Text(shortened(whole, limit), whole)


def spelled(raw: str) -> str:
    """`raw` with control and bidirectional characters spelled out, bounded by WHOLE_LIMIT."""
    return visible(raw, limit=WHOLE_LIMIT)


@lru_cache(maxsize=4096)
def rfc3339(at: float) -> str:
    """Unix time `at` as RFC 3339 in UTC with milliseconds: `2026-11-20T22:41:03.250Z`."""
    moment = datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock_time(at: float, now: float) -> str:
    """Unix time `at` in UTC, short for `now`: `22:41:03`, `19 Nov 22:41`, `2025-11-19 22:41`."""
    then, today = datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC)
    if then.date() == today.date():
        return f"{then:%H:%M:%S}"
    if then.year == today.year:
        return f"{then.day} {_MONTHS[then.month - 1]} {then:%H:%M}"
    return f"{then:%Y-%m-%d %H:%M}"


def lasting(seconds: float) -> str:
    """A duration in at most two units: `7 s`, `4 min`, `2 h 5 min`, `3 d 1 h`. Never negative."""
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


def count_states(
    *,
    held: int,
    free: int | None = None,
    unavailable: int = 0,
    held_unhealthy: int = 0,
    alternatives: int = 0,
) -> str:
    """The devices of a total by states that exclude each other: `2 held (1 of them unhealthy), 1 free,
    1 unavailable`. Unavailable: neither held nor free. States without devices are left out.

    `free` None: free devices are not known. `alternatives`: unheld partitions in whose place others count.
    """
    unhealthy = ""
    if held_unhealthy:
        of_them = "" if held == 1 else "all " if held_unhealthy == held else f"{held_unhealthy} of them "
        unhealthy = f" ({of_them}unhealthy)"
    states = ((held, f"held{unhealthy}"), (free or 0, "free"), (unavailable, "unavailable"))
    found = [f"{number} {state}" for number, state in states if number]
    if free is None:
        found.append("free ones unknown")
    if alternatives:
        found.append(counted(alternatives, "alternative"))
    return ", ".join(found)


NOT_RECORDED: Final = "an earlier version recorded this time, or the kubelet did not report its devices"
"""Why the free devices of a past moment are unknown."""
NOT_PUBLISHED: Final = "no ResourceSlice named the others"
"""Why the free devices of a DRA driver are unknown."""


def count_unheld(counts: Mapping[str, int]) -> list[str]:
    """The devices of a past moment that nobody held, by state: `2 free`, `1 unavailable`, `1 unknown`."""
    states = count_states(held=0, free=counts.get("free", 0), unavailable=counts.get("unhealthy", 0))
    unknown = counts.get("unknown", 0)
    return [*([states] if states else []), *([f"{unknown} unknown"] if unknown else [])]


def listed(items: Sequence[str], limit: int = 5) -> str:
    """`a, b and c`; beyond `limit` items `a, b and 7 more`."""
    if len(items) <= 1:
        return "".join(items)
    if len(items) <= limit:
        return f"{', '.join(items[:-1])} and {items[-1]}"
    return f"{', '.join(items[:limit])} and {len(items) - limit} more"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in the kernel's list format, as for `taskset -c`: `0-3,8`."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def size(number: int) -> str:
    """Bytes in the largest binary unit: `200 MiB`, `1.5 GiB`."""
    value, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


EXPECTED: Final = (
    "a time with its zone such as 2026-11-20T03:12:00Z, seconds since 1970, or a time ago such as -1h30m"
)

LOOSELY: Final = "2026-11-20T03:12:00Z, '2026-11-20 03:12' or 03:12 ({zone}), seconds since 1970, or -1h30m"
"""The times that parse_time accepts, for a message: `zone` names the zone of times without one."""

_CLOCK: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_UNIX: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
# An unescaped plus sign in an address arrives as a space.
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
    """Unix time of `text` as people type it: any time of parse_moment, a time without a zone in `zone` (None:
    this machine's), or a clock time, the latest before `now`.

    Raises ValueError for anything else, with the text.
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
    """Unix time of a local time in `zone`, with the offset of that time."""
    plain = moment.replace(tzinfo=None)
    return (plain.replace(tzinfo=zone) if zone is not None else plain.astimezone()).timestamp()


AGEING: Final = "the kubelet does not answer as it should"
"""Why a mapping is not fresh."""


def reason(code: str, message: str) -> str:
    """`UNAVAILABLE: there is no socket …`: the gRPC code and the message of a failure."""
    return ": ".join(spelled(part) for part in (code, message) if part)
