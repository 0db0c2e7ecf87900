"""Holdings of the past, as pages show them: a table, a drawing, and the gaps in observation. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Final

from msgspec import Struct, field

from exporter.history.coverage import CoverageGap, GapReason
from exporter.history.query import HistoryResult
from exporter.history.record import HoldingKey, HoldingRow
from exporter.views.query import QueryError, device_link
from exporter.views.wording import LOOSELY, parse_time, spelled, text
from exporter.web.pages import times
from exporter.web.pages.parts import PageChoice, life_link, natural, row_key
from exporter.web.pages.timeline import BARS, Lane, Stretch, Timeline, timeline
from exporter.web.pages.times import Stamp

ROWS: Final = 200
"""Holdings that a page queries."""
GAPS: Final = 50
"""Gaps in observation on a page, the latest ones."""
DEFAULT: Final = "24 h"
PRESETS: Final = {"1 h": 3600.0, "6 h": 6 * 3600.0, "24 h": 86400.0, "7 d": 7 * 86400.0, "30 d": 30 * 86400.0}
"""The time ranges that pages offer, in seconds."""
EXPECTED_TIME: Final = LOOSELY.format(zone="UTC")
_MARGIN: Final = 0.02
"""The share of the drawing before the beginning of history."""
_NAME: Final = 60
_ONGOING: Final = (GapReason.SILENT, GapReason.PAUSED, GapReason.DOWN, GapReason.LOST)
"""Gaps that may last until now."""


class TimeRange(Struct, frozen=True):
    """A time range (unix). `label` is that of a preset, "" for a typed range."""

    since: float
    until: float
    label: str = ""


class HistoryAnswer(Struct, frozen=True):
    """History's answer: `found`, or None and the `trouble` in words. Where there are older holdings, `before`
    are those of the moment at which the oldest of `found` began.
    """

    found: HistoryResult | None
    trouble: str = ""
    before: tuple[HoldingRow, ...] = ()

    @property
    def whole_from(self) -> float | None:
        """From when on all holdings are known; None where `found` has all."""
        if self.found is None or self.found.next is None or not self.found.rows:
            return None
        return self.found.rows[-1].low


class PastSection(Struct, frozen=True):
    """The past from `since` to `until`. `trouble` says why there is no answer, `behind` why the answer may be
    incomplete. `reach` is the beginning of history. `more` is the address of further holdings ("" for none),
    `whole` of all. `drawn_since` and `drawn_until` are the ends of a drawing of a part of that time.
    `certain` says of rows, by number, whether they were surely held at the queried moment.
    """

    trouble: str
    whole: str
    presets: tuple[PageChoice, ...]
    behind: str = ""
    since: Stamp | None = None
    until: Stamp | None = None
    live: bool = True
    drawn: Timeline | None = None
    drawn_since: Stamp | None = None
    drawn_until: Stamp | None = None
    rows: tuple[HoldingRow, ...] = ()
    certain: Mapping[int, bool] = field(default_factory=dict[int, bool])
    gaps: tuple[CoverageGap, ...] = ()
    gaps_left_out: int = 0
    reach: Stamp | None = None
    more: str = ""


# --- time ranges ----------------------------------------------------------------------------------------


def preset_value(label: str) -> str:
    """A preset as the value of `from`: `-24h`."""
    return f"-{PRESETS[label] / 3600:.0f}h"


def parse_parameter(found: Mapping[str, str], name: str, now: float) -> float | None:
    """The time of the parameter `name`, in UTC by default; None without it. Raises QueryError."""
    typed = found.get(name, "").strip()
    if not typed:
        return None
    try:
        return parse_time(typed, now, UTC)
    except ValueError:
        raise QueryError(name, typed, EXPECTED_TIME) from None


def time_range(found: Mapping[str, str], now: float) -> TimeRange:
    """The range of `from` and `to`, by default the last 24 hours. Raises QueryError."""
    since, until = parse_parameter(found, "from", now), parse_parameter(found, "to", now)
    typed = found.get("from", "").strip()
    label = next((label for label in PRESETS if preset_value(label) == typed), "") if typed else DEFAULT
    end = now if until is None else until
    first = end - 86400.0 if since is None else since
    if first >= end:
        raise QueryError("from", typed, "a time before the end of the range")
    return TimeRange(first, end, "" if until is not None else label)


def fitted(span: TimeRange, earliest: float | None) -> TimeRange:
    """A preset's range without the time before the beginning of history."""
    if not span.label or earliest is None or earliest <= span.since:
        return span
    length = max(span.until - earliest, 1.0)
    return TimeRange(max(span.since, span.until - length * (1 + _MARGIN)), span.until, span.label)


# --- the section ----------------------------------------------------------------------------------------


