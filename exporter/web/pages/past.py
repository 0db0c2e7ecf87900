"""Holdings of the past: as rows of a table, as bars of a drawing, and what is not known of them. Pure.

What a page shows of the past: the range, the drawing, the table below it, and what is not known. Pure.

Which time a page looks at, read from its address. Pure.

The parameters are the API's `from` and `to`; a time without a zone is UTC, as everything that is shown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Final

from exporter.history.coverage import GapReason
from exporter.history.query import HistoryResult
from exporter.history.record import HoldingKey, HoldingRow
from exporter.mapping.model import Device
from exporter.views.links import claim_link, device_link, pod_link
from exporter.views.wording import LOOSELY, Text, parse_time, spelled, text
from exporter.web.pages import periods
from exporter.web.pages.periods import End, Stamp
from exporter.web.pages.rows import natural, row_key
from exporter.web.pages.timeline import Named, Silent, Stretch, Timeline, timeline

GAPS: Final = 50
"""Times at which nobody looked that are told; of more, the latest."""
_NAME: Final = 60
_PRESENT: Final = (GapReason.SILENT, GapReason.PAUSED, GapReason.DOWN, GapReason.LOST)


@dataclass(frozen=True, slots=True)
class PastRow:
    """One holding. `kind` is held, ended, doubt; or of one moment held or perhaps. `words` say it.

    `resource` is a claimed device's driver. `under` is what stands below the device: its pool, its share, its
    claim. `uid` is "" where nothing told it.
    """

    key: str
    device: Text
    device_href: str
    resource: Text
    under: Text | None
    namespace: Text
    pod: Text
    pod_href: str
    container: Text
    workload: Text | None
    uid: str
    kind: str
    words: str
    began: End
    ended: End | None
    lasted: str
    assumed: bool


@dataclass(frozen=True, slots=True)
class Gaps:
    """When nobody looked, as sentences, `left_out` earlier ones besides."""

    silences: tuple[periods.Silence, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """A time that is looked at (unix): `label` is the preset's, "" for one that was typed."""

    since: float
    until: float
    label: str = ""


def past_row(row: HoldingRow, now: float, *, certain: bool | None = None) -> PastRow:
    """A holding at unix time `now`; `certain` tells of a moment whether it was surely held then."""
    key, facts = row.key, row.facts
    kind, words = _state(row, certain=certain)
    work = facts.workload_kind not in {"", "Pod"}
    return PastRow(
        key=f"h{row.id}",
        device=text(key.device, limit=_NAME),
        device_href=link_of(key),
        resource=text(key.resource or key.driver, limit=_NAME),
        under=_under(row),
        namespace=text(key.namespace),
        pod=text(key.pod),
        pod_href=life_link(key.namespace, key.pod, facts.uid),
        container=text(key.container),
        workload=text(f"{facts.workload_kind} {facts.workload}") if work else None,
        uid=spelled(facts.uid),
        kind=kind,
        words=words,
        began=periods.began(row, now),
        ended=periods.ended(row, now),
        lasted=periods.lasted(row, now),
        assumed=row.assumed,
    )


def _state(row: HoldingRow, *, certain: bool | None = None) -> tuple[str, str]:
    if certain is not None:
        return ("held", "held") if certain else ("doubt", "perhaps")
    if row.missed is not None:
        return "doubt", "in doubt"
    return ("held", "held") if row.end is None else ("ended", "ended")


def _under(row: HoldingRow) -> Text | None:
    key = row.key
    if not key.driver:
        return text(f"of {row.facts.parent}", limit=_NAME) if row.facts.parent else None
    parts = [f"pool {key.pool}"]
    if key.share_id:
        parts.append(f"share {key.share_id}")
    parts.append(f"claim {key.claim_namespace}/{key.claim}")
    return text(", ".join(parts), limit=120)


def in_order(device: Device) -> tuple[object, ...]:
    """Sorts devices by resource, shares and slices beside their device, dev-2 before dev-10."""
    resource, name = device.key
    return resource, natural(device.parent or name), natural(name)


def link_of(key: HoldingKey) -> str:
    """The page of what is held."""
    if key.driver:
        return claim_link(key.driver, key.pool, key.device)
    return device_link(key.resource, key.device)


def life_id(uid: str) -> str:
    """The place of one of a name's pods on its page."""
    return f"uid-{row_key('uid', uid)}"


def life_link(namespace: str, pod: str, uid: str) -> str:
    """The page of a pod, at the very pod of its name that is meant where its uid is known."""
    link = pod_link(namespace, pod)
    return f"{link}#{life_id(uid)}" if uid and link.startswith("/pods/") else link


