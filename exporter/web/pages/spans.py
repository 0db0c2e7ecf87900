"""Which time a page looks at, read from its address. Pure.

The parameters are the API's `from` and `to`; a time without a zone is UTC, as everything that is shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Final

from exporter.web.moments import LOOSELY, parse_time
from exporter.web.pages.past import Range
from exporter.web.words import spelled

DEFAULT: Final = "24 h"
PRESETS: Final = (
    ("1 h", 3600.0),
    ("6 h", 6 * 3600.0),
    ("24 h", 86400.0),
    ("7 d", 7 * 86400.0),
    ("30 d", 30 * 86400.0),
)
"""What is offered, and how long it is in seconds."""
EXPECTED: Final = LOOSELY.format(zone="UTC")

_MARGIN: Final = 0.02
"""The share of the drawing that is left before the beginning of history."""
_SHORTEST: Final = 1.0


class MomentError(ValueError):
    """A time that cannot be read: which parameter, and what is wrong with it."""

    def __init__(self, parameter: str, problem: str) -> None:
        super().__init__(problem)
        self.parameter = parameter


@dataclass(frozen=True, slots=True)
class Preset:
    """A range that is one click away."""

    label: str
    value: str
    selected: bool


def preset_value(seconds: float) -> str:
    """How an address says so: `-24h`."""
    return f"-{seconds / 3600:.0f}h"


def moment(found: Mapping[str, str], name: str, now: float) -> float | None:
    """The time of the parameter `name`, None without it. Raises MomentError."""
    typed = found.get(name, "").strip()
    if not typed:
        return None
    try:
        return parse_time(typed, now, UTC)
    except ValueError:
        raise MomentError(name, f"found '{spelled(typed)[:80]}', expected {EXPECTED}") from None


def span_of(found: Mapping[str, str], now: float) -> Range:
    """The range of an address, the last 24 hours where it says none. Raises MomentError."""
    since, until = moment(found, "from", now), moment(found, "to", now)
    label = "" if until is not None else _label(found.get("from", "").strip())
    end = now if until is None else until
    first = end - 86400.0 if since is None else since
    if first >= end:
        raise MomentError("from" if since is not None else "to", "the range ends before it begins")
    return Range(first, end, label)


def _label(typed: str) -> str:
    if not typed:
        return DEFAULT
    return next((label for label, seconds in PRESETS if preset_value(seconds) == typed), "")


def presets(span: Range) -> tuple[Preset, ...]:
    """The ranges that are offered."""
    return tuple(Preset(label, preset_value(seconds), label == span.label) for label, seconds in PRESETS)


def fitted(span: Range, earliest: float | None) -> Range:
    """The part of a preset's range that is worth drawing: not the time before history began."""
    if not span.label or earliest is None or earliest <= span.since:
        return span
    length = max(span.until - earliest, _SHORTEST)
    return Range(max(span.since, span.until - length * (1 + _MARGIN)), span.until, span.label)
