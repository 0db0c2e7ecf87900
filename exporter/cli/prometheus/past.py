"""Series over time made into holdings. Pure.

Prometheus is asked for a grid of moments, and a moment shows a series if a scrape had it shortly before. So
of a holding it is known when its exporter first saw it (the series' value), at which moments of the grid it
was there, and of the moments in between nothing. What a moment does not show counts as given back only if the
node's exporter told its mapping at that moment.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from exporter.cli.prometheus import labels
from exporter.cli.prometheus.answers import Line
from exporter.cli.prometheus.labels import Key

_SAME: Final = 0.001
"""Seconds by which two values may differ that are the same one."""


class Where(NamedTuple):
    """A node, with the labels that may tell it from others of its name."""

    node: str
    place: Key


class What(NamedTuple):
    """A device in a container's hands. A claimed one has a `driver` and no `resource`."""

    resource: str
    device: str
    namespace: str
    pod: str
    container: str
    driver: str = ""
    pool: str = ""
    share_id: str = ""
    claim_namespace: str = ""
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Looks:
    """The moments at which a node's mapping was told, sorted; `restarts` are those before which its exporter
    was started anew.
    """

    times: tuple[float, ...] = ()
    restarts: frozenset[float] = frozenset()

    def after(self, at: float) -> float | None:
        """The next one."""
        i = bisect_right(self.times, at)
        return self.times[i] if i < len(self.times) else None

    def before(self, at: float) -> float | None:
        """The one before."""
        i = bisect_left(self.times, at)
        return self.times[i - 1] if i else None

    def gaps(self, start: float, end: float, step: float) -> list[tuple[float | None, float | None]]:
        """The times of more than a step at which nothing was told, with the moments around them."""
        if not self.times:
            return [(None, None)]
        found: list[tuple[float | None, float | None]] = []
        if self.times[0] - start > 1.5 * step:
            found.append((None, self.times[0]))
        found += [(one, other) for one, other in pairwise(self.times) if other - one > 1.5 * step]
        if end - self.times[-1] > 1.5 * step:
            found.append((self.times[-1], None))
        return found


@dataclass(frozen=True, slots=True)
class Held:
    """One holding: seen at `first`, at `last`, and at every look in between. `since` is when its exporter saw
    it first, None where that is not told (claims). `assumed`: in between its exporter was started anew, or
    nobody looked, and nothing proves that it is the same pod.
    """

    where: Where
    what: What
    first: float
    last: float
    since: float | None
    assumed: bool = False


def looks(told: Iterable[Line], counters: Iterable[Line]) -> Mapping[Where, Looks]:
    """When each node's mapping was told. `told` is any family that a mapping always has, `counters` one that
    only grows while an exporter runs.
    """
    resets = _resets(counters)
    times: dict[Where, set[float]] = {}
    restarts: dict[Where, set[float]] = {}
    for line in told:
        series = labels.read({"__name__": labels.RESOURCE_DEVICES, **line.metric})
        if series is None:
            continue
        where = Where(series["node"], labels.place(series.target))
        times.setdefault(where, set()).update(at for at, _ in line.values)
        restarts.setdefault(where, set()).update(resets.get(series.target, ()))
    return {where: Looks(tuple(sorted(found)), frozenset(restarts[where])) for where, found in times.items()}


def _resets(counters: Iterable[Line]) -> Mapping[Key, frozenset[float]]:
    """The moments before which a target's counter fell: its process is another one."""
    values: dict[Key, dict[float, float]] = {}
    for line in counters:
        series = labels.read({"__name__": labels.REFRESHES, **line.metric})
        if series is not None:
            values.setdefault(series.target, {}).update((at, _number(text)) for at, text in line.values)
    return {
        target: frozenset(
            later for (_, before), (later, now) in pairwise(sorted(points.items())) if now < before
        )
        for target, points in values.items()
    }


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def what_of(family: str, metric: Mapping[str, str]) -> tuple[Where, What] | None:
    """What a series of devices held, or of claimed ones, is about."""
    series = labels.read({**metric, "__name__": family})
    if series is None or not series["pod"]:
        return None
    where = Where(series["node"], labels.place(series.target))
    if family == labels.CLAIM_INFO:
        return where, What(
            *("", series["device"], *series.holder, series["driver"], series["pool"], series["share_id"]),
            *(series["claim_namespace"], series["claim"]),
        )
    return where, What(series["resource"], series["device"], *series.holder)


class _Point(NamedTuple):
    """What a moment shows of a holding: its value, and the target that told it."""

    value: float
    target: Key


def holdings(family: str, lines: Iterable[Line], looked: Mapping[Where, Looks]) -> list[Held]:
    """The holdings that the series of one family tell of."""
    points: dict[tuple[Where, What], dict[float, _Point]] = {}
    for line in lines:
        key = what_of(family, line.metric)
        series = labels.read({**line.metric, "__name__": family})
        if key is None or series is None:
            continue
        kept = points.setdefault(key, {})
        for at, text in line.values:
            # Where two targets tell of one node, the one that saw it earlier is believed.
            point = _Point(_number(text), series.target)
            kept[at] = min(kept.get(at, point), point)
    timed = family == labels.HELD_SINCE
    return [
        held
        for (where, what), values in points.items()
        for held in _split(where, what, sorted(values.items()), looked.get(where, Looks()), timed=timed)
    ]


def _split(
    where: Where, what: What, points: Sequence[tuple[float, _Point]], looked: Looks, *, timed: bool
) -> Iterable[Held]:
    """A holding goes on while every look shows it, with a value that is no later than the look before.

    A later value is another holding's, unless another process tells it: that begins to count anew.
    """
    first, (since, target) = points[0]
    last, assumed = first, False

    def held() -> Held:
        return Held(where, what, first, last, since if timed else None, assumed)

    for at, point in points[1:]:
        upcoming = looked.after(last)
        missing = upcoming is not None and upcoming < at
        began_anew = timed and point.value > last and point.value - since > _SAME
        doubted = at in looked.restarts or point.target != target
        if missing or (began_anew and not doubted):
            yield held()
            first, since, assumed = at, point.value, False
        else:
            assumed = assumed or began_anew
            since = min(since, point.value)
        last, target = at, point.target
    yield held()
