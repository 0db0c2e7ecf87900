"""A device as a source finds it, and as a resource knows it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

_NUMBER: Final = re.compile(r"(\d{1,18})", re.ASCII)

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
"""A PCI function's address: hexadecimal and of fixed width, so that 19 comes before 3b as it is."""

_LONGEST: Final = 128
"""Characters of a text whose key is remembered: at most 4 KiB each, 1 KiB as ids usually are."""


@dataclass(frozen=True, slots=True)
class Found:
    """One device as a source found it on the host.

    `path` is the host's path, empty where the source knows none. `absent` says why a device that is
    written down is not there; empty where it is. `numa_node` is what the source itself was told.
    `nodes` are the device nodes that belong to it, host paths in natural order. `sysfs` is its directory
    below /sys, from which its NUMA node is looked for. `claim` names the physical thing for all
    resources of the process: two devices of the same claim are the same; empty: `path`, if any.
    """

    name: str
    path: str = ""
    attrs: Mapping[str, str] = field(default_factory=dict)
    absent: str = ""
    numa_node: int | None = None
    rdev: tuple[str, int, int] | None = None
    """("char" or "block", major, minor) of a device node."""
    nodes: tuple[str, ...] = ()
    sysfs: str = ""
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """One physical device of a resource. `id` is unique in it; `numa_nodes` never holds a negative."""

    id: str
    name: str
    path: str = ""
    attrs: Mapping[str, str] = field(default_factory=dict)
    numa_nodes: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    found: Found | None = field(default=None, compare=False, repr=False)
    """As its source found it; None for a device that is known by its id alone."""


def natural(text: str) -> tuple[tuple[str, int], ...]:
    """A sort key under which `video10` comes after `video2`. Keys of usual length are remembered."""
    return _remembered(text) if len(text) <= _LONGEST else _key(text)


def _key(text: str) -> tuple[tuple[str, int], ...]:
    if _ADDRESS.fullmatch(text) is not None:
        return ((text, -1),)
    parts = _NUMBER.split(text)
    key = [(parts[i], int(parts[i + 1])) for i in range(0, len(parts) - 1, 2)]
    return (*key, (parts[-1], -1), (text, -1))


_remembered = lru_cache(maxsize=16_384)(_key)
