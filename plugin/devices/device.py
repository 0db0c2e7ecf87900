"""A physical device of a resource."""

from collections.abc import Mapping

from msgspec import Struct, field

from plugin.discovery.source import Found

Holding = tuple[str, str]
"""A resource and one of its advertised ids, held by a pod."""
HeldIds = Mapping[str, frozenset[str]]
"""Held ids by resource."""


class Device(Struct, frozen=True):
    """One physical device of a resource. `id` is unique in the resource; no NUMA node is negative.

    `found`: the device as its source found it, None for one of which only the id is known.
    """

    id: str
    name: str
    path: str = ""
    attrs: Mapping[str, str] = field(default_factory=dict)
    numa_nodes: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    found: Found | None = None

    @property
    def absent(self) -> str:
        """Why the device is missing; empty for one that is present."""
        return "" if self.found is None else self.found.absent