def past_section(
    answer: HistoryAnswer,
    span: TimeRange,
    now: float,
    *,
    lane: Callable[[HoldingRow], Lane],
    named: Callable[[HoldingRow], tuple[str, str, str]],
    more: str,
    rows: Sequence[HoldingRow] | None = None,
    certain: Mapping[int, bool] | None = None,
    at: float | None = None,
    until: float | None = None,
) -> PastSection:
    """The section of an answer. `lane` gives the lane of a holding's bar, `named` the bar's long and short
    name and its address. `more` is the address of further holdings, `rows` those to show (None: all).
    `certain` says of rows, by number, whether they were surely held `at` the queried moment. `until`: rows
    that began later are on earlier pages.

    The drawing begins where it has every holding, so that a blank is a time without one.
    """
    choices = tuple(PageChoice(preset_value(label), label, label == span.label) for label in PRESETS)
    found = answer.found
    if found is None:
        return PastSection(answer.trouble, more, choices)
    kept = tuple(found.rows if rows is None else rows)
    shown = fitted(span, found.earliest)
    known = observed_until(found, now)
    own = {row.id for row in kept}
    drawn = kept if at is not None else (*kept, *(row for row in answer.before if row.id not in own))
    since = shown.since if at is not None else _whole_from(answer.whole_from, drawn, shown.since)
    last = shown.until if until is None else min(shown.until, until)
    gaps = [gap for gap in found.unseen if not span.label or gap.why is not GapReason.BEFORE]
    return PastSection(
        trouble="",
        whole=more,
        presets=choices,
        behind=found.trouble,
        since=times.stamp(shown.since, now),
        until=times.stamp(shown.until, now),
        live=span.until >= now,
        drawn=timeline(
            [_stretch(row, lane(row).key, named(row), known, now) for row in drawn],
            sorted({one.key: one for one in map(lane, drawn)}.values(), key=_lane_order),
            found.unseen,
            since=since,
            until=last,
            now=now,
            mark=at,
        ),
        drawn_since=times.stamp(since, now) if since > shown.since else None,
        drawn_until=times.stamp(last, now) if last < shown.until else None,
        rows=kept,
        certain=certain or {},
        gaps=tuple(gaps[-GAPS:]),
        gaps_left_out=max(0, len(gaps) - GAPS),
        reach=times.optional(found.earliest, now),
        more=more if found.next is not None else "",
    )


def _whole_from(known: float | None, rows: Sequence[HoldingRow], since: float) -> float:
    """From when on a drawing of at most BARS holdings, and those that lasted then, has every holding."""
    began = sorted((row.low for row in rows), reverse=True)
    least = [since, *([] if known is None else [known]), *began[BARS - 1 : BARS]]
    return max(least)


def past_state(row: HoldingRow, certain: bool | None = None) -> tuple[str, str]:  # noqa: FBT001 -- of a template
    """A holding's state: held, ended or doubt, and its text; `certain` as in PastSection."""
    if certain is not None:
        return ("held", "held") if certain else ("doubt", "perhaps")
    if row.missed is not None:
        return "doubt", "in doubt"
    return ("held", "held") if row.end is None else ("ended", "ended")


def held_details(row: HoldingRow) -> str:
    """A device's parent; for a claimed device also what the container asked by, the share and the claim; ""
    for a whole device of a plugin.
    """
    facts = row.facts
    found = [f"of {facts.parent}"] if facts.parent else []
    if facts.requested_as and facts.requested_as != row.key.resource:
        found.append(f"requested as {facts.requested_as}")
    if facts.share_id:
        found.append(f"share {facts.share_id}")
    if facts.claim:
        found.append(f"claim {facts.claim_namespace}/{facts.claim}")
    return ", ".join(found)


def held_link(key: HoldingKey) -> str:
    """The page of what is held."""
    return device_link(key.resource, key.device)


# --- the drawing ----------------------------------------------------------------------------------------


def _lane_order(lane: Lane) -> tuple[str, str]:
    return natural(lane.name), lane.key


def observed_until(found: HistoryResult, now: float) -> float:
    """Until when ongoing holdings are known to last: now, unless there is a gap in observation now."""
    last = found.unseen[-1] if found.unseen else None
    if last is None or last.why not in _ONGOING or (last.until is not None and last.until < now - 1.0):
        return now
    known = last.since if last.since is not None else found.latest
    return now if known is None else min(now, known)


def _stretch(row: HoldingRow, lane: str, names: tuple[str, str, str], known: float, now: float) -> Stretch:
    start, end = row.start, row.end or row.missed
    since = start.not_after if start.not_after is not None else start.not_before or 0.0
    until, latest = known, max(known, now)
    if end is not None:
        until = since if end.not_before is None else end.not_before
        latest = now if end.not_after is None or row.missed is not None else end.not_after
    kind, words = past_state(row)
    who = spelled(f"{row.key.namespace}/{row.key.pod}")
    return Stretch(
        key=f"b{row.id}",
        lane=lane,
        names=names[:2],
        href=names[2],
        title=f"{text(who).shown} ({text(row.key.container).shown}), {words}",
        detail=sentence(row, now),
        earliest=start.not_before,
        since=since,
        until=until,
        latest=latest,
        state=kind,
    )


def sentence(row: HoldingRow, now: float) -> str:
    """A holding in one sentence."""
    end, lasted = times.ended(row, now), times.lasted(row, now)
    until = "still held" if end is None else f"ended {end}"
    device = text(row.key.device, limit=_NAME).shown
    length = f", {lasted}" if lasted else ""
    doubt = " There was a gap in observation: it may be another pod of this name." if row.assumed else ""
    return f"{device}: began {times.began(row, now)}, {until}{length} (UTC).{doubt}"


def lane_of_device(row: HoldingRow) -> Lane:
    """A lane for each device."""
    key = row.key
    name = f"{text(key.device, limit=_NAME).shown} · {text(key.resource, limit=_NAME).shown}"
    return Lane(row_key("bar", key.resource, key.device), name, held_link(key))


def by_pod(row: HoldingRow) -> tuple[str, str, str]:
    """A bar's names and address, by its pod."""
    key = row.key
    shown = text(key.pod, limit=40).shown
    full = f"{text(key.namespace, limit=40).shown}/{shown}"
    return full, shown, life_link(key.namespace, key.pod, row.facts.uid)
