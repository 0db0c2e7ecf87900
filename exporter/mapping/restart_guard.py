"""Decides what is believed of the List that a kubelet returns just after a restart.

A kubelet lists no pod of the API server until it has synced with it: about a second after its start, or for
as long as the API server is away. It answers OK. What such a List says is believed at once. A pod that it
leaves out is not: the pod stays the holder of what nobody else is listed with (exporter.mapping.carried) as
long as `doubted` returns it. docs/architecture.md has the table of all conditions, and how long each lasts.

Missing: a pod that held something before the restart and that no List after it has named. A listed pod holds
what it is listed with. Restart: the connection failed, the socket was replaced, or it is younger than
YOUNG_SOCKET (refresh/loop.py). Times are of one monotonic clock, in seconds, unless they are called unix.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from exporter.mapping.identity import NEVER, PodView
from exporter.mapping.model import Doubt, PodKey, Snapshot

DISTRUST: Final = 10.0
"""Seconds after a kubelet's restart, or after its sync with the API server, within which missing pods are not
believed gone, without a pod source.
"""
QUIET: Final = 2.0
"""Seconds without a further pod in List after which a synced kubelet has listed all of them, without a pod
source: it admits its pods one after the other.
"""
YOUNG_SOCKET: Final = 10.0
"""Age of the kubelet's socket, in seconds, below which the kubelet has just restarted."""
DISTRUST_UNSYNCED: Final = 3600.0
"""Seconds for which missing pods are not believed gone because a source has them or the kubelet has not
synced with the API server.
"""
DISTRUST_EMPTY_START: Final = 2.0
"""Age of the kubelet's socket, in seconds, below which an exporter that starts does not believe an empty
node, without a pod source.
"""


class Restart(Struct, frozen=True):
    """A restart of the kubelet, and what its Lists have named since.

    `at` is monotonic, `unix` the same moment in unix time. `idle`: pods of the API server that held nothing
    were listed before. `seen` are all pods listed since, the last new one at `appeared_at`, and the first of
    the API server at `synced_at`.
    """

    at: float
    unix: float
    idle: bool
    seen: frozenset[PodKey] = frozenset()
    appeared_at: float = 0.0
    synced_at: float = NEVER

    def listed(self, names: frozenset[PodKey], *, node: str, now: float) -> "Restart":
        """The same with the pods of a List that was answered at `now`. `node` is the node's name."""
        if names <= self.seen:
            return self
        of_api = not all(_may_be_static(key, node) for key in names)
        synced_at = min(self.synced_at, now) if of_api else self.synced_at
        return replace(self, seen=self.seen | names, appeared_at=now, synced_at=synced_at)

    def doubt(self, why: str, lasts: float) -> Doubt:
        """A doubt that lasts for so many seconds from the restart."""
        return Doubt(why, self.unix, self.unix + lasts)


def restarted(
    at: float,
    unix: float,
    *,
    before: Iterable[PodKey],
    held: Collection[PodKey],
    node: str,
    last: Restart | None,
) -> Restart:
    """A new restart. `before` are the pods of the List before it, `held` those that held something, and
    `last` is an earlier restart that still casts doubt on some of them.
    """
    idle = any(key not in held and not _may_be_static(key, node) for key in before)
    return Restart(at, unix, idle or (last is not None and last.idle))


def holding_pods(snapshot: Snapshot) -> dict[PodKey, str]:
    """The pods that hold something, with their uids, "" if unknown."""
    return {found.holder[:2]: found.holder.pod_uid for found in snapshot.containers}


def doubted(
    missing: Mapping[PodKey, str], view: PodView, restart: Restart, now: float
) -> dict[PodKey, Doubt]:
    """The `missing` pods that are not believed gone, and why.

    `missing` maps each pod to its uid: a successor of the same name is another pod. Without a pod source,
    pods that hold nothing are the evidence: a kubelet that leaves out every pod of the API server, including
    DaemonSets, has not synced.
    """
    if now >= restart.at + DISTRUST_UNSYNCED:
        return {}
    others: Doubt | None
    synced = restart.synced_at < NEVER
    ends = DISTRUST + (restart.synced_at - restart.at if synced else 0.0)
    if view.complete(now):
        others = None
    elif (view.connected or restart.idle) and not synced:
        others = restart.doubt("the kubelet has not synced with the API server", DISTRUST_UNSYNCED)
    elif now >= restart.at + ends or (synced and now >= restart.appeared_at + QUIET):
        others = None
    else:
        others = restart.doubt("the kubelet may not list all pods yet", ends)
    present = restart.doubt("the pod source has not reported its end", DISTRUST_UNSYNCED)
    found: dict[PodKey, Doubt] = {}
    for key, uid in missing.items():
        if _active(view, key, uid):
            found[key] = present
        elif others is not None and not _ended(view, key, uid):
            found[key] = others
    return found


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


def _ended(view: PodView, key: PodKey, uid: str) -> bool:
    """Whether the source, which may be silent by now, reported the end of this very pod."""
    return any(record.identity.uid == uid and not record.active for record in view.of(key))


def _may_be_static(key: PodKey, node: str) -> bool:
    """Whether the kubelet may have the pod from a file (kubelet: a static pod is called NAME-NODE)."""
    return bool(node) and key[1].endswith(f"-{node.lower()}")
