"""Which source serves which part of a configuration."""

from collections.abc import Iterable

from msgspec import UNSET

from plugin.config import model
from plugin.discovery.files import FilesSource
from plugin.discovery.glob import GlobSource
from plugin.discovery.host import HostRoot
from plugin.discovery.source import FaultSource, Scanner
from plugin.discovery.static import StaticSource


def source_of(written: model.AnySource) -> Scanner:
    """The source that looks for what is written."""
    match written:
        case model.Files():
            return FilesSource(written.directory)
        case model.Glob():
            return GlobSource(tuple(written.paths))
        case model.Static():
            return StaticSource(tuple(written.devices))
        case model.Pci() | model.Net() | model.Infiniband() | model.Drm() | model.Kfd():
            return _bus_source(written)
        case _:
            return _other_source(written)


def fault_source(host: HostRoot, written: Iterable[model.AnySource]) -> FaultSource | None:
    """Who listens for events that are faults of what these sources find; None where nobody needs to."""
    nvidia = next((source for source in written if isinstance(source, model.Nvidia)), None)
    if nvidia is None:
        return None
    from plugin.discovery.nvml import NvidiaEvents  # noqa: PLC0415 -- see _bus_source

    return NvidiaEvents(host, None if nvidia.library is UNSET else nvidia.library)


def _other_source(
    written: model.Regex | model.Group | model.Usb | model.Sysfs | model.Exec | model.Nvidia,
) -> Scanner:
    match written:
        case model.Regex():
            from plugin.discovery.regex import RegexSource  # noqa: PLC0415 -- see _bus_source

            return RegexSource(written.pattern, written.directory, written.depth)
        case model.Group():
            from plugin.discovery.group import GroupSource  # noqa: PLC0415 -- see _bus_source

            return GroupSource(written)
        case model.Usb():
            from plugin.discovery.usb import UsbSource  # noqa: PLC0415 -- see _bus_source

            return UsbSource(written)
        case model.Sysfs():
            from plugin.discovery.sysfs import SysfsSource  # noqa: PLC0415 -- see _bus_source

            return SysfsSource(written)
        case model.Exec():
            from plugin.discovery.exec import ExecSource  # noqa: PLC0415 -- see _bus_source

            return ExecSource(written)
        case model.Nvidia():
            from plugin.discovery.nvidia import NvidiaSource  # noqa: PLC0415 -- see _bus_source

            return NvidiaSource(written)


def _bus_source(written: model.Pci | model.Net | model.Infiniband | model.Drm | model.Kfd) -> Scanner:
    # Imported where it is asked for: a plugin that serves files alone has no use for the rest.
    match written:
        case model.Pci():
            from plugin.discovery.pci import PciSource  # noqa: PLC0415 -- see above

            return PciSource(written)
        case model.Net():
            from plugin.discovery.net import NetSource  # noqa: PLC0415 -- see above

            return NetSource(written)
        case model.Infiniband():
            from plugin.discovery.infiniband import InfinibandSource  # noqa: PLC0415 -- see above

            return InfinibandSource(written)
        case model.Drm():
            from plugin.discovery.drm import DrmSource  # noqa: PLC0415 -- see above

            return DrmSource(written)
        case model.Kfd():
            from plugin.discovery.kfd import KfdSource  # noqa: PLC0415 -- see above

            return KfdSource(written)
