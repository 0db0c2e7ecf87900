"""A time range of a fleet: which series, on which grid of moments, asked in parts. Then told as history."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from exporter.cli.http import NobodyError
from exporter.cli.prometheus import labels
from exporter.cli.prometheus.answers import Line
from exporter.cli.prometheus.client import POINTS, Prometheus
from exporter.cli.prometheus.fleet import Scope
from exporter.cli.prometheus.past import Held, Looks, What, Where, holdings, looks, what_of
from exporter.cli.prometheus.promql import Matcher, one_of, selector
from exporter.cli.select import (
    FleetHistoryDocument,
    FleetPastEntry,
    NothingMatches,
    Question,
    devices_like,
    of_pod,
    placed,
    resource_among,
    there_are,
)
from exporter.mapping.device_ids import read_id
from exporter.views.schema import BoundEntry
from exporter.views.wording import counted, lasting, rfc3339

_FINEST, _USUAL, _COARSEST = 1.0, 15.0, 300.0
"""Seconds of a step: scrapes are hardly closer, and farther apart a moment shows nothing of the last one."""
_MOMENTS: Final = 2000
"""Moments of a range, where nothing else is asked for."""
_POINTS: Final = 1_000_000
"""Points of one answer: some 30 MB."""
_PARTS: Final = 200
"""Answers that are asked for in all, of one family."""
_NAMED: Final = 100
"""Devices that are named in a query; of more all are asked for."""
_GAPS: Final = 5
_INTERVAL: Final = 600
"""Seconds in which scrapes are looked at."""


class TooMuch(ValueError):  # noqa: N818 -- a wrong use
    """More is asked for than can be answered; the message says what to leave out."""


@dataclass(frozen=True, slots=True)
class Range:
    """So many moments from unix time `start` on, every `step` seconds. They lie on whole steps, so that who
    asks again asks for the same ones: caches before Prometheus want that.
    """

    start: float
    step: float
    count: int

    @property
    def end(self) -> float:
        """The last one."""
        return self.at(self.count - 1)

    def at(self, number: int) -> float:
        """One of them, from 0 on."""
        return self.start + number * self.step


def grid(since: float, until: float, step: float | None, scrape: float | None) -> Range:
    """The moments at which a time is looked at: every `step` seconds if it is given, else no closer than the
    scrapes are.
    """
    if step is None:
        finest = max(_FINEST, _USUAL if scrape is None else scrape)
        step = math.ceil(min(max((until - since) / _MOMENTS, finest), _COARSEST))
    start = math.floor(since / step) * step
    return Range(start, step, math.floor((until - start) / step) + 1)


def parts(asked: Range, series: int) -> list[tuple[float, float]]:
    """The range cut into pieces that Prometheus answers: each one's first and last moment.

    Raises TooMuch.
    """
    most = max(2, min(POINTS, _POINTS // max(1, series)))
    if asked.count > most * _PARTS:
        raise TooMuch(
            f"{series} series at {asked.count} moments are too much to ask for: take --node, --selector, "
            "a shorter time or a longer --step"
        )
    found: list[tuple[float, float]] = []
    for at in range(0, asked.count, most):
        last = min(at + most, asked.count) - 1
        found.append((asked.at(at), asked.at(last)))
    return found


@dataclass(frozen=True, slots=True)
class _Device:
    """What can be chosen by its names."""

    device: str
    parent: str | None
    where: Where
    what: What


def history(
    prometheus: Prometheus,
    scope: Scope,
    question: Question,
    asked: Range,
    *,
    limit: int,
    scrape: float | None,
) -> FleetHistoryDocument:
    """The newest holdings of a range, `limit` at most.

    Raises NothingMatches, Ambiguous, TooMuch, NobodyError and AskError.
    """
    known = _known(prometheus, scope, asked)
    if not known:
        raise NobodyError(
            f"{prometheus.origin} has nothing of devicelens that was held between {rfc3339(asked.start)} and "
            f"{rfc3339(asked.end)}{f', of {scope}' if not scope.all else ''}"
        )
    meant = _meant(known, question)
    found = _held(prometheus, scope, meant, asked)
    looked = _looked(prometheus, scope, asked)
    chosen = {(one.where, one.what) for one in meant}
    held = [
        one
        for family, lines in found.items()
        for one in holdings(family, lines, looked)
        if (one.where, one.what) in chosen
    ]
    held.sort(key=lambda one: (-(one.since or one.first), one.where, one.what))
    places = {one.where for one in held}
    telling = labels.telling([where.place for where in places])
    notes = [
        *_gaps({where: looked.get(where, Looks()) for where in sorted(places)}, asked, telling),
        _resolution(asked, scrape),
        *prometheus.notes,
    ]
    return FleetHistoryDocument(
        prometheus=prometheus.origin,
        since=rfc3339(asked.start),
        until=rfc3339(asked.end),
        step_seconds=asked.step,
        scrape_seconds=scrape,
        notes=tuple(notes),
        holdings=tuple(
            _entry(i, one, looked.get(one.where, Looks()), _Grain(asked, scrape), telling)
            for i, one in enumerate(held[:limit], 1)
        ),
        complete=len(held) <= limit,
    )


def _resolution(asked: Range, scrape: float | None) -> str:
    scraped = "" if scrape is None else f", scraped every {lasting(scrape)}"
    return (
        f"looked at every {lasting(asked.step)}{scraped}: what was held for a shorter time may not be seen, "
        "and an end is told as between two looks"
    )


def _known(prometheus: Prometheus, scope: Scope, asked: Range) -> list[tuple[str, _Device]]:
    """Whatever was held in that time, by family."""
    found: list[tuple[str, _Device]] = []
    for family in (labels.HELD_SINCE, labels.CLAIM_INFO):
        for metric in prometheus.series(selector(family, scope.matchers), asked.start, asked.end):
            told = what_of(family, metric)
            if told is None or not scope.keeps(told[0].node):
                continue
            where, what = told
            parent = read_id(what.device, what.resource).parent if what.resource else ""
            found.append((family, _Device(what.device, parent or None, where, what)))
    return found


def _meant(known: Sequence[tuple[str, _Device]], question: Question) -> list[_Device]:
    found = [device for _, device in known]
    if question.resource:
        names = {one.what.resource or one.what.driver for one in found}
        name = resource_among(names, question.resource)
        if name is None:
            raise NothingMatches(
                f"no resource {question.resource!r} was held in that time: {there_are(names)}"
            )
        found = [one for one in found if name in {one.what.resource, one.what.driver}]
    if question.device:
        found = _like(found, question.device)
    if question.pod is not None:
        pod = question.pod
        found = [one for one in found if of_pod(one.what.namespace, one.what.pod, pod)]
    if not found:
        raise NothingMatches("nothing that matches was held in that time")
    return found


def _like(found: Sequence[_Device], asked: str) -> list[_Device]:
    return devices_like(found, asked)


def _held(
    prometheus: Prometheus, scope: Scope, meant: Sequence[_Device], asked: Range
) -> Mapping[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for family in (labels.HELD_SINCE, labels.CLAIM_INFO):
        wanted = [one for one in meant if bool(one.what.driver) == (family == labels.CLAIM_INFO)]
        names = {one.device for one in wanted}
        if not wanted:
            continue
        matchers: tuple[Matcher, ...] = scope.matchers
        if len(names) <= _NAMED:
            matchers = (*matchers, one_of("device", names))
        found[family] = _lines(prometheus, selector(family, matchers), asked, len(wanted))
    return found


def _looked(prometheus: Prometheus, scope: Scope, asked: Range) -> Mapping[Where, Looks]:
    told = _lines(prometheus, selector(labels.RESOURCE_DEVICES, scope.matchers), asked, 1000)
    counters = _lines(prometheus, selector(labels.REFRESHES, scope.matchers), asked, 1000)
    return looks(told, counters)


def _lines(prometheus: Prometheus, expression: str, asked: Range, series: int) -> list[Line]:
    return [
        line
        for start, end in parts(asked, series)
        for line in prometheus.query_range(expression, start, end, asked.step).result
    ]


def scrape_interval(prometheus: Prometheus, scope: Scope, at: float) -> float | None:
    """Seconds between two scrapes shortly before unix time `at`, of the target that is scraped most seldom;
    None if there are not two. Raises AskError.
    """
    found = prometheus.samples(selector(labels.UP, scope.matchers), _INTERVAL, at).result
    usual = [
        median(later - earlier for (earlier, _), (later, _) in pairwise(line.values))
        for line in found
        if len(line.values) > 1
    ]
    return round(max(usual), 3) if usual else None


def _gaps(looked: Mapping[Where, Looks], asked: Range, telling: frozenset[str]) -> list[str]:
    told: list[str] = []
    for where, times in looked.items():
        name = placed(where.node, _told(where, telling))
        for since, until in times.gaps(asked.start, asked.end, asked.step):
            begin = "the beginning" if since is None else rfc3339(since)
            end = "the end" if until is None else rfc3339(until)
            told.append(f"nothing was told of {name} from {begin} to {end}: who held what then is not known")
    if len(told) > _GAPS:
        told = [*told[-_GAPS:], f"{counted(len(told) - _GAPS, 'more time')} like these are not told of here"]
    return told


def _told(where: Where, telling: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in where.place if name in telling}


class _Grain(NamedTuple):
    """How close it was looked at."""

    asked: Range
    scrape: float | None


def _entry(number: int, held: Held, looked: Looks, grain: _Grain, telling: frozenset[str]) -> FleetPastEntry:
    what = held.what
    return FleetPastEntry(
        id=number,
        node=held.where.node,
        labels=_told(held.where, telling),
        resource=what.resource or None,
        device=what.device,
        parent=(read_id(what.device, what.resource).parent or None) if what.resource else None,
        driver=what.driver or None,
        pool=what.pool or None,
        share_id=what.share_id or None,
        claim_namespace=what.claim_namespace or None,
        claim=what.claim or None,
        namespace=what.namespace,
        pod=what.pod,
        pod_uid=None,
        container=what.container,
        workload_kind=None,
        workload=None,
        start=_start(held, looked),
        end=_end(held, looked, grain),
        assumed=held.assumed,
        certain=None,
    )


def _start(held: Held, looked: Looks) -> BoundEntry:
    if held.since is not None:
        stamp = rfc3339(held.since)
        return BoundEntry(stamp, stamp, "first_seen")
    before = looked.before(held.first)
    return BoundEntry(None if before is None else rfc3339(before), rfc3339(held.first), "between_looks")


def _end(held: Held, looked: Looks, grain: _Grain) -> BoundEntry | None:
    asked, scrape = grain
    upcoming = looked.after(held.last)
    if upcoming is None:
        # At the last look it was there: of what came after nothing was asked, or nothing is known.
        going_on = asked.end - held.last < 1.5 * asked.step
        return None if going_on else BoundEntry(rfc3339(held.last), None, "in_doubt")
    # What a moment shows is of the scrape before it.
    seen = max(held.last - (scrape or 0.0), held.since or held.last - (scrape or 0.0))
    down = upcoming - held.last > 1.5 * asked.step or upcoming in looked.restarts
    return BoundEntry(
        rfc3339(min(seen, held.last)), rfc3339(upcoming), "while_down" if down else "between_looks"
    )
