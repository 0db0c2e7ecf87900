"""What changed between two snapshots: who was given what, who gave what back, of whom more is known now.

A pod's uid may be learned after its holding was seen, and a source of identity may fall silent: a holding
whose uid is unknown on one side is the same holding. Two uids are two pods, whatever their name.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from exporter.core.model import ClaimDevice, Device, HeldKey, Holder, PodKey, Snapshot


class Holding(NamedTuple):
    """One holder of one device, whether a device plugin's or through a claim (DRA). A shared device has
    several holdings, a free one none.
    """

    key: HeldKey
    holder: Holder

    def unnamed(self) -> "Holding":
        """The same without the pod's uid: what the kubelet's List alone tells."""
        holder = self.holder
        return self if not holder.pod_uid else Holding(self.key, holder._replace(pod_uid=""))


class Renamed(NamedTuple):
    """One holding before and after its pod's uid was learned, or was in doubt again."""

    old: Holding
    new: Holding


@dataclass(frozen=True, slots=True)
class Diff:
    """Holdings that began, that ended, and that went on under another name; each sorted."""

    began: tuple[Holding, ...] = ()
    ended: tuple[Holding, ...] = ()
    renamed: tuple[Renamed, ...] = ()


def holdings(snapshot: Snapshot) -> frozenset[Holding]:
    """Every present holding of `snapshot`'s devices and claimed devices."""
    return of_devices(snapshot.devices) | of_claims(snapshot.claims)


def of_devices(devices: Iterable[Device]) -> frozenset[Holding]:
    """Every holding of `devices`."""
    return frozenset([Holding(device.key, holder) for device in devices for holder in device.holders])


def of_claims(claimed: Iterable[ClaimDevice]) -> frozenset[Holding]:
    """Every holding of `claimed` devices: one for each container and claim."""
    return frozenset(
        [Holding(one.held(through), through.holder) for one in claimed for through in one.holders]
    )


def diff(old: Snapshot, new: Snapshot) -> Diff:
    """What makes `new` of `old`: holdings(old) without `ended` and each `renamed.old`, and with `began` and
    each `renamed.new`, are holdings(new).
    """
    changed = new.changed_since(old)
    if changed is None:
        before, after = of_devices(old.devices), of_devices(new.devices)
    else:
        before, after = of_devices([was for was, _ in changed]), of_devices([now for _, now in changed])
    if new.claims is not old.claims:
        before, after = before | of_claims(old.claims), after | of_claims(new.claims)
    return compare(before, after)


def compare(before: frozenset[Holding], after: frozenset[Holding]) -> Diff:
    """The same of two sets of holdings."""
    began, ended = set(after - before), set(before - after)
    renamed: list[Renamed] = []
    if began and ended:
        went = _by_name(ended)
        for unnamed, came in _by_name(began).items():
            renamed.extend(_renamed(went.get(unnamed, []), came))
    for pair in renamed:
        ended.discard(pair.old)
        began.discard(pair.new)
    return Diff(tuple(sorted(began)), tuple(sorted(ended)), tuple(sorted(renamed)))


def _by_name(found: Iterable[Holding]) -> dict[Holding, list[Holding]]:
    grouped: dict[Holding, list[Holding]] = {}
    for holding in found:
        grouped.setdefault(holding.unnamed(), []).append(holding)
    return grouped


def _renamed(went: list[Holding], came: list[Holding]) -> list[Renamed]:
    """The one holding that goes on. With several of one name on a side nothing tells which is which."""
    if len(went) == len(came) == 1 and not (went[0].holder.pod_uid and came[0].holder.pod_uid):
        return [Renamed(went[0], came[0])]
    return []


def pods_gone(old: Snapshot, new: Snapshot) -> frozenset[PodKey]:
    """Namespace and name of each pod that held something in `old` and holds nothing in `new`."""
    return _holding_pods(old) - _holding_pods(new)


def _holding_pods(snapshot: Snapshot) -> frozenset[PodKey]:
    return frozenset((found.holder.namespace, found.holder.pod) for found in snapshot.containers)
