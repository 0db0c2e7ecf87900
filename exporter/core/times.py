"""Moments in words, for sentences that are made where nothing is shown."""

from datetime import UTC, datetime


def utc(at: float) -> str:
    """Unix time `at` to the second: `2026-11-20 22:41:03 UTC`; "an unknown time" for what no calendar has."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
