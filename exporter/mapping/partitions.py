"""Partitions of physical devices: which unheld ones count as free. Pure.

A partition takes amounts of the counters of a physical device (Kubernetes: consumesCounters of
sharedCounters). Partitions that cannot be held together are alternatives, and are never summed.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from exporter.mapping.dra import Consumption, CounterName, PublishedDevice, PublishedName

_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,2}))?"
)
_UNITS: Final = {unit: 10.0 ** (3 * power) for power, unit in enumerate("num kMGTPE", start=-3)} | {
    f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", start=1)
}
_ROUNDING: Final = 1e-9
"""Relative error of a sum of amounts."""


def quantity(text: str) -> float | None:
    """The number of a Kubernetes quantity ("1", "500m", "40Gi", "1e3"), None if `text` is none."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, unit, exponent = match.groups()
    return float(f"{number}e{exponent or 0}") * (_UNITS[unit] if unit else 1.0)


def parents(
    devices: Iterable[PublishedDevice], available: Mapping[CounterName, float]
) -> Mapping[PublishedName, str]:
    """PublishedDevice.parent of each device of one pool that consumes counters.

    That is the one device that consumes all counters of the same set in full, and "" for this device itself;
    the counter set where there is no such device, or several. Of several sets the first by name that has such
    a device decides.
    """
    consuming = [device for device in devices if device.consumes]
    sizes: dict[tuple[str, str, str], int] = defaultdict(int)
    for name in available:
        sizes[name.driver, name.pool, name.counter_set] += 1
    whole: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for device in consuming:
        full: dict[str, int] = defaultdict(int)
        for one in device.consumes:
            amount = available.get(_counter(device.name, one))
            full[one.counter_set] += amount is not None and one.amount >= amount * (1 - _ROUNDING)
        for counter_set, count in full.items():
            of_set = (device.name.driver, device.name.pool, counter_set)
            if count and count == sizes.get(of_set):
                whole[of_set].append(device.name.device)
    return {device.name: _parent(device, whole) for device in consuming}


def _parent(device: PublishedDevice, whole: Mapping[tuple[str, str, str], Sequence[str]]) -> str:
    driver, pool, name = device.name
    sets = sorted({one.counter_set for one in device.consumes})
    for counter_set in sets:
        found = whole.get((driver, pool, counter_set), ())
        if len(found) == 1:
            return "" if found[0] == name else found[0]
    return sets[0]


def alternatives(
    devices: Iterable[PublishedDevice],
    held: Collection[PublishedName],
    available: Mapping[CounterName, float],
) -> frozenset[PublishedName]:
    """The unheld partitions among `devices` that do not count as free. `devices` are whole pools; those
    without counters are never alternatives.

    Of the unheld partitions of one physical device one counts: the first that fits into what the held ones
    leave of every counter, the whole device before its partitions, and those by name. A partition whose
    counter is not known fits nowhere.
    """
    physical: dict[tuple[str, str, str], list[PublishedDevice]] = defaultdict(list)
    used: dict[CounterName, float] = defaultdict(float)
    for device in devices:
        if not device.consumes:
            continue
        driver, pool, name = device.name
        if device.name not in held:
            physical[driver, pool, device.parent or name].append(device)
            continue
        for one in device.consumes:
            used[_counter(device.name, one)] += one.amount

    def fits(device: PublishedDevice) -> bool:
        for one in device.consumes:
            counter = _counter(device.name, one)
            limit = available.get(counter)
            if limit is None or used.get(counter, 0.0) + one.amount > limit * (1 + _ROUNDING):
                return False
        return True

    found: set[PublishedName] = set()
    for unheld in physical.values():
        unheld.sort(key=lambda device: (device.parent != "", device.name))
        free = next(filter(fits, unheld), None)
        found.update(device.name for device in unheld if device is not free)
    return frozenset(found)


def _counter(device: PublishedName, one: Consumption) -> CounterName:
    return CounterName(device.driver, device.pool, one.counter_set, one.counter)
