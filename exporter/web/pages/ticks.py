"""Where a time axis has its ticks, and what they say. Pure. All times are unix, shown in UTC."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_DAY: Final = 86400
_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200),
    *(_DAY, 2 * _DAY, 5 * _DAY, 10 * _DAY, 20 * _DAY, 50 * _DAY, 100 * _DAY, 200 * _DAY),
    *(500 * _DAY, 1000 * _DAY, 5000 * _DAY),
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MOST: Final = 64
"""Ticks at all, of a range that no step suits."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A time on the axis, and what is written at it. `whole`: a day begins."""

    at: float
    label: str
    whole: bool


def ticks(since: float, until: float, most: int) -> tuple[Tick, ...]:
    """Round times from `since` to `until`, at most `most`."""
    span = until - since
    if not span > 0 or most < 1:
        return ()
    step = next((step for step in _STEPS if span / step <= most), int(span // most) + 1)
    first = -(-since // step)
    found: list[Tick] = []
    for number in range(min(most, _MOST)):
        at = (first + number) * step
        if at > until:
            break
        found.append(_tick(at, step))
    return tuple(found)


def _tick(at: float, step: int) -> Tick:
    then = datetime.fromtimestamp(at, UTC)
    midnight = at % _DAY == 0
    if midnight:
        year = f" {then.year}" if step >= 100 * _DAY else ""
        return Tick(at, f"{then.day} {_MONTHS[then.month - 1]}{year}", whole=True)
    return Tick(at, f"{then:%H:%M:%S}" if step < 60 else f"{then:%H:%M}", whole=False)
