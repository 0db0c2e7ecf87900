"""Whether a kubelet that has just come up may be believed when it leaves pods out.

A kubelet lists no pod of the API server until it has heard from it, for about a second after its start
and for as long as the API server is away, and answers OK meanwhile. Taken at its word, everything would
be released, and allocated anew a second later.

Times are of one monotonic clock, in seconds.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from exporter.mapping.identity import PodView, still_on_node
from exporter.mapping.model import PodKey, Snapshot

DISTRUST: Final = 10.0
"""Seconds after a kubelet's return within which pods that it leaves out are not believed gone, where no
source of identity tells more.
"""
DISTRUST_UNSYNCED: Final = 3600.0
"""Seconds for which they are not believed gone because a source says that they are there, or because the
kubelet has not heard of any pod of the API server. The mapping is stale long before.
"""
DISTRUST_EMPTY_START: Final = 2.0
"""Seconds of a kubelet's life within which nobody is believed to hold nothing, by an exporter that starts."""


def after_return(
    missing: Mapping[PodKey, str],
    view: PodView,
    *,
    listed: Iterable[PodKey],
    before: Iterable[PodKey],
    node: str,
    now: float,
    returned: float,
) -> str | None:
    """Why a List at `now` that leaves out the pods `missing`, which held something, is not believed; None if
    it is. The kubelet came back at `returned`. With each pod its uid, "" where it is not known: one that came
    under the same name is not the one that held something. `listed` are all pods that List names, `before`
    those that it named when it was last believed, on the node named `node`.

    Without a source of identity the pods that hold nothing tell: a kubelet that leaves out all of the API
    server's, also its node agents' and this exporter's own, has not heard of any.
    """
    if not missing or now >= returned + DISTRUST_UNSYNCED:
        return None
    told = f"the kubelet has just come back and does not list all pods yet: {len(missing)} that held devices"
    there = [key for key, uid in missing.items() if still_on_node(view, (key,), uid)]
    if there:
        return f"{told} are missing, of which {len(there)} have not ended"
    if view.connected:
        if view.complete(now):
            return None
        return f"{told} are missing, and it has not heard of the API server's pods"
    bystanders = any(key not in missing and not _may_be_static(key, node) for key in before)
    if bystanders and all(_may_be_static(key, node) for key in listed):
        return f"{told} are missing, and it lists no pod of the API server"
    return f"{told} are missing" if now < returned + DISTRUST else None


def _may_be_static(key: PodKey, node: str) -> bool:
    """Whether a pod may be known without the API server (kubelet: a static pod is called NAME-NODE)."""
    return bool(node) and key[1].endswith(f"-{node.lower()}")


def at_start(
    snapshot: Snapshot, listed: Collection[PodKey], view: PodView, *, now: float, age: float | None
) -> str | None:
    """Why the first List is not believed if by it nobody holds anything; None if it is.

    `listed` are all pods that it names; `age` is that of the kubelet's socket, None where it is not known.
    """
    if snapshot.containers or age is None or not 0 <= age < DISTRUST:
        return None
    told = f"the kubelet came up {age:.1f} s ago and may not list all pods yet"
    if view.connected:
        if not view.complete(now):
            return f"{told}: it has not heard of the API server's pods"
        absent = still_on_node(view, view.sightings.keys() - set(listed))
        return f"{told}: {len(absent)} that have not ended are missing" if absent else None
    return told if age < DISTRUST_EMPTY_START else None
