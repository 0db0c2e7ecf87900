"""Text from outside made harmless for a terminal or a log line, and times as text."""

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

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


def named(items: Sequence[str], separator: str = ", ", limit: int = 8) -> str:
    """The first `limit` of `items`; further ones are counted."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + more


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
