"""Durations as Prometheus writes them."""

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
# As in Prometheus, each unit once and the larger first.
_DURATION = re.compile(
    "".join(f"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in ("w", "d", "h", "m", "s", "ms"))
)


def parse_duration(text: str) -> float:
    """Seconds of a Prometheus duration: `250ms`, `5s`, `1h30m`, `30d`; `0` alone needs no unit.

    Raises ValueError for anything else.
    """
    text = text.strip()
    if text == "0":
        return 0.0
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"found {text!r}, expected a duration such as 250ms, 5s, 1h30m or 30d")
    return sum(float(number) * _UNITS[unit] for unit, number in match.groupdict(default="0").items())
