"""What a poll records of the mapping: all of it first, then only what changed since the poll before.

A refresh changes few devices, and a snapshot shares the others with the one before. The thread of history
compares the two states, so that the event loop only queues them.
"""

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from exporter.history.coverage import PollRecord
from exporter.history.devices import known_devices, same_devices
from exporter.history.record import Present, key_of, present, unconfirmed
from exporter.mapping.identity import UNKNOWN, Workload
from exporter.mapping.model import Device, Holder, PodKey
from exporter.mapping.state import State


class HistoryFeed:
    """Fills in polls with the states that they found. Used by the thread of history."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._last: State | None = None

    def forget(self) -> None:
        """Record all of the next state: history may lack the last one."""
        self._last = None

    def filled(self, poll: PollRecord, state: State) -> PollRecord:
        """`poll` with what `state` has of holdings and devices, or with what changed since the last state."""
        last, self._last = self._last, state
        changed = None if last is None else changed_holdings(last, state, self._node)
        same = last is not None and same_devices(state.snapshot, last.snapshot)
        return replace(
            poll,
            present=all_holdings(state, self._node) if changed is None else changed,
            whole=changed is None,
            unconfirmed=unconfirmed(state.snapshot),
            devices=None if same else known_devices(state.snapshot),
        )


def all_holdings(state: State, node: str) -> Present:
    """The holdings of `state`."""
    return _holdings(state, node, state.snapshot.devices)


def changed_holdings(before: State, after: State, node: str) -> Present | None:
    """The holdings of `after` that may differ from those of `before`, with () for each that is gone. None if
    all have to be compared: there are other devices, or pods that are unconfirmed.
    """
    old, new = before.snapshot, after.snapshot
    devices = new.changed_since(old)
    if devices is None or old.unconfirmed or new.unconfirmed:
        return None
    came, went = {now.key: now for _, now in devices}, [was for was, _ in devices]
    other = _other_workloads(before, after)
    if other:
        came |= {device.key: device for device in new.devices if _held_by(device, other)}
    found = {key_of(device.key, holder): () for device in went for holder in device.holders}
    return {**found, **_holdings(after, node, came.values())}


def _holdings(state: State, node: str, devices: Iterable[Device]) -> Present:
    def workload(holder: Holder) -> Workload:
        identity = state.pods.get((holder.namespace, holder.pod))
        return UNKNOWN if identity is None or identity.uid != holder.pod_uid else identity.workload

    return present(state.snapshot, workload, node, devices=devices)


def _other_workloads(before: State, after: State) -> Collection[PodKey]:
    """The pods whose workload changed while the uid, which is part of a holder, stayed."""
    if after.pods is before.pods:
        return ()
    pairs = [(key, before.pods.get(key), identity) for key, identity in after.pods.items()]
    return {
        key
        for key, was, now in pairs
        if was is not now and was is not None and was.uid == now.uid and was.workload != now.workload
    }


def _held_by(device: Device, pods: Collection[PodKey]) -> bool:
    return any(holder[:2] in pods for holder in device.holders)