def gaps(found: HistoryResult, now: float, *, before: bool) -> Gaps:
    """When nobody looked, of the times that were asked for; the time `before` history began only if asked."""
    told_of = [gap for gap in found.unseen if before or gap.why is not GapReason.BEFORE]
    return Gaps(tuple(periods.silence(gap, now) for gap in told_of[-GAPS:]), max(0, len(told_of) - GAPS))


def frontier(found: HistoryResult, now: float) -> float:
    """Until when what goes on is known to go on: now, if it is looked as it should be."""
    last = found.unseen[-1] if found.unseen else None
    if last is None or last.why not in _PRESENT or (last.until is not None and last.until < now - 1.0):
        return now
    known = last.since if last.since is not None else found.latest
    return now if known is None else min(now, known)


def drawing(
    found: HistoryResult,
    span: Range,
    now: float,
    *,
    group: Callable[[HoldingRow], Named],
    named: Callable[[HoldingRow], tuple[str, str, str]],
    rows: Sequence[HoldingRow] | None = None,
    at: float | None = None,
) -> Timeline:
    """The drawing of an answer, with a mark `at` a moment. `group` tells the row of bars that a holding goes
    to, `named` what stands on its bar: at length, in short, and where it leads. `rows`: those to draw, if not
    all.
    """
    kept = found.rows if rows is None else rows
    known = frontier(found, now)
    groups: dict[str, Named] = {}
    stretches: list[Stretch] = []
    for row in kept:
        row_of = groups.setdefault((name := group(row)).key, name)
        stretches.append(_stretch(row, row_of.key, named(row), known, now))
    return timeline(
        stretches,
        sorted(groups.values(), key=lambda one: (natural(one.name), one.key)),
        [Silent(gap.since, gap.until, periods.REASONS[gap.why]) for gap in found.unseen],
        since=span.since,
        until=span.until,
        now=now,
        mark=at,
    )


def _stretch(row: HoldingRow, group: str, names: tuple[str, str, str], known: float, now: float) -> Stretch:
    start, end = row.start, row.end or row.missed
    since = start.not_after if start.not_after is not None else start.not_before or 0.0
    until, latest = known, max(known, now)
    if end is not None:
        until = since if end.not_before is None else end.not_before
        latest = now if end.not_after is None or row.missed is not None else end.not_after
    kind, words = _state(row)
    who = spelled(f"{row.key.namespace}/{row.key.pod}")
    return Stretch(
        key=f"b{row.id}",
        group=group,
        name=names[0],
        short=names[1],
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
    key = row.key
    began, end = periods.began(row, now), periods.ended(row, now)
    doubt = " Nobody looked for a while meanwhile: it may be another pod of that name." if row.assumed else ""
    until = "held still" if end is None else f"ended {periods.in_words(end)}"
    lasted = periods.lasted(row, now)
    return (
        f"{text(key.device, limit=_NAME).shown}: began {periods.in_words(began)}, {until}"
        f"{f', {lasted}' if lasted else ''} (UTC).{doubt}"
    )


def of_device(row: HoldingRow) -> Named:
    """Bars in one row for each device."""
    key = row.key
    name = f"{text(key.device, limit=_NAME).shown} · {text(key.resource or key.driver, limit=_NAME).shown}"
    return Named(row_key("bar", key.resource, key.driver, key.pool, key.device), name, link_of(key))


def by_pod(row: HoldingRow) -> tuple[str, str, str]:
    """Bars with the name of the pod."""
    key = row.key
    shown = text(key.pod, limit=40).shown
    full = f"{text(key.namespace, limit=40).shown}/{shown}"
    return full, shown, life_link(key.namespace, key.pod, row.facts.uid)


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


ROWS: Final = 200
"""Holdings that a page asks for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What history said: `found`, or None and the `trouble` in words."""

    found: HistoryResult | None
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
    group: Callable[[HoldingRow], Named],
    named: Callable[[HoldingRow], tuple[str, str, str]],
    more: str,
    rows: Sequence[HoldingRow] | None = None,
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
        since=periods.stamp(shown.since, now),
        until=periods.stamp(shown.until, now),
        live=span.until >= now,
        presets=presets(span),
        drawn=drawing(found, shown, now, group=group, named=named, rows=kept, at=at),
        rows=tuple(
            past_row(row, now, certain=None if certain is None else certain.get(row.id)) for row in kept
        ),
        gaps=gaps(found, now, before=not span.label),
        reach=periods.optional(found.earliest, now),
        more=more if found.next is not None else "",
        whole=more,
    )
