"""Moments on a page, and pages whose ages are filled in when they are sent. Pure.

Between two changes of the mapping nothing on a page changes but how long ago things were. So a page is
rendered with a place for each age and kept, and the ages are put in for the second in which it is sent. A
place is marked by a control character, which no text from outside has by the time it is in a page
(exporter.web.words.spelled).
"""

import re
from dataclasses import dataclass
from typing import Final

from exporter.web.words import clock_time, lasting, rfc3339

NOW: Final = "\x02now\x02"
"""The place for the present, as unix time in seconds."""
_PLACE: Final = re.compile(rb"\x02(now|-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\x02")
_DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class When:
    """A moment: for a machine, for the clock (in UTC), and how long ago. `exact` false: then or earlier."""

    iso: str
    clock: str
    ago: str
    exact: bool = True


def when(at: float, now: float, *, exact: bool = True) -> When:
    """Unix time `at`, seen at `now`."""
    return When(rfc3339(at), clock_time(at, now), lasting(now - at), exact)


def later(at: float, now: float, *, exact: bool = True) -> When:
    """As `when`, with a place for how long ago it was. It holds for the day of `now`."""
    return When(rfc3339(at), clock_time(at, now), f"\x02{at!r}\x02", exact)


def day(now: float) -> int:
    """The day (in UTC) for which a moment's clock is right."""
    return int(now // _DAY)


def filled(page: bytes, now: float) -> bytes:
    """`page` with every place filled in, for unix time `now`."""
    present = repr(round(now, 3)).encode()

    def fill(place: re.Match[bytes]) -> bytes:
        at = place[1]
        return present if at == b"now" else lasting(now - float(at)).encode()

    return _PLACE.sub(fill, page)
