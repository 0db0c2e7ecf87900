"""What changed between two snapshots: who was given what, who gave what back."""

from dataclasses import dataclass
from typing import NamedTuple

from exporter.core.model import DeviceKey, Holder, Snapshot


class Holding(NamedTuple):
    """One holder of one device. A shared device has several holdings, a free one none."""

    key: DeviceKey
    holder: Holder


@dataclass(frozen=True, slots=True)
class Diff:
    """Holdings that began and ended, each sorted."""

    began: tuple[Holding, ...] = ()
    ended: tuple[Holding, ...] = ()


def holdings(snapshot: Snapshot) -> frozenset[Holding]:
    """Every present holding of `snapshot`'s devices."""
    return frozenset(Holding(device.key, holder) for device in snapshot.devices for holder in device.holders)


def diff(old: Snapshot, new: Snapshot) -> Diff:
    """What makes `new` of `old`: holdings(old) without `ended` and with `began` are holdings(new)."""
    before, after = holdings(old), holdings(new)
    return Diff(began=tuple(sorted(after - before)), ended=tuple(sorted(before - after)))


def pods_gone(old: Snapshot, new: Snapshot) -> frozenset[tuple[str, str]]:
    """Namespace and name of each pod that held something in `old` and holds nothing in `new`."""
    return _holding_pods(old) - _holding_pods(new)


def _holding_pods(snapshot: Snapshot) -> frozenset[tuple[str, str]]:
    return frozenset((found.holder.namespace, found.holder.pod) for found in snapshot.containers)
