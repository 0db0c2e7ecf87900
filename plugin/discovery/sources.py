"""Which source serves which part of a configuration."""

from plugin.core import model
from plugin.discovery.files import FilesSource
from plugin.discovery.glob import GlobSource
from plugin.discovery.source import Source
from plugin.discovery.static import StaticSource


def source_of(written: model.AnySource) -> Source:
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
            raise NotImplementedError(type(written).__name__)


def _bus_source(written: model.Pci | model.Net | model.Infiniband | model.Drm | model.Kfd) -> Source:
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
