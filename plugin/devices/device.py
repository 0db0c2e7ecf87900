"""A device as a source finds it, and as a resource knows it.

How a device's ids are made: its own, or those of its replicas.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from plugin.config.names import id_problem
from plugin.config.plan import ResourcePlan
from plugin.config.templates import Template, TemplateError
from runtime.config_file import quoted

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


@dataclass(frozen=True, slots=True)
class Sharing:
    """`replicas`: how many times each device is advertised; None: once, by its own id.

    A replica is called as `template` says by the device's `id` and the number `n`, `id::n` without one;
    `first` is the first one's number.
    """

    replicas: int | None = None
    template: Template | None = None
    first: int = 0

    @classmethod
    def of(cls, plan: ResourcePlan) -> "Sharing":
        """As the plan has it."""
        return cls(plan.replicas, plan.replica_id, plan.first_replica)

    def ids(self, device_id: str) -> tuple[str, ...] | str:
        """The ids that the device is advertised by; a text: why there are none."""
        if self.replicas is None:
            return (device_id,)
        try:
            ids = tuple(self._replicas(device_id, self.replicas))
        except TemplateError as error:
            return f"share.id: {error}"
        for advertised_id in ids:
            problem = id_problem(advertised_id)
            if problem is not None:
                return f"a replica of it cannot have the id {quoted(advertised_id)}: {problem}"
        if len(set(ids)) < len(ids):
            return f"share.id gives two of its replicas the id {quoted(_twice(ids))}"
        return ids

    def called(self, device_id: str) -> tuple[str, ...]:
        """As `ids`; none where there are none."""
        ids = self.ids(device_id)
        return () if isinstance(ids, str) else ids

    def _replicas(self, device_id: str, replicas: int) -> Iterator[str]:
        for n in range(self.first, self.first + replicas):
            if self.template is None:
                yield f"{device_id}::{n}"
            else:
                yield self.template.render({"id": device_id, "n": n})


PLAIN: Final = Sharing()
"""Each device once, by its own id."""


def _twice(ids: tuple[str, ...]) -> str:
    seen: set[str] = set()
    return next(i for i in ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
