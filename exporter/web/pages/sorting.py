"""In which order the status page's rows stand. Pure.

What a row is sorted by is a tuple that begins with whether there is anything to sort by: rows without (a
free device's pod) come last either way. Equal rows stay in the page's own order.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from exporter.core.diff import Holding
from exporter.core.holdings import Since
from exporter.core.model import ClaimDevice, Device, Holder, PodKey, Snapshot
from exporter.core.state import State
from exporter.web.query import Column, Sort

_NUMBER: Final = re.compile(r"([0-9]+)(?![0-9A-Za-z])")
_REMEMBERED_LENGTH: Final = 64
"""Characters of a name whose sort key is remembered: at most 4 KiB each, 1 KiB as ids usually are."""

_BY_RESOURCE: Final = Sort(Column.RESOURCE)

Natural = tuple[tuple[int, str], ...]
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """What one row is about: a device or a claimed one, and of its holders `pod` alone, where it is given."""

    item: Device | ClaimDevice
    pod: PodKey | None = None

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Who holds it, as far as the row tells."""
        item = self.item
        every = item.holders if isinstance(item, Device) else tuple(t.holder for t in item.holders)
        if self.pod is None:
            return every
        return tuple(h for h in every if (h.namespace, h.pod) == self.pod)

    def holdings(self) -> Iterator[Holding]:
        """What of it is held by whom, one for each of `holders`."""
        item = self.item
        if isinstance(item, Device):
            return (Holding(item.key, holder) for holder in self.holders)
        return (
            Holding(item.held(t), t.holder)
            for t in item.holders
            if self.pod is None or t.holder[:2] == self.pod
        )


def arranged(entries: Iterable[Entry], sort: Sort, state: State) -> list[Entry]:
    """`entries` as `sort` wants them, else by resource, shares beside their device, dev-2 before dev-10."""
    found = sorted(entries, key=order)
    if sort == _BY_RESOURCE:
        return found
    key = _keys(state)[sort.column]
    keyed = [(key(entry), entry) for entry in found]
    some = [pair for pair in keyed if pair[0]]
    some.sort(key=lambda pair: pair[0], reverse=sort.descending)
    return [entry for _, entry in some] + [entry for key, entry in keyed if not key]


def order(entry: Entry) -> tuple[str, Natural, Natural]:
    """The page's own order."""
    item = entry.item
    if isinstance(item, Device):
        return item.key.resource, natural(item.parent or item.key.device), natural(item.key.device)
    key = item.key
    return key.driver, natural(f"{key.pool}/{key.device}"), natural(key.share_id)


def _keys(state: State) -> Mapping[Column, Callable[[Entry], Key]]:
    """What a row is sorted by; () where there is nothing."""
    return {
        Column.DEVICE: _device,
        Column.RESOURCE: lambda entry: (order(entry)[0],),
        Column.STATE: lambda entry: (_state(entry, state.snapshot),),
        Column.POD: _pod,
        Column.SINCE: lambda entry: _since(entry, state.since),
        Column.NUMA: lambda entry: entry.item.numa_nodes if isinstance(entry.item, Device) else (),
    }


def _device(entry: Entry) -> Key:
    resource, parent, name = order(entry)
    return parent, name, resource


def _state(entry: Entry, snapshot: Snapshot) -> int:
    """What wants looking after first: unhealthy under a pod, unhealthy, held, free."""
    item = entry.item
    if isinstance(item, Device) and snapshot.complete and not item.allocatable:
        return 0 if item.holders else 1
    return 2 if item.holders else 3


def _pod(entry: Entry) -> Key:
    holders = entry.holders
    if not holders:
        return ()
    first = holders[0]
    return first.namespace, natural(first.pod), first.container


def _since(entry: Entry, since: Mapping[Holding, Since]) -> Key:
    """The first of its holders that is still there."""
    known = map(since.get, entry.holdings())
    first = min((one.at for one in known if one is not None), default=None)
    return () if first is None else (first,)


def natural(name: str) -> Natural:
    """Numbers by value, the rest by letters. Digits before a letter count as letters, for they may be part of
    a hexadecimal number; so do more than 18 of them.
    """
    return _remembered(name) if len(name) <= _REMEMBERED_LENGTH else _split(name[:512])


def _split(name: str) -> Natural:
    return tuple(
        (int(part), part) if part.isascii() and part.isdigit() and len(part) <= 18 else (-1, part)
        for part in _NUMBER.split(name)
    )


_remembered = lru_cache(maxsize=16_384)(_split)
