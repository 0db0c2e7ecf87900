"""Rows of history: one for each holding, with the bounds of its start and its end.

The start of a holding is not observed: one poll of the kubelet shows the holding, and the poll before did
not. So each end of a row has two times and a certainty. Times are unix, in seconds.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from hashlib import blake2s
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from exporter.mapping.dra import ClaimName
from exporter.mapping.holdings import Holding, OpenHolding
from exporter.mapping.identity import Workload
from exporter.mapping.model import Device, DeviceKey, Holder, Snapshot

AT_ONCE_WITHIN: Final = 1.0
"""Seconds between two bounds up to which a change counts as observed at once."""

TEXT_LIMIT: Final = 1024
"""Characters of a name that are kept: Kubernetes names have at most 253, device ids any number."""


class Certainty(StrEnum):
    """How precisely the start or the end of a holding is known."""

    AT_ONCE = "at_once"
    """Within a second: by an event, or between two polls that close together."""
    BETWEEN_POLLS = "between_polls"
    """Between two consecutive polls."""
    WHILE_SILENT = "while_silent"
    """While the kubelet did not answer."""
    WHILE_DOWN = "while_down"
    """While the exporter was down, or could not poll."""
    HELD_ALREADY = "held_already"
    """Of a start: held in the first poll; the start is unknown."""
    IN_DOUBT = "in_doubt"
    """Of an end: missing just after the start of the exporter or of the kubelet, which may not list all pods
    yet.
    """


class Bound(NamedTuple):
    """When something happened: after `not_before`, the last poll that did not show it, and before
    `not_after`, the first poll that did. None if there was no such poll.
    """

    not_before: float | None
    not_after: float | None
    certainty: Certainty


class HoldingKey(NamedTuple):
    """A device and the names of its holder, whichever pod of that name it is."""

    resource: str
    device: str
    namespace: str
    pod: str
    container: str


class HoldingFacts(NamedTuple):
    """Facts about a holding: the pod's uid and workload, "" until known, the physical device behind a replica
    or a slice, "" for a whole device, and the node's name.

    A claimed device (DRA) has the claim, of several the first in order, its share, "" unless the device is
    shared by capacity, and what the container asked by (Device.requested_as), "" until known. A container
    asks for a plugin's device by its resource: all four are "".
    """

    uid: str = ""
    workload_kind: str = ""
    workload: str = ""
    parent: str = ""
    node: str = ""
    claim_namespace: str = ""
    claim: str = ""
    share_id: str = ""
    requested_as: str = ""

    def may_continue(self, other: "HoldingFacts") -> bool:
        """Whether both may be of one pod. A uid that is unknown contradicts nothing; another claim does: a
        pod's claims never change, and its successor has claims of its own.
        """
        if self.uid and other.uid:
            return self.uid == other.uid
        return (self.claim_namespace, self.claim) == (other.claim_namespace, other.claim)


class HoldingRow(Struct, frozen=True):
    """One holding. `end` is None while it is held.

    `missed`: when it may have ended. It is missing just after the start of the exporter or of the kubelet,
    which may not list all pods yet.

    `assumed`: there was a gap without polls in it, and no uid proves that the pod is still the same: another
    one of its name may have taken its place.

    `pool` is that of a claimed device in a row that schema version 3 wrote, "" in every other row.
    """

    id: int
    key: HoldingKey
    facts: HoldingFacts
    start: Bound
    end: Bound | None = None
    missed: Bound | None = None
    assumed: bool = False
    pool: str = ""

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
        """Whether a poll before `at` and one after it showed the holding, or the last poll if it is open."""
        began = self.start.not_after is not None and self.start.not_after <= at
        end = self.end or self.missed
        return began and (end is None or (end.not_before or 0.0) >= at)


Present = Mapping[HoldingKey, tuple[HoldingFacts, ...]]
"""The holdings of one snapshot. Several facts: pods of one name at the same time, with different uids."""


def present(
    snapshot: Snapshot,
    workload: Callable[[Holder], Workload],
    node: str = "",
    *,
    devices: Iterable[Device] | None = None,
) -> Present:
    """The holdings of `snapshot` on `node`, without those that are unconfirmed. Only those of its `devices`
    if given.
    """
    found: dict[HoldingKey, tuple[HoldingFacts, ...]] = {}
    # A container's names and facts are the same for all its devices.
    known: dict[tuple[Holder, str], tuple[tuple[str, str, str], tuple[HoldingFacts]]] = {}
    for device in snapshot.devices if devices is None else devices:
        for holder in device.holders:
            if snapshot.unconfirmed and snapshot.doubt(holder):
                continue
            of = known.get((holder, device.parent))
            if of is None:
                facts = _facts(holder, workload(holder), node, device.parent)
                of = known[holder, device.parent] = (_names(holder), (facts,))
            resource, name = device.key
            names, same = of
            if device.claimed is not None:
                same = (_through_claim(same[0], device, holder),)
            key = HoldingKey(bounded(resource), bounded(name), *names)
            if found.setdefault(key, same) is not same:
                found[key] = (*found[key], *same)
    return found


def unconfirmed(snapshot: Snapshot) -> frozenset[HoldingKey]:
    """The holdings of `snapshot` that `present` leaves out."""
    if not snapshot.unconfirmed:
        return frozenset()
    return frozenset([key_of(device.key, holder) for device, holder in snapshot.unconfirmed_owners()])


def key_of(held: DeviceKey, holder: Holder) -> HoldingKey:
    """The key of the holding of `held` by `holder`."""
    return HoldingKey(bounded(held.resource), bounded(held.device), *_names(holder))


def _facts(holder: Holder, workload: Workload, node: str, parent: str) -> HoldingFacts:
    known = (holder.pod_uid, workload.kind, workload.name, parent, node)
    return HoldingFacts(*map(bounded, known))


def _through_claim(facts: HoldingFacts, device: Device, holder: Holder) -> HoldingFacts:
    """`facts` with the first claim through which `holder` has a claimed device; as they are for a holder that
    a plugin gave the same device.
    """
    claims = () if device.claimed is None else device.claimed.through
    claim = next((one for one in claims if one.holder == holder and not one.admin), None)
    if claim is None:
        return facts
    return facts._replace(
        claim_namespace=bounded(claim.claim_namespace),
        claim=bounded(claim.claim),
        share_id=bounded(claim.share_id),
        requested_as=bounded(device.requested_as(holder)),
    )


def _names(holder: Holder) -> tuple[str, str, str]:
    return bounded(holder.namespace), bounded(holder.pod), bounded(holder.container)


def bounded(text: str) -> str:
    """`text` as history keeps it: valid UTF-8, and cut with a hash at its end if it is too long."""
    if len(text) <= TEXT_LIMIT and text.isascii():
        return text
    clean = text.encode(errors="backslashreplace").decode()
    if len(clean) <= TEXT_LIMIT:
        return clean
    mark = blake2s(clean.encode(), digest_size=8).hexdigest()
    return f"{clean[: TEXT_LIMIT - len(mark) - 1]}…{mark}"


def between(not_before: float, not_after: float, certainty: Certainty) -> Bound:
    """A bound, in order even if the clock was set back; AT_ONCE if it is narrow enough."""
    first = min(not_before, not_after)
    if certainty is Certainty.BETWEEN_POLLS and not_after - first <= AT_ONCE_WITHIN:
        certainty = Certainty.AT_ONCE
    return Bound(first, not_after, certainty)


def ended(row: HoldingRow, end: Bound) -> HoldingRow:
    """`row` with its end, which is never before its start even if the clock was set back."""
    began = row.start.not_before
    first = row.low if end.not_before is None else end.not_before
    first = first if began is None else max(first, began)
    last = max(end.not_after or first, row.start.not_after or first, first)
    return replace(row, end=Bound(first, last, end.certainty), missed=None)


_VAGUE: Final = frozenset({Certainty.HELD_ALREADY, Certainty.WHILE_DOWN})


class RecordedHoldings:
    """History's open rows by holding. Implements OpenHoldings: each is returned once."""

    def __init__(self, rows: Iterable[HoldingRow]) -> None:
        self._open: dict[HoldingKey, list[HoldingRow]] = {}
        for row in rows:
            self._open.setdefault(row.key, []).append(row)

    def take(self, holding: Holding, claims: Collection[ClaimName] = ()) -> OpenHolding | None:
        """The record of `holding`, as HoldingFacts.may_continue says."""
        found, uid = self._open.get(key_of(holding.key, holding.holder), []), holding.holder.pod_uid
        names = [(bounded(claim.namespace), bounded(claim.name)) for claim in claims] or [("", "")]
        facts = [HoldingFacts(uid, claim_namespace=namespace, claim=name) for namespace, name in names]
        mine = [row for row in found if any(map(row.facts.may_continue, facts))]
        same = next(
            (row for row in mine if row.facts.uid == uid), mine[0] if len(found) == len(mine) == 1 else None
        )
        if same is None or same.start.not_after is None:
            return None
        found.remove(same)
        return OpenHolding(same.start.not_after, same.start.certainty not in _VAGUE, same.facts.uid)
