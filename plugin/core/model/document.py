"""A whole configuration file: its resources."""

from typing import Annotated, Literal

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
    """The regular files of a directory."""
    glob: Glob | UnsetType = UNSET
    """Paths that match patterns."""
    regex: Regex | UnsetType = UNSET
    """Entries of a directory that match a regular expression."""
    group: Group | UnsetType = UNSET
    """Several paths together."""
    static: Static | UnsetType = UNSET
    """Devices that are written down."""
    pci: Pci | UnsetType = UNSET
    """PCI functions."""
    net: Net | UnsetType = UNSET
    """Network functions and interfaces."""
    infiniband: Infiniband | UnsetType = UNSET
    """InfiniBand and RoCE devices."""
    drm: Drm | UnsetType = UNSET
    """Graphics cards."""
    kfd: Kfd | UnsetType = UNSET
    """AMD's compute nodes."""
    nvidia: Nvidia | UnsetType = UNSET
    """NVIDIA GPUs and MIG slices."""
    usb: Usb | UnsetType = UNSET
    """USB devices."""
    sysfs: Sysfs | UnsetType = UNSET
    """Directories of sysfs, by what their files say."""
    exec: Exec | UnsetType = UNSET
    """What a program prints."""


class Share(Struct, frozen=True, forbid_unknown_fields=True):
    """Each device is advertised several times, as `id::0`, `id::1`, …"""

    replicas: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET
    """How many times each device is advertised; left out: once, under its own id."""
    max_per_container: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    """More of them in one container are refused."""
    id: str | UnsetType = UNSET
    """How a replica is called (`id`, the device's, and `n`); `{{ id }}::{{ n }}` if left out."""
    first: Literal[0, 1] = 0
    """The first replica's number."""


class Resource(Struct, frozen=True, forbid_unknown_fields=True):
    """One extended resource, or several where its name uses `device`."""

    name: TemplateText
    """DOMAIN/NAME, as pods ask for it. A template that uses `device` makes a resource of each name that
    comes of it (`device` without id and NUMA).
    """
    discover: Annotated[list[Source], Meta(min_length=1, max_length=64)]
    """Where its devices come from: one source or several."""
    match: TemplateText | UnsetType = UNSET
    """Keeps the devices for which it renders as true (`device` without id and NUMA)."""
    id: TemplateText | UnsetType = UNSET
    """The device's id (`device` without id and NUMA); its name if left out."""
    numa: str | int | bool = "auto"
    """`auto`: by sysfs; `off`; or the number of the NUMA node of every device."""
    share: Share = Share()
    """Devices that several containers may have."""
    health: Annotated[list[Probe], Meta(max_length=64)] = []
    """What must hold for a device to be healthy, beside that its source finds it: every probe."""
    prefer: Literal["none", "packed", "spread", "numa"] = "none"
    """Which free devices the kubelet is told to give out first: those of one NUMA node, of physical devices
    that are in use already (`packed`), or of those that are used least (`spread`).
    """
    allocate: Allocate = Allocate()
    """What a container gets."""
    cdi: CdiSpec | UnsetType = UNSET
    """A CDI specification to write for the devices."""
    pre_start: PreStart | UnsetType = UNSET
    """A program to run before a container starts."""
    exclusive: bool = True
    """A device that another exclusive resource has found first is left to it."""
    advertise_empty: bool = False
    """Register although there is no device yet."""


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole configuration file."""

    version: Literal[1]
    """The version of this language."""
    resources: Annotated[list[Resource], Meta(min_length=1, max_length=256)]
    """What the plugin serves."""
