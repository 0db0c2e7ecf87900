"""Decides which pods of the kubelet's checkpoint have ended. No I/O and no clock; callers pass the time.

The checkpoint keeps the entry of an ended pod until the next allocation of anything. List drops the pod, but
has no uids, never names devices of ordinary init containers, and leaves out running pods just after a kubelet
restart. So a pod has ended only when all of this holds:

- List named one of its devices before: List does show this pod.
- The kubelet has had its pods for long enough: see `SETTLED`.
- Two answers in a row name none of its devices.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from plugin.devices.device import HeldIds, Holding

SETTLED: Final = 60.0
"""Seconds from the first answer of a kubelet process until its List may prove that a pod has ended.

kubelet: without the API server, List names only static pods, for as long as that lasts. So the process must
also have named a pod of the API server.
"""


class ListAnswer(Struct, frozen=True):
    """One answer of List. `at`: monotonic time of the call.

    `kubelet` identifies the kubelet process by its socket; None where the socket changed during the call.
    `synced`: whether the answer names a pod of the API server.
    """

    held: HeldIds
    kubelet: tuple[int, int] | None
    synced: bool
    at: float


class EndedPods:
    """Follows the pods of the checkpoint, by uid."""

    def __init__(self) -> None:
        self._kubelet: tuple[int, int] | None = None
        self._since = 0.0
        self._synced = False
        self._listed: set[str] = set()
        self._absent: set[str] = set()
        self._ended: set[str] = set()

    @property
    def listed(self) -> frozenset[str]:
        """Pods that List has named."""
        return frozenset(self._listed)

    @property
    def ended(self) -> frozenset[str]:
        """Pods that have ended."""
        return frozenset(self._ended)

    def observe(self, assigned: Mapping[str, frozenset[Holding]], answer: ListAnswer) -> None:
        """Compare the checkpoint, by pod uid, with a List answer that was requested after it was read.

        In this order a device that List names belongs to the pod of the checkpoint, or that pod has ended.
        """
        if answer.kubelet is None or answer.kubelet != self._kubelet:
            self._kubelet, self._since, self._synced = answer.kubelet, answer.at, False
            self._absent.clear()
        self._synced = self._synced or answer.synced
        settled = self._synced and answer.at - self._since >= SETTLED
        for known in (self._listed, self._absent, self._ended):
            known.intersection_update(assigned)
        for uid, holdings in assigned.items():
            if any(device_id in answer.held.get(resource, ()) for resource, device_id in holdings):
                self._listed.add(uid)
                self._absent.discard(uid)
                self._ended.discard(uid)
            elif uid in self._absent:
                self._ended.add(uid)
            elif settled and uid in self._listed:
                self._absent.add(uid)
