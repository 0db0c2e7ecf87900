"""The source `static`: devices that are written down."""

from dataclasses import dataclass
from glob import escape

from msgspec import UNSET

from plugin.config.model import StaticDevice
from plugin.discovery.host import HostRoot, node_of
from plugin.discovery.source import Findings, Found, same_path


@dataclass(frozen=True, slots=True)
class StaticSource:
    """The devices as they are written; one with a path is absent while the path is."""

    devices: tuple[StaticDevice, ...]

    def scan(self, host: HostRoot) -> Findings:
        """All of them, always."""
        follow: dict[tuple[str, str], None] = {}
        found: list[Found] = []
        for device in self.devices:
            path = "" if device.path is UNSET else device.path
            numa_node = None if device.numa is UNSET else device.numa
            if not path:
                found.append(Found(device.name, attrs=device.attrs, numa_node=numa_node))
                continue
            parent, _, name = path.rstrip("/").rpartition("/")
            follow[parent or "/", escape(name)] = None
            node, absent = None, ""
            try:
                node = node_of(host.stat(path))
            except (FileNotFoundError, NotADirectoryError):
                absent = f"{path} is not there"
            nodes = (path,) if node else ()
            found.append(Found(device.name, path, device.attrs, absent, numa_node, node, nodes))
        return Findings(tuple(found), tuple(follow))

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """As it was found, while its path is there."""
        return same_path(host, found)
