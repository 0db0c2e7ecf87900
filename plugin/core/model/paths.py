"""Sources that look at paths: files, glob, regex, group; and static, which is told."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from plugin.core import names
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
    """Every path that matches one of the patterns is a device, named by its last component."""

    paths: Annotated[list[str], Meta(min_length=1, max_length=64)]
    """Absolute patterns with `*`, `?` and `[…]`, none of which matches a slash."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `glob`, what is wrong)."""
        for index, pattern in enumerate(self.paths):
            yield from unfit(pattern, names.glob_problem(pattern), "paths", index)


class Regex(Struct, frozen=True, forbid_unknown_fields=True):
    """Every entry of a directory whose whole name matches is a device; named groups become attributes."""

    pattern: str
    """A regular expression for the entry's name."""
    directory: str = "/dev"
    """Absolute path on the host."""


class GroupMember(Struct, frozen=True, forbid_unknown_fields=True):
    """Paths of which each device of the group gets one."""

    path: str
    """Absolute pattern, as in `glob`."""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """How many devices may get the same path."""
    optional: bool = False
    """A device is complete without it."""


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """Several paths together are one device: the n-th path of each member makes the n-th device."""

    members: Annotated[list[GroupMember], Meta(min_length=1, max_length=64)]
    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """How many times each complete group is advertised."""


class StaticDevice(Struct, frozen=True, forbid_unknown_fields=True):
    """One device that is written down. With a path it is healthy while the path is there."""

    name: Annotated[str, Meta(min_length=1)]
    path: str | UnsetType = UNSET
    numa: NumaNode | UnsetType = UNSET
    attrs: dict[str, str] = {}


class Static(Struct, frozen=True, forbid_unknown_fields=True):
    """Devices that are written down."""

    devices: Annotated[list[StaticDevice], Meta(min_length=1, max_length=4096)]

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
