"""Rows and times as SQLite's values, and back. Nothing that is read is trusted to be what was written."""

import math
from collections.abc import Sequence

from exporter.core.history import Bound, Certainty, Facts, HoldingKey, Row
from exporter.core.history_query import span_of
from exporter.core.history_watch import Gap, Watch


class Damaged(Exception):  # noqa: N818 -- what it is, not what went wrong with it
    """The file is not a whole database; the message says what was found."""


def read_text(raw: bytes) -> str:
    """Text, whatever it is made of."""
    # A damaged text is shown as what it is, rather than making the whole answer fail.
    return raw.decode(errors="replace")


def optional(value: object) -> float | None:
    """A time, or None. Raises Damaged."""
    return None if value is None else real(value)


def real(value: object) -> float:
    """A time. Raises Damaged."""
    if isinstance(value, float | int) and math.isfinite(value):
        return float(value)
    raise Damaged(f"found {type(value).__name__}, expected a time")


def present_values(row: Row) -> tuple[object, ...]:
    """The values of PRESENT_COLUMNS."""
    end = row.end or row.missed
    bounds = (*_bound(row.start), *(_bound(end) if end is not None else (None, None, None)))
    return (row.id, *row.key, *row.facts, *bounds, int(row.assumed), row.low)


def past_values(row: Row) -> tuple[object, ...]:
    """The values of PAST_COLUMNS."""
    if row.end is None:
        raise ValueError(f"row {row.id} has not ended")
    return (*present_values(row), span(row))


def span(row: Row) -> int:
    """The class of length of a row that ended."""
    return span_of(row.high - row.low)


def _bound(bound: Bound) -> tuple[float | None, float | None, str]:
    return bound.not_before, bound.not_after, bound.certainty.value


def read_row(values: Sequence[object]) -> Row:
    """A row of PRESENT_COLUMNS or PAST_COLUMNS. Raises Damaged for what never was written."""
    try:
        number, *rest = values
        texts = [_string(value) for value in rest[:15]]
        start = _read_bound(rest[15:18])
        end = None if rest[20] is None else _read_bound(rest[18:21])
        over = len(rest) > 23 and rest[23] is not None
        return Row(
            id=int(str(number)),
            key=HoldingKey(*texts[:10]),
            facts=Facts(*texts[10:]),
            start=start,
            end=end if over else None,
            missed=None if over else end,
            assumed=bool(rest[21]),
        )
    except (TypeError, ValueError, IndexError) as error:
        raise Damaged(f"a row does not read: {error}") from error


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"found {type(value).__name__}, expected text")


def _read_bound(values: Sequence[object]) -> Bound:
    first, last, certainty = values
    return Bound(optional(first), optional(last), Certainty(_string(certainty)))


def read_watch(values: Sequence[object]) -> Watch:
    """A time that was looked at. Raises Damaged."""
    number, since, until, gap = values
    try:
        return Watch(int(str(number)), real(since), real(until), None if gap is None else Gap(_string(gap)))
    except (TypeError, ValueError) as error:
        raise Damaged(f"a time that was looked at does not read: {error}") from error
