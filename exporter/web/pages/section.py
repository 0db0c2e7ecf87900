"""What a page shows of the past: the range, the drawing, the table below it, and what is not known. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from exporter.core.history import Row
from exporter.core.history_query import Found
from exporter.web.pages import told
from exporter.web.pages.past import Gaps, PastRow, Range, drawing, gaps, past_row
from exporter.web.pages.spans import Preset, fitted, presets
from exporter.web.pages.timeline import Named, Timeline
from exporter.web.pages.told import Stamp

ROWS: Final = 200
"""Holdings that a page asks for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What history said: `found`, or None and the `trouble` in words."""

    found: Found | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """The past as it is shown from `since` to `until`.

    `trouble`: why there is nothing, "" where there is an answer; `behind`: why the answer may not be all.
    `reach`: since when anything is known. `more` leads to what follows, "" where this is all, `whole` to all
    of it.
    """

    trouble: str
    behind: str = ""
    since: Stamp | None = None
    until: Stamp | None = None
    live: bool = True
    presets: tuple[Preset, ...] = ()
    drawn: Timeline | None = None
    rows: tuple[PastRow, ...] = ()
    gaps: Gaps = field(default_factory=Gaps)
    reach: Stamp | None = None
    more: str = ""
    whole: str = ""


def section(
    answer: Answer,
    span: Range,
    now: float,
    *,
    group: Callable[[Row], Named],
    named: Callable[[Row], tuple[str, str, str]],
    more: str,
    rows: Sequence[Row] | None = None,
    certain: Mapping[int, bool] | None = None,
    at: float | None = None,
) -> Section:
    """The past of `answer`. `more` is the address of what does not fit, `rows` those to show, if not all;
    `certain` tells of rows by number whether they were surely held `at` the moment that was asked for.
    """
    found = answer.found
    if found is None:
        return Section(answer.trouble, presets=presets(span), whole=more)
    kept = tuple(found.rows if rows is None else rows)
    shown = fitted(span, found.earliest)
    return Section(
        trouble="",
        behind=found.trouble,
        since=told.stamp(shown.since, now),
        until=told.stamp(shown.until, now),
        live=span.until >= now,
        presets=presets(span),
        drawn=drawing(found, shown, now, group=group, named=named, rows=kept, at=at),
        rows=tuple(
            past_row(row, now, certain=None if certain is None else certain.get(row.id)) for row in kept
        ),
        gaps=gaps(found, now, before=not span.label),
        reach=told.optional(found.earliest, now),
        more=more if found.next is not None else "",
        whole=more,
    )
