"""A whole configuration file: its resources."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from plugin.core.model.buses import Drm, Infiniband, Kfd, Net, Pci
from plugin.core.model.common import TemplateText
from plugin.core.model.giving import Allocate, CdiSpec, PreStart
from plugin.core.model.health import Probe
from plugin.core.model.others import Exec, Nvidia, Sysfs, Usb
from plugin.core.model.paths import Files, Glob, Group, Regex, Static

AnySource = (
    Files | Glob | Regex | Group | Static | Pci | Net | Infiniband | Drm | Kfd | Nvidia | Usb | Sysfs | Exec
)


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    """Where devices come from: a mapping with exactly one of these keys."""

    files: Files | UnsetType = UNSET
    glob: Glob | UnsetType = UNSET
    regex: Regex | UnsetType = UNSET
    group: Group | UnsetType = UNSET
    static: Static | UnsetType = UNSET
    pci: Pci | UnsetType = UNSET
    net: Net | UnsetType = UNSET
    infiniband: Infiniband | UnsetType = UNSET
    drm: Drm | UnsetType = UNSET
    kfd: Kfd | UnsetType = UNSET
    nvidia: Nvidia | UnsetType = UNSET
    usb: Usb | UnsetType = UNSET
    sysfs: Sysfs | UnsetType = UNSET
    exec: Exec | UnsetType = UNSET


class Share(Struct, frozen=True, forbid_unknown_fields=True):
    """Each device is advertised several times, as `id::0`, `id::1`, …"""

    replicas: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET
    max_per_container: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    """More of them in one container are refused."""
    id: str | UnsetType = UNSET
    """How a replica is called (`id`, the device's, and `n`); `{{ id }}::{{ n }}` if left out."""
    first: Literal[0, 1] = 0
    """The first replica's number."""


class Resource(Struct, frozen=True, forbid_unknown_fields=True):
    """One extended resource, or several where its name uses `device`."""

    name: TemplateText
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
    cdi: CdiSpec | UnsetType = UNSET
    pre_start: PreStart | UnsetType = UNSET
    exclusive: bool = True
    """A device that another exclusive resource has found first is left to it."""
    advertise_empty: bool = False
    """Register although there is no device yet."""


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole configuration file."""

    version: Literal[1]
    resources: Annotated[list[Resource], Meta(min_length=1, max_length=256)]


PLANNED: Final[Mapping[type, frozenset[str]]] = {}
"""Keys that the language will have, by the struct that will have them."""
