"""The plan of a resource: what the configuration says, with compiled templates.

Equal plans mean the same: a reload leaves a resource with an equal plan alone.
"""

from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct, field

from plugin.config.templates import Template, TemplateError
from plugin.discovery.source import SourceConfig
from plugin.names import id_problem
from runtime.text import quoted

Prefer = Literal["none", "packed", "spread", "numa", "topology"]


class Entry(Struct, frozen=True):
    """An environment variable or an annotation of a container."""

    name: Template
    value: Template


class NodeEntry(Struct, frozen=True):
    """A device node of a container; an `optional` one is left out if the host does not have it."""

    host: Template
    container: Template
    permissions: str
    optional: bool = False


class MountEntry(Struct, frozen=True):
    """A mount of a container; `create` is what Allocate creates if nothing is there."""

    host: Template
    container: Template
    read_only: bool
    create: Literal["directory", "file"] | None
    optional: bool = False


class FileEntry(Struct, frozen=True):
    """A file that Allocate writes on the host with `mode` and mounts read-only."""

    host: Template
    container: Template
    content: Template
    mode: int


class AllocatePlan(Struct, frozen=True):
    """What a container gets, as templates."""

    env: tuple[Entry, ...] = ()
    devices: tuple[NodeEntry, ...] = ()
    mounts: tuple[MountEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()
    annotations: tuple[Entry, ...] = ()
    cdi: tuple[Template, ...] = ()


class CdiPlan(Struct, frozen=True):
    """A CDI specification: one device of `kind` for each physical device, with its edits."""

    kind: str
    name: Template
    directory: str
    env: tuple[Entry, ...] = ()
    devices: tuple[NodeEntry, ...] = ()
    mounts: tuple[MountEntry, ...] = ()


class PreStartPlan(Struct, frozen=True):
    """A program to run before a container starts; `timeout` in seconds."""

    command: tuple[Template, ...]
    timeout: float


class ExistsCheck(Struct, frozen=True):
    """A host path must exist."""

    path: Template


class NodesCheck(Struct, frozen=True):
    """The device nodes that Allocate gives for a device, by their host paths, must exist."""

    hosts: tuple[Template, ...]


class FileCheck(Struct, frozen=True):
    """The content of a host file must meet every condition that is not None."""

    path: Template
    equals: Template | None = None
    one_of: tuple[str, ...] | None = None
    matches: str | None = None
    not_matches: str | None = None
    at_least: float | None = None
    at_most: float | None = None


class CarrierCheck(Struct, frozen=True):
    """A network interface must have a carrier."""

    interface: Template


class ExecCheck(Struct, frozen=True):
    """A program must exit with 0."""

    command: tuple[Template, ...]


class HttpCheck(Struct, frozen=True):
    """A GET must be answered with one of `status`; None: 200 to 299."""

    url: Template
    status: frozenset[int] | None = None


class XidCheck(Struct, frozen=True):
    """An XID event that is not ignored is a fault until `quiet` seconds after the last."""

    ignore: frozenset[int]
    quiet: float


Check = ExistsCheck | NodesCheck | FileCheck | CarrierCheck | ExecCheck | HttpCheck | XidCheck


class ProbePlan(Struct, frozen=True):
    """One probe; times in seconds.

    `interval` None: with each scan, and at events of its path. `initial` None: the first result decides;
    otherwise the health before `failures` or `successes` results in a row. `place` is its location in the
    resource, for messages: `health[0].exists`.
    """

    check: Check
    place: str
    interval: float | None = None
    timeout: float = 5.0
    failures: int = 1
    successes: int = 1
    initial: bool | None = None


class Sharing(Struct, frozen=True):
    """How often each device is advertised: `replicas` times, or once by its own id where that is None.

    `template` renders a share's id from the device's `id` and the number `n`, which starts at `first`.
    Without a template the id is `id::n`.
    """

    replicas: int | None = None
    template: Template | None = None
    first: int = 0

    def ids(self, device_id: str) -> tuple[str, ...] | str:
        """The advertised ids of a device, or a text: why it has none."""
        if self.replicas is None:
            return (device_id,)
        try:
            ids = tuple(self._shares(device_id, self.replicas))
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

    def _shares(self, device_id: str, replicas: int) -> Iterator[str]:
        for n in range(self.first, self.first + replicas):
            if self.template is None:
                yield f"{device_id}::{n}"
            else:
                yield self.template.render({"id": device_id, "n": n})


UNSHARED: Final = Sharing()
"""Each device once, by its own id."""


class ResourcePlan(Struct, frozen=True):
    """One configured resource.

    `numa`: "auto", "off", or the node of every device.
    `family`: the template of a name that uses `device`. Such a plan stands for all resources that its devices
    name; `name` is the template's text, and no resource is registered under it. `member_of`: in the plan of
    one of these resources, the template that its devices render to `name`.
    """

    name: str
    sources: tuple[SourceConfig, ...]
    family: Template | None = None
    member_of: Template | None = None
    match: Template | None = None
    id: Template | None = None
    numa: Literal["auto", "off"] | int = "auto"
    sharing: Sharing = UNSHARED
    max_per_container: int | None = None
    probes: tuple[ProbePlan, ...] = ()
    prefer: Prefer = "none"
    allocate: AllocatePlan = field(default_factory=AllocatePlan)
    cdi: CdiPlan | None = None
    pre_start: PreStartPlan | None = None
    exclusive: bool = True
    advertise_empty: bool = False
