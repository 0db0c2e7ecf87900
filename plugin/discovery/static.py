"""The source `static`: devices that the configuration lists."""

from collections.abc import Iterable, Iterator
from glob import escape
from typing import Annotated, ClassVar

from msgspec import UNSET, Meta, UnsetType

from plugin.discovery.host import HostRoot, node_of
from plugin.discovery.source import Findings, Found, SourceConfig
from plugin.fields import ConfigStruct, HostPath, NumaNode, Problem
from plugin.names import id_problem
from runtime.text import quoted


class StaticDevice(ConfigStruct, frozen=True):
    """One listed device. If it has a path, it is unhealthy while nothing exists there."""

    name: Annotated[str, Meta(min_length=1, extra={"check": id_problem})]
    """Its name, which is also its id unless `id` says otherwise."""
    path: HostPath | UnsetType = UNSET
    """Absolute path on the host."""
    numa: NumaNode | UnsetType = UNSET
    """Its NUMA node."""
    attrs: dict[str, str] = {}
    """Its attributes."""


class Static(SourceConfig, frozen=True):
    """Devices that the configuration lists."""

    identifies_devices: ClassVar[bool] = False

    devices: Annotated[list[StaticDevice], Meta(min_length=1, max_length=4096)]
    """The devices."""

    def contradictions(self) -> Iterator[Problem]:
        seen: set[str] = set()
        for index, device in enumerate(self.devices):
            if device.name in seen:
                yield ("devices", index, "name"), f"found {quoted(device.name)} a second time"
            seen.add(device.name)

    def attributes(self) -> frozenset[str]:
        return frozenset(name for device in self.devices for name in device.attrs)

    def host_paths(self) -> Iterable[str]:
        return [device.path for device in self.devices if isinstance(device.path, str)]

    def scan(self, host: HostRoot) -> Findings:
        """All listed devices; one whose path does not exist is absent."""
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
