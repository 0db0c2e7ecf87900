"""Guards against the incomplete List that a kubelet returns just after a restart.

A kubelet lists no pod of the API server until it has synced with it: about a second after its start, or for
as long as the API server is away. It answers OK. If the exporter accepted this List, it would record the
release and a new allocation of every device. So it rejects the List: the refresh fails with the code
UNSETTLED (state.py), and the last snapshot stays. docs/architecture.md has the table of all conditions, how
long each lasts, and which function decides: `after_restart`, or `at_start` for the first List of a process.

Missing: a pod that held something is not listed, or listed under a new uid without devices (`missing_pods`).
Restart: the connection failed, the socket was replaced, or it is younger than YOUNG_SOCKET
(refresh/loop.py). All times are of one monotonic clock, in seconds.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from exporter.mapping.identity import PodView
from exporter.mapping.model import PodKey, Snapshot

DISTRUST: Final = 10.0
"""Seconds after a kubelet's restart within which missing pods are not believed gone, without a pod source."""
YOUNG_SOCKET: Final = 10.0
"""Age of the kubelet's socket, in seconds, below which the kubelet has just restarted."""
DISTRUST_UNSYNCED: Final = 3600.0
"""Seconds for which missing pods are not believed gone because a source has them or the kubelet has not
synced with the API server. The mapping is stale long before.
"""
DISTRUST_EMPTY_START: Final = 2.0
"""Age of the kubelet's socket, in seconds, below which an exporter that starts does not believe an empty
node, without a pod source.
"""


def missing_pods(old: Snapshot, new: Snapshot, listed: Collection[PodKey]) -> dict[PodKey, str]:
    """The pods that hold something in `old` and nothing in `new`, with their uids ("" if unknown).

    A pod of the same name that is `listed` without devices is not missing if the uid is unknown: nothing
    shows that it is the same pod.
    """
    holding = {found.holder[:2] for found in new.containers}
    uids = {found.holder[:2]: found.holder.pod_uid for found in old.containers}
    return {key: uid for key, uid in uids.items() if key not in holding and (uid or key not in listed)}


def after_restart(
    missing: Mapping[PodKey, str],
    view: PodView,
    *,
    listed: Iterable[PodKey],
    before: Iterable[PodKey],
    node: str,
    now: float,
    restarted_at: float,
) -> str | None:
    """Why a List that leaves out the pods `missing` is not believed; None if it is.

    `missing` maps each pod to its uid: a successor of the same name is another pod. `listed` are all pods of
    this List, `before` those of the last one that was believed, `node` is the node's name. Without a pod
    source, pods that hold nothing are the evidence: a kubelet that leaves out every pod of the API server,
    including DaemonSets, has not synced.
    """
    if not missing or now >= restarted_at + DISTRUST_UNSYNCED:
        return None
    problem = f"the kubelet has just restarted and does not list all pods yet: {len(missing)} with devices"
    there = [key for key, uid in missing.items() if _active(view, key, uid)]
    if there:
        return f"{problem} are missing, of which {len(there)} have not ended"
    if view.connected:
        if view.complete(now):
            return None
        return f"{problem} are missing, and it has not synced with the API server"
    others = any(key not in missing and not _may_be_static(key, node) for key in before)
    if others and all(_may_be_static(key, node) for key in listed):
        return f"{problem} are missing, and it lists no pod of the API server"
    return f"{problem} are missing" if now < restarted_at + DISTRUST else None


def at_start(
    snapshot: Snapshot, listed: Collection[PodKey], view: PodView, *, now: float, socket_age: float | None
) -> str | None:
    """Why the exporter's first List is not believed if no container holds anything; None if it is.

    `listed` are all pods of the List; `socket_age` is None if unknown.
    """
    if snapshot.containers or socket_age is None or not 0 <= socket_age < YOUNG_SOCKET:
        return None
    problem = f"the kubelet started {socket_age:.1f} s ago and may not list all pods yet"
    if view.connected:
        if not view.complete(now):
            return f"{problem}: it has not synced with the API server"
        absent = [key for key in view.records if key not in listed and _active(view, key)]
        return f"{problem}: {len(absent)} that have not ended are missing" if absent else None
    return problem if socket_age < DISTRUST_EMPTY_START else None


def _active(view: PodView, key: PodKey, uid: str = "") -> bool:
    """Whether the source has a pod of this name, and of this uid if given, that has not ended."""
    return any(record.active and uid in {"", record.identity.uid} for record in view.of(key))


def _may_be_static(key: PodKey, node: str) -> bool:
    """Whether the kubelet may have the pod from a file (kubelet: a static pod is called NAME-NODE)."""
    return bool(node) and key[1].endswith(f"-{node.lower()}")
