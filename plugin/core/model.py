"""The configuration language as it is written: one struct for each mapping of a document.

The structs hold what the file says, templates still as text. What the language is going to have but
does not have yet is listed in PLANNED, so that it is told apart from a mistyped key.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

TemplateText = Annotated[str, Meta(max_length=8192)]
"""A Jinja2 template; the variables that it may use are said where it is used."""
NumaNode = Annotated[int, Meta(ge=0, le=1023)]
"""A NUMA node's number; Linux knows 1024 at most."""


class Files(Struct, frozen=True, forbid_unknown_fields=True):
    """Every regular file of a directory is a device, named like the file."""

    directory: str
    """Absolute path on the host."""


class Glob(Struct, frozen=True, forbid_unknown_fields=True):
    """Every path that matches one of the patterns is a device, named by its last component."""

    paths: Annotated[list[str], Meta(min_length=1, max_length=64)]
    """Absolute patterns with `*`, `?` and `[…]`, none of which matches a slash."""


class StaticDevice(Struct, frozen=True, forbid_unknown_fields=True):
    """One device that is written down. With a path it is healthy while the path is there."""

    name: Annotated[str, Meta(min_length=1)]
    path: str | UnsetType = UNSET
    numa: NumaNode | UnsetType = UNSET
    attrs: dict[str, str] = {}


class Static(Struct, frozen=True, forbid_unknown_fields=True):
    """Devices that are written down."""

    devices: Annotated[list[StaticDevice], Meta(min_length=1, max_length=4096)]


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    """Where devices come from: a mapping with exactly one of these keys."""

    files: Files | UnsetType = UNSET
    glob: Glob | UnsetType = UNSET
    static: Static | UnsetType = UNSET


class Share(Struct, frozen=True, forbid_unknown_fields=True):
    """Each device is advertised several times, as `id::0`, `id::1`, …"""

    replicas: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET
    max_per_container: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    """More of them in one container are refused."""


class Probe(Struct, frozen=True, forbid_unknown_fields=True):
    """What must hold for a device to be healthy."""

    exists: TemplateText
    """A host path that must be there (`device`)."""


class DeviceNode(Struct, frozen=True, forbid_unknown_fields=True):
    """A device node that a container gets; once for each device where a template uses `device`."""

    host: TemplateText
    container: TemplateText | UnsetType = UNSET
    """The same path as `host` if left out."""
    permissions: str = "rw"


class MountPoint(Struct, frozen=True, forbid_unknown_fields=True):
    """A mount that a container gets; once for each device where a template uses `device`."""

    host: TemplateText
    container: TemplateText | UnsetType = UNSET
    """The same path as `host` if left out."""
    read_only: bool = False
    create: Literal["directory", "file"] | UnsetType = UNSET
    """What to make at the host path, at Allocate, where nothing is there yet."""


class Allocate(Struct, frozen=True, forbid_unknown_fields=True):
    """What a container gets (`devices`, `ids`; in lists also `device`, and then once for each)."""

    env: Annotated[dict[str, TemplateText], Meta(max_length=256)] = {}
    devices: Annotated[list[DeviceNode], Meta(max_length=256)] = []
    mounts: Annotated[list[MountPoint], Meta(max_length=256)] = []
    annotations: Annotated[dict[str, TemplateText], Meta(max_length=256)] = {}
    cdi: Annotated[list[TemplateText], Meta(max_length=256)] = []


class Resource(Struct, frozen=True, forbid_unknown_fields=True):
    """One extended resource."""

    name: str
    discover: Annotated[list[Source], Meta(min_length=1, max_length=64)]
    match: TemplateText | UnsetType = UNSET
    """Keeps the devices for which it renders as true (`device` without id and NUMA)."""
    id: TemplateText | UnsetType = UNSET
    """The device's id (`device` without id and NUMA); its name if left out."""
    numa: str | int | bool = "auto"
    share: Share = Share()
    health: Annotated[list[Probe], Meta(max_length=64)] = []
    prefer: Literal["none", "packed", "spread", "numa"] = "none"
    allocate: Allocate = Allocate()
    advertise_empty: bool = False
    """Register although there is no device yet."""


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole configuration file."""

    version: Literal[1]
    resources: Annotated[list[Resource], Meta(min_length=1, max_length=256)]


PLANNED: Final[Mapping[type, frozenset[str]]] = {
    Source: frozenset(
        {
            "regex",
            "group",
            "pci",
            "net",
            "infiniband",
            "drm",
            "kfd",
            "nvidia",
            "usb",
            "sysfs",
            "exec",
        }
    ),
    Probe: frozenset({"file", "carrier", "exec", "http", "interval", "failures", "successes"}),
    DeviceNode: frozenset({"optional"}),
    Resource: frozenset({"preset", "pre_start"}),
}
"""Keys that the language will have, by the struct that will have them."""
