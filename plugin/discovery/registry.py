"""The registry of sources: one field of `Source` for each."""

from collections.abc import Iterable

from msgspec import UNSET, UnsetType

from plugin.discovery.drm import Drm
from plugin.discovery.exec import Exec
from plugin.discovery.files import Files
from plugin.discovery.glob import Glob
from plugin.discovery.group import Group
from plugin.discovery.host import HostRoot
from plugin.discovery.infiniband import Infiniband
from plugin.discovery.kfd import Kfd
from plugin.discovery.net import Net
from plugin.discovery.nvidia import Nvidia
from plugin.discovery.pci import Pci
from plugin.discovery.regex import Regex
from plugin.discovery.source import FaultSource, SourceConfig
from plugin.discovery.static import Static
from plugin.discovery.sysfs import Sysfs
from plugin.discovery.usb import Usb
from plugin.fields import ConfigStruct


class Source(ConfigStruct, frozen=True):
    """One item of `discover`: a mapping with exactly one of these keys."""

    files: Files | UnsetType = UNSET
    """The regular files of a directory."""
    glob: Glob | UnsetType = UNSET
    """Paths that match patterns."""
    regex: Regex | UnsetType = UNSET
    """Entries of a directory that match a regular expression."""
    group: Group | UnsetType = UNSET
    """Several paths together."""
    static: Static | UnsetType = UNSET
    """Devices that the configuration lists."""
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
    """Directories of sysfs, by the contents of their files."""
    exec: Exec | UnsetType = UNSET
    """Devices that a program prints."""

    def configured(self) -> dict[str, SourceConfig]:
        """The sources that are set, by key. A valid item has one."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: config for name, config in values if config is not UNSET}


def fault_source(host: HostRoot, sources: Iterable[SourceConfig]) -> FaultSource | None:
    """A receiver of the faults of these sources' devices; None if there are no such events."""
    made = (source.fault_source(host) for source in sources)
    return next((receiver for receiver in made if receiver is not None), None)
