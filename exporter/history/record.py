"""History's data: one row for each holding, with the bounds of its start and of its end.

Nobody sees a holding begin: it is there in one look at the kubelet and was not in the look before. So
each end of a row is a pair of times, and a word for how it came to be known. Times are unix, in seconds.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2s
from typing import Final, NamedTuple

from exporter.mapping.holdings import Holding, OpenHolding
from exporter.mapping.identity import Workload
from exporter.mapping.model import DeviceKey, HeldKey, Holder, Snapshot

AT_ONCE_WITHIN: Final = 1.0
"""Seconds between two bounds up to which a change counts as seen at once."""

TEXT_LIMIT: Final = 1024
"""Characters of a name that are kept: names in Kubernetes have 253 at most, device ids any number."""


class Certainty(StrEnum):
    """How an end of a holding came to be known."""

    AT_ONCE = "at_once"
    """Within a second: an event told of it, or two looks lay so close together."""
    BETWEEN_POLLS = "between_polls"
    """Between two looks that followed one another."""
    WHILE_SILENT = "while_silent"
    """While the kubelet did not answer."""
    WHILE_DOWN = "while_down"
    """While the exporter was down, or could not look."""
    HELD_ALREADY = "held_already"
    """Of a start: it was there in the very first look, and began nobody knows when."""
    IN_DOUBT = "in_doubt"
    """Of an end: the exporter has just started and does not see it, but the kubelet may not list all yet."""


class Bound(NamedTuple):
    """When something happened: after `not_before`, the last look that did not show it, and before
    `not_after`, the first that did. None where there was no such look.
    """

    not_before: float | None
    not_after: float | None
    certainty: Certainty


class HoldingKey(NamedTuple):
    """What is held and by which container, whichever pod of that name it is.

    A device plugin's device has a `resource`, a claimed one (DRA) `driver`, `pool` and the claim; what
    does not apply is "".
    """

    resource: str
    driver: str
    pool: str
    device: str
    share_id: str
    claim_namespace: str
    claim: str
    namespace: str
    pod: str
    container: str


class HoldingFacts(NamedTuple):
    """What else is known of a holding: the pod's uid and workload, "" until they are known, the physical
    device behind a replica or a slice, "" for a whole one, and the node's name.
    """

    uid: str = ""
    workload_kind: str = ""
    workload: str = ""
    parent: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class HoldingRow:
    """One holding. `end` is None while it is held.

    `missed`: when it may have ended, of a row that is in doubt: the exporter has started and does not see
    it, but the kubelet may not list all yet.

    `assumed`: nobody looked for a while in the midst of it, and no uid proves that it is still the same
    pod; another one of its name may have taken its place unseen.
    """

    id: int
    key: HoldingKey
    facts: HoldingFacts
    start: Bound
    end: Bound | None = None
    missed: Bound | None = None
    assumed: bool = False

    @property
    def low(self) -> float:
        """The earliest time at which it may have been held, as far as it is bounded."""
        if self.start.not_before is not None:
            return self.start.not_before
        return self.start.not_after if self.start.not_after is not None else 0.0

    @property
    def high(self) -> float:
        """The latest time at which it may have been held."""
        return math.inf if self.end is None or self.end.not_after is None else self.end.not_after

    def surely_held_at(self, at: float) -> bool:
        """Whether a look before `at` and one after it showed the holding, or the last look if it goes on."""
        began = self.start.not_after is not None and self.start.not_after <= at
        end = self.end or self.missed
        return began and (end is None or (end.not_before or 0.0) >= at)


Present = Mapping[HoldingKey, tuple[HoldingFacts, ...]]
"""The holdings of one snapshot. Several facts: pods of one name at the same time, told apart by uid."""


def present(snapshot: Snapshot, workload: Callable[[Holder], Workload], node: str = "") -> Present:
    """The holdings of `snapshot`, of device plugins' devices and of claimed ones, on `node`."""
    found: dict[HoldingKey, tuple[HoldingFacts, ...]] = {}
    # A container's names and facts are the same for all that it holds.
    known: dict[tuple[Holder, str], tuple[tuple[str, str, str], tuple[HoldingFacts]]] = {}
    for device in snapshot.devices:
        for holder in device.holders:
            of = known.get((holder, device.parent))
            if of is None:
                facts = _facts(holder, workload(holder), node, device.parent)
                of = known[holder, device.parent] = (_names(holder), (facts,))
            resource, name = device.key
            names, told = of
            key = HoldingKey(bounded(resource), "", "", bounded(name), "", "", "", *names)
            if found.setdefault(key, told) is not told:
                found[key] = (*found[key], *told)
    for claimed in snapshot.claims:
        for through in claimed.holders:
            key = key_of(claimed.held(through), through.holder)
            facts = _facts(through.holder, workload(through.holder), node)
            found[key] = (*found.get(key, ()), facts)
    return found


