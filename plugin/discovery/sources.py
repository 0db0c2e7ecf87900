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
        case _:
            raise NotImplementedError(type(written).__name__)
