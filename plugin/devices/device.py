"""A device as a source finds it, and as a resource knows it.

How a device's ids are made: its own, or those of its replicas.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from plugin.config.plan import ResourcePlan
from plugin.config.templates import Template, TemplateError
from plugin.discovery.source import Found
from plugin.names import id_problem
from runtime.config_file import quoted


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
