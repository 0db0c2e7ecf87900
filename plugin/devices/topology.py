"""How near devices are to each other, and the best connected set of them: `prefer: topology`. Pure."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from math import comb
from typing import Final

from msgspec import Struct

from plugin.devices.device import Device

Links = Mapping[str, Mapping[str, int]]
"""The strengths of direct links (XGMI, NVLink) by both ends: a claim, path, or node of a device."""

MAX_DEVICES: Final = 128
"""With more, devices are chosen by NUMA nodes: the time grows with the square of their number."""
MAX_SETS: Final = 20_000
"""Sets that are all compared, such as 8 of 16 devices; with more, sets are grown from each device."""
MAX_GROWN: Final = 500_000
"""Steps of growing sets."""

_LINK: Final = 100
"""A link outweighs every place below."""
_ONE_SWITCH, _SWITCHES, _HOST_BRIDGE, _NUMA_NODE = 50, 40, 30, 20
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_FUNCTION: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


class Position(Struct, frozen=True):
    """Where a device is. `bridges`: the PCI host bridge and the bridges above it, from the root down.

    What is unknown is empty, and near to nothing.
    """

    ends: frozenset[str] = frozenset()
    links: Mapping[str, int] | None = None
    bridges: tuple[str, ...] = ()
    numa_nodes: tuple[int, ...] = ()


def position(device: Device, links: Links) -> Position:
    """The position of a device, from its directory in /sys, its NUMA nodes, and `links`."""
    found = device.found
    ends = frozenset({device.path, *device.nodes, *(() if found is None else (found.claim,))} - {""})
    own: dict[str, int] = {}
    for end in ends & links.keys():
        own.update(links[end])
    return Position(ends, own, _bridges("" if found is None else found.sysfs), device.numa_nodes)


def _bridges(sysfs: str) -> tuple[str, ...]:
    """The PCI components of `/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/…` but for the last."""
    chain: list[str] = []
    for part in sysfs.removeprefix("/sys/devices/").split("/"):
        if not (_FUNCTION if chain else _ROOT).fullmatch(part):
            break
        chain.append(part)
    return tuple(chain[:-1])


def closeness(one: Position, other: Position) -> int:
    """How near two devices are: the strength of their link, and the place that they share."""
    links = one.links or {}
    strength = max((links[end] for end in other.ends if end in links), default=0)
    return (_LINK + strength if strength else 0) + _shared_place(one, other)


def _shared_place(one: Position, other: Position) -> int:
    shared = 0
    for own, others in zip(one.bridges, other.bridges, strict=False):
        if own != others:
            break
        shared += 1
    if shared > 1:  # a switch is its upstream port, and a downstream port for each device
        longest = max(len(one.bridges), len(other.bridges))
        return _ONE_SWITCH if longest - shared <= 1 else _SWITCHES
    if shared:
        return _HOST_BRIDGE
    return _NUMA_NODE if set(one.numa_nodes) & set(other.numa_nodes) else 0


def best_connected(
    positions: Mapping[str, Position],
    present: Collection[str],
    candidates: Sequence[str],
    size: int,
    used: Callable[[str], int],
) -> tuple[str, ...]:
    """The `size` of `candidates` that are best connected with each other and with those in `present`.

    Of equally good sets the one that leaves the other candidates best connected, then the one of least `used`
    devices, then the first by the order of `candidates`. Exact while there are at most MAX_SETS sets.
    """
    count = len(candidates)
    if size >= count:
        return tuple(candidates)
    near = [[closeness(positions[a], positions[b]) if a != b else 0 for b in candidates] for a in candidates]
    first = [sum(closeness(positions[c], positions[p]) for p in present) for c in candidates]
    # Those that stay lose what connects them with the chosen.
    costs = [(sum(row), used(device)) for row, device in zip(near, candidates, strict=True)]
    search = _Search(near, first, costs, size)
    if comb(count, size) <= MAX_SETS:
        search.compare_all()
    else:
        for seed in range(count)[: max(1, MAX_GROWN // (count * size))]:
            search.grow(seed)
    return tuple(candidates[index] for index in sorted(search.best))


class _Search:
    """Finds the best set of indices. `near`: pairs' closeness; `first`: that to present devices."""

    def __init__(
        self,
        near: Sequence[Sequence[int]],
        first: Sequence[int],
        costs: Sequence[tuple[int, int]],
        size: int,
    ) -> None:
        self._near, self._first, self._costs, self._size = near, first, costs, size
        self.best: tuple[int, ...] = ()
        self._value: tuple[int, int, int] | None = None

    def compare_all(self, chosen: tuple[int, ...] = (), value: tuple[int, int, int] = (0, 0, 0)) -> None:
        """Compare every set that begins with `chosen`."""
        if len(chosen) == self._size:
            self._offer(chosen, value)
            return
        start = chosen[-1] + 1 if chosen else 0
        for index in range(start, len(self._near) - (self._size - len(chosen)) + 1):
            row = self._near[index]
            gained = self._first[index] + sum([row[other] for other in chosen])
            cost, used = self._costs[index]
            self.compare_all((*chosen, index), (value[0] + gained, value[1] - cost, value[2] - used))

    def grow(self, seed: int) -> None:
        """Grow a set from one device, by the device that is nearest to it at each step."""
        gains, chosen, total = list(self._first), [seed], self._first[seed]
        left = set(range(len(gains))) - {seed}
        while True:
            row = self._near[chosen[-1]]
            for index in left:
                gains[index] += row[index]
            if len(chosen) == self._size:
                break
            index = max(left, key=lambda i: (gains[i], -self._costs[i][0], -self._costs[i][1], -i))
            total += gains[index]
            chosen.append(index)
            left.discard(index)
        costs = [self._costs[index] for index in chosen]
        self._offer(tuple(chosen), (total, -sum(c for c, _ in costs), -sum(u for _, u in costs)))

    def _offer(self, chosen: tuple[int, ...], value: tuple[int, int, int]) -> None:
        if self._value is None or value > self._value:
            self.best, self._value = chosen, value
