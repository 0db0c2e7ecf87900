"""Which of the status page's rows stand together, and what of them is on one page. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from exporter.core.model import ClaimDevice, Device, PodKey
from exporter.web.matching import Match
from exporter.web.pages.sorting import Entry
from exporter.web.query import Group

_FREE: Final = ("free",)

ClusterKey = tuple[str, ...]
"""() for rows of no group; ("device", domain, id), ("pod", namespace, name), or ("free",)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Rows that stand together: `every` one of them, `shown` those on this page; `continued` where the page
    before ends with some of them.
    """

    key: ClusterKey
    every: tuple[Entry, ...]
    shown: tuple[Entry, ...]
    continued: bool = False


def entries(items: Iterable[Device | ClaimDevice], group: Group, match: Match) -> list[Entry]:
    """A row for each of `items`; by pod, one for each of its pods that `match` names."""
    if group is not Group.POD:
        return [Entry(item) for item in items]
    return [Entry(item, pod) for item in items for pod in _pods(item, match)]


def _pods(item: Device | ClaimDevice, match: Match) -> Sequence[PodKey | None]:
    holders = Entry(item).holders
    if not holders:
        return (None,)
    return list(dict.fromkeys((h.namespace, h.pod) for h in holders if match.named(h)))


def clusters(arranged: Sequence[Entry], group: Group, first: int, number: int) -> tuple[Cluster, ...]:
    """`number` rows of `arranged` from row `first` on (from 0), in the groups that they belong to.

    Groups stand in the order of their first rows; what nobody holds comes last.
    """
    if group is Group.NONE:
        shown = tuple(arranged[first : first + number])
        return (Cluster((), tuple(arranged), shown),) if shown else ()
    gathered: dict[ClusterKey, list[Entry]] = {}
    for entry in arranged:
        gathered.setdefault(_key(entry, group), []).append(entry)
    if _FREE in gathered:
        gathered[_FREE] = gathered.pop(_FREE)
    return tuple(_alone_together(_window(gathered, first, number)))


def _window(gathered: dict[ClusterKey, list[Entry]], first: int, number: int) -> Iterator[Cluster]:
    begins = 0
    for key, found in gathered.items():
        shown = found[max(0, first - begins) : max(0, first + number - begins)]
        if shown:
            own = () if _alone(key, found) else key
            yield Cluster(own, tuple(found), tuple(shown), continued=begins < first)
        begins += len(found)


def _alone(key: ClusterKey, found: Sequence[Entry]) -> bool:
    """Whether this is a whole device and nothing of it is shared: no heading tells more than its row."""
    item = found[0].item
    if key[0] != "device" or len(found) > 1:
        return False
    return not item.key.share_id if isinstance(item, ClaimDevice) else not item.parent


def _alone_together(found: Iterable[Cluster]) -> Iterator[Cluster]:
    """Neighbours of no group are one cluster."""
    for key, same in groupby(found, key=lambda cluster: cluster.key):
        if key:
            yield from same
            continue
        shown = tuple(entry for cluster in same for entry in cluster.shown)
        yield Cluster((), shown, shown)


def _key(entry: Entry, group: Group) -> ClusterKey:
    item = entry.item
    if group is Group.POD:
        return ("pod", *entry.pod) if entry.pod is not None else _FREE
    if isinstance(item, Device):
        # Shares and slices of one device may be of several resources; ids of another vendor are others.
        return "device", item.key.resource.partition("/")[0], item.parent or item.key.device
    return "device", item.key.driver, f"{item.key.pool}/{item.key.device}"