def key_of(held: HeldKey, holder: Holder) -> HoldingKey:
    """What history calls it that `holder` holds `held`."""
    if isinstance(held, DeviceKey):
        return HoldingKey(bounded(held.resource), "", "", bounded(held.device), "", "", "", *_names(holder))
    return HoldingKey("", *map(bounded, (*held, *holder[:3])))


def _facts(holder: Holder, workload: Workload, node: str, parent: str = "") -> HoldingFacts:
    known = (holder.pod_uid, workload.kind, workload.name, parent, node)
    return HoldingFacts(*map(bounded, known))


def _names(holder: Holder) -> tuple[str, str, str]:
    return bounded(holder.namespace), bounded(holder.pod), bounded(holder.container)


def bounded(text: str) -> str:
    """`text` as history keeps it: whole in all likelihood; one that is too long is cut, and told from others
    that begin alike by a hash. Always valid UTF-8.
    """
    if len(text) <= TEXT_LIMIT and text.isascii():
        return text
    clean = text.encode(errors="backslashreplace").decode()
    if len(clean) <= TEXT_LIMIT:
        return clean
    mark = blake2s(clean.encode(), digest_size=8).hexdigest()
    return f"{clean[: TEXT_LIMIT - len(mark) - 1]}…{mark}"


def between(not_before: float, not_after: float, certainty: Certainty) -> Bound:
    """A bound in which a clock that was set back turns nothing round; AT_ONCE if it is narrow enough."""
    first = min(not_before, not_after)
    if certainty is Certainty.BETWEEN_POLLS and not_after - first <= AT_ONCE_WITHIN:
        certainty = Certainty.AT_ONCE
    return Bound(first, not_after, certainty)


def ended(row: HoldingRow, end: Bound) -> HoldingRow:
    """`row` with its end, which is never before its start whatever the clock did."""
    began = row.start.not_before
    first = row.low if end.not_before is None else end.not_before
    first = first if began is None else max(first, began)
    last = max(end.not_after or first, row.start.not_after or first, first)
    return replace(row, end=Bound(first, last, end.certainty), missed=None)


_VAGUE: Final = frozenset({Certainty.HELD_ALREADY, Certainty.WHILE_DOWN})


class RecordedHoldings:
    """History's open rows by holding. Implements OpenHoldings: each is returned once."""

    def __init__(self, rows: Iterable[HoldingRow]) -> None:
        self._open: dict[HoldingKey, list[OpenHolding]] = {}
        for row in rows:
            if row.start.not_after is not None:
                found = OpenHolding(row.start.not_after, row.start.certainty not in _VAGUE, row.facts.uid)
                self._open.setdefault(row.key, []).append(found)

    def take(self, holding: Holding) -> OpenHolding | None:
        """The record of `holding`. A uid that is unknown on one side contradicts nothing."""
        found = self._open.get(key_of(holding.key, holding.holder), [])
        uid = holding.holder.pod_uid
        same = next((one for one in found if one.uid == uid), None)
        if same is None and len(found) == 1 and not (uid and found[0].uid):
            same = found[0]
        if same is not None:
            found.remove(same)
        return same
