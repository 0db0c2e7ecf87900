"""A physical device of a resource, and the ids that it is advertised by."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from plugin.config.templates import Template, TemplateError
from plugin.discovery.source import Found
from plugin.names import id_problem
from runtime.config_file import quoted

Holding = tuple[str, str]
"""A resource and one of its advertised ids, held by a pod."""
HeldIds = Mapping[str, frozenset[str]]
"""Held ids by resource."""


@dataclass(frozen=True, slots=True)
class Device:
    """One physical device of a resource. `id` is unique in the resource; no NUMA node is negative.

    `found`: the device as its source found it, None for one of which only the id is known.
    """

    id: str
    name: str
    path: str = ""
    attrs: Mapping[str, str] = field(default_factory=dict)
    numa_nodes: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    found: Found | None = field(default=None, compare=False, repr=False)


class SharingPlan(Protocol):
    """The part of a resource's configuration that says how its devices are shared."""

    @property
    def replicas(self) -> int | None: ...  # noqa: D102 -- see Sharing

    @property
    def replica_id(self) -> Template | None: ...  # noqa: D102

    @property
    def first_replica(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Sharing:
    """How often each device is advertised: `replicas` times, or once by its own id where that is None.

    `template` renders a replica's id from the device's `id` and the number `n`, which starts at `first`.
    Without a template the id is `id::n`.
    """

    replicas: int | None = None
    template: Template | None = None
    first: int = 0

    @classmethod
    def of(cls, plan: SharingPlan) -> "Sharing":
        """The sharing of a resource."""
        return cls(plan.replicas, plan.replica_id, plan.first_replica)

    def ids(self, device_id: str) -> tuple[str, ...] | str:
        """The advertised ids of a device, or a text: why it has none."""
        if self.replicas is None:
            return (device_id,)
        try:
            ids = tuple(self._replicas(device_id, self.replicas))
        except TemplateError as error:
            return f"share.id: {error}"
        seen: set[str] = set()
        for advertised_id in ids:
            problem = id_problem(advertised_id)
            if problem is not None:
                return f"a replica of it cannot have the id {quoted(advertised_id)}: {problem}"
            if advertised_id in seen:
                return f"share.id gives two of its replicas the id {quoted(advertised_id)}"
            seen.add(advertised_id)
        return ids

    def valid_ids(self, device_id: str) -> tuple[str, ...]:
        """The advertised ids of a device, none where `ids` returns a text."""
        ids = self.ids(device_id)
        return () if isinstance(ids, str) else ids

    def _replicas(self, device_id: str, replicas: int) -> Iterator[str]:
        for n in range(self.first, self.first + replicas):
            if self.template is None:
                yield f"{device_id}::{n}"
            else:
                yield self.template.render({"id": device_id, "n": n})


UNSHARED: Final = Sharing()
"""Each device once, by its own id."""
