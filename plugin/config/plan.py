"""What a resource asks for, each template compiled: what `config` makes of a document.

Two plans that are equal ask for the same; a resource whose plan did not change is not disturbed.
"""

from dataclasses import dataclass, field
from typing import Literal

from plugin.config import model
from plugin.config.templates import Template

Prefer = Literal["none", "packed", "spread", "numa"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A named value that a container gets: an environment variable, an annotation."""

    name: Template
    value: Template


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A device node that a container gets; `optional`: left out where the host has none."""

    host: Template
    container: Template
    permissions: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class MountEntry:
    """A mount that a container gets; `create` is what to make where nothing is there."""

    host: Template
    container: Template
    read_only: bool
    create: Literal["directory", "file"] | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file written on the host at Allocate, with `mode`, and mounted read-only."""

    host: Template
    container: Template
    content: Template
    mode: int


@dataclass(frozen=True, slots=True)
class AllocatePlan:
    """What a container gets, as templates."""

    env: tuple[Entry, ...] = ()
    devices: tuple[NodeEntry, ...] = ()
    mounts: tuple[MountEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()
    annotations: tuple[Entry, ...] = ()
    cdi: tuple[Template, ...] = ()


@dataclass(frozen=True, slots=True)
class CdiPlan:
    """A CDI specification to write: one device of `kind` for each physical device, with its edits."""

    kind: str
    name: Template
    directory: str
    env: tuple[Entry, ...] = ()
    devices: tuple[NodeEntry, ...] = ()
    mounts: tuple[MountEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class PreStartPlan:
    """A program to run before a container starts, and for how long at most, in seconds."""

    command: tuple[Template, ...]
    timeout: float


@dataclass(frozen=True, slots=True)
class ExistsCheck:
    """A host path that must be there."""

    path: Template


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A host file's content against every expectation that is not None."""

    path: Template
    equals: Template | None = None
    one_of: tuple[str, ...] | None = None
    matches: str | None = None
    not_matches: str | None = None
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class CarrierCheck:
    """A network interface that must have a carrier."""

    interface: Template


@dataclass(frozen=True, slots=True)
class ExecCheck:
    """A program that must exit 0."""

    command: tuple[Template, ...]


@dataclass(frozen=True, slots=True)
class HttpCheck:
    """A GET that must be answered with one of `status`; None: 200 to 299."""

    url: Template
    status: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class XidCheck:
    """NVIDIA XID events: one that is not ignored is a fault until `quiet` seconds after the last."""

    ignore: frozenset[int]
    quiet: float


Check = ExistsCheck | FileCheck | CarrierCheck | ExecCheck | HttpCheck | XidCheck


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """One probe: what is checked, and how often, how long, how many times; times in seconds.

    `interval` None: with each look at the host (and at each event that calls for one). `initial` None:
    the first answer decides alone; True or False: the state until `failures` or `successes` in a row.
    `place`: where it is written in the document's resource, for messages, such as `health[0].exists`.
    """

    check: Check
    place: str
    interval: float | None = None
    timeout: float = 5.0
    failures: int = 1
    successes: int = 1
    initial: bool | None = None


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """One resource as it was asked for.

    `numa`: "auto", "off", or the node of every device. `replicas`: None where ids are not shared.
    `family`: the name's template where it uses `device`: then this plan stands for all the resources that
    its devices name, `name` is the template's text, and no resource is registered under it. `member_of`:
    the family's template in the plan of one such resource: its devices are those that render to `name`.
    """

    name: str
    sources: tuple[model.AnySource, ...]
    family: Template | None = None
    member_of: Template | None = None
    match: Template | None = None
    id: Template | None = None
    numa: Literal["auto", "off"] | int = "auto"
    replicas: int | None = None
    replica_id: Template | None = None
    """How a replica is called, of `id` and `n`; None: `id::n`."""
    first_replica: int = 0
    max_per_container: int | None = None
    probes: tuple[ProbePlan, ...] = ()
    prefer: Prefer = "none"
    allocate: AllocatePlan = field(default_factory=AllocatePlan)
    cdi: CdiPlan | None = None
    pre_start: PreStartPlan | None = None
    exclusive: bool = True
    advertise_empty: bool = False
