"""Sources that look at paths: files, glob, regex, group; and static, which is told."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from plugin.core import names, patterns
from plugin.core.errors import Path, quoted
from plugin.core.model.common import NumaNode, unfit


class Files(Struct, frozen=True, forbid_unknown_fields=True):
    """Every regular file of a directory is a device, named like the file."""

    directory: str
    """Absolute path on the host."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `files`, what is wrong)."""
        yield from unfit(self.directory, names.path_problem(self.directory), "directory")


class Glob(Struct, frozen=True, forbid_unknown_fields=True):
    """Every path that matches one of the patterns is a device, named by its last component.

    Attributes: `type`, `major`, `minor` of a device node; `target`, where a link leads.

    Nodes: the path, where it is a device node.
    """

    paths: Annotated[list[str], Meta(min_length=1, max_length=64)]
    """Absolute patterns with `*`, `?` and `[…]`, none of which matches a slash."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `glob`, what is wrong)."""
        for index, pattern in enumerate(self.paths):
            yield from unfit(pattern, names.glob_problem(pattern), "paths", index)


class Regex(Struct, frozen=True, forbid_unknown_fields=True):
    """Every entry of a directory whose whole name matches is a device.

    Named by its path below the directory: `video0`, `snd/controlC0`. Directories are looked into, as deep
    as asked for, and are no devices themselves; neither are links that lead nowhere.

    Attributes: one for each named group of the pattern, empty where it took no part; `type`, `major`,
    `minor` of a device node; `target`, where a link leads.

    Nodes: the path, where it is a device node.
    """

    pattern: str
    """A regular expression for the whole path below the directory; repeats in repeats are refused."""
    directory: str = "/dev"
    """Absolute path on the host."""
    depth: Annotated[int, Meta(ge=1, le=8)] = 1
    """How many levels are looked at; 1: the directory's own entries alone."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `regex`, what is wrong)."""
        yield from unfit(self.pattern, patterns.pattern_problem(self.pattern), "pattern")
        yield from unfit(self.directory, names.path_problem(self.directory), "directory")


class GroupMember(Struct, frozen=True, forbid_unknown_fields=True):
    """Paths of which each device of the group gets one."""

    path: str
    """Absolute pattern, as in `glob`."""
    name: str | UnsetType = UNSET
    """The attribute that tells the path; `member0` for the first member, and so on, if left out."""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """How many devices may get the same path."""
    optional: bool = False
    """A device is complete without it."""


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """Several paths together are one device: the n-th path of each member makes the n-th device.

    The first member that is not optional and whose paths are not shared names the devices, by the last
    component of its path. A device keeps its paths while they are there. When one of them vanishes, the
    next free path takes its place; while there is none the device stays known, and is absent.

    Attributes: one for each member, its path, empty where an optional one has none.

    Nodes: the paths that are device nodes.
    """

    members: Annotated[list[GroupMember], Meta(min_length=1, max_length=64)]
    """What each device consists of."""
    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """How many times each complete group is a device: `name-0`, `name-1`, …"""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `group`, what is wrong)."""
        seen: set[str] = set()
        for index, member in enumerate(self.members):
            yield from unfit(member.path, names.glob_problem(member.path), "members", index, "path")
            called = f"member{index}" if member.name is UNSET else member.name
            problem = names.attribute_problem(called)
            if problem is None and called in seen:
                problem = "which another member is called"
            yield from unfit(called, problem, "members", index, "name")
            seen.add(called)


class StaticDevice(Struct, frozen=True, forbid_unknown_fields=True):
    """One device that is written down. With a path it is healthy while the path is there."""

    name: Annotated[str, Meta(min_length=1)]
    """Its name, and its id if `id` does not say otherwise."""
    path: str | UnsetType = UNSET
    """Absolute path on the host."""
    numa: NumaNode | UnsetType = UNSET
    """Its NUMA node."""
    attrs: dict[str, str] = {}
    """Its attributes."""


class Static(Struct, frozen=True, forbid_unknown_fields=True):
    """Devices that are written down."""

    devices: Annotated[list[StaticDevice], Meta(min_length=1, max_length=4096)]
    """The devices."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `static`, what is wrong)."""
        seen: set[str] = set()
        for index, device in enumerate(self.devices):
            if device.name in seen:
                yield ("devices", index, "name"), f"found {quoted(device.name)} a second time"
            seen.add(device.name)
            yield from unfit(device.name, names.id_problem(device.name), "devices", index, "name")
            if device.path is not UNSET:
                yield from unfit(device.path, names.path_problem(device.path), "devices", index, "path")
