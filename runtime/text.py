"""Text from outside made harmless for terminals, logs, and messages; times, durations, and sizes as text."""

import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

ID_LIMIT: Final = 128
"""Characters of an id in tables, sentences and log lines."""
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def is_hostile(character: str) -> bool:
    """Whether a character can move the cursor, hide text or turn its direction.

    Unicode's categories Cc (control), Cf (format: bidirectional marks, zero-width), Cs (lone
    surrogates), Zl and Zp (line and paragraph separators).
    """
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def visible(text: str, limit: int = 1024) -> str:
    r"""`text` with hostile characters escaped (`\x1b`, `\u202e`) and cut to `limit` characters."""
    if text.isascii() and text.isprintable() and len(text) <= limit:
        return text
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(_spelled(c) if is_hostile(c) else c for c in cut)


def shortened(text: str, limit: int = ID_LIMIT) -> str:
    """`text` cut in the middle to `limit` characters, because ids often differ only at their ends."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


def named(items: Sequence[str], separator: str = ", ", limit: int = 8) -> str:
    """The first `limit` of `items`; further ones are counted."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + more


def advice(word: str, known: Sequence[str]) -> str:
    """`, did you mean 'x'?` for the known word nearest to `word`; empty where none is near."""
    from difflib import get_close_matches  # noqa: PLC0415 -- only errors need it

    near = get_close_matches(word.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    for candidate in known:
        if near and candidate.lower() == near[0]:
            return f", did you mean '{candidate}'?"
    return ""


def quoted(value: object, limit: int = 80) -> str:
    """A found value for a message: text in quotes, everything cut to `limit` characters."""
    if isinstance(value, str):
        return f"'{visible(value, limit)}'"
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return visible(str(value), limit)
        case dict():
            return "a mapping"
        case _:
            return "a list"


def _spelled(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def utc(at: float) -> str:
    """Unix time `at` to the second: `2026-11-20 22:41:03 UTC`; "an unknown time" for what no calendar has."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
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
    return sum(float(number) * _DURATION_UNITS[unit] for unit, number in match.groupdict(default="0").items())


_SIZE_UNITS: Final[dict[str, int]] = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
_SIZE: Final = re.compile(rf"([0-9]{{1,15}})({'|'.join(_SIZE_UNITS)})")


def parse_size(text: str) -> int:
    """Bytes of `64MiB`, `512MB`, `1GiB` or `1048576`; units are powers of 1024, with the i and without it.

    Raises ValueError for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"found {text!r}, expected a size such as 64MiB, 1GiB or 1048576")
    return int(match[1]) * _SIZE_UNITS[match[2]]
