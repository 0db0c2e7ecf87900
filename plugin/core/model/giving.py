"""What a container gets: allocate, CDI specs, pre_start."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from plugin.core.model.common import Command, Duration, TemplateText


class DeviceNode(Struct, frozen=True, forbid_unknown_fields=True):
    """A device node that a container gets.

    Once for each device where a template uses `device`; once for each of its device nodes where one
    uses `node`, a host path of `device.nodes`.
    """

    host: TemplateText
    """Absolute path on the host."""
    container: TemplateText | UnsetType = UNSET
    """The same path as `host` if left out."""
    permissions: str = "rw"
    """Some of `r` (read), `w` (write), `m` (make nodes)."""
    optional: bool = False
    """Left out where the host has no such node."""


class MountPoint(Struct, frozen=True, forbid_unknown_fields=True):
    """A mount that a container gets; once for each device where a template uses `device`."""

    host: TemplateText
    """Absolute path on the host."""
    container: TemplateText | UnsetType = UNSET
    """The same path as `host` if left out."""
    read_only: bool = False
    """Whether the container may only read."""
    create: Literal["directory", "file"] | UnsetType = UNSET
    """What to make at the host path, at Allocate, where nothing is there yet."""
    optional: bool = False
    """Left out where the host has nothing there."""


class SideFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file written on the host at Allocate and mounted, read-only, into the container."""

    host: TemplateText
    """Absolute path on the host; different for different contents."""
    container: TemplateText
    """Absolute path in the container."""
    content: TemplateText
    """What is written."""
    mode: str = "0444"
    """Its permissions: three octal digits."""


class Allocate(Struct, frozen=True, forbid_unknown_fields=True):
    """What a container gets (`devices`, `ids`; in lists also `device`, and then once for each)."""

    env: Annotated[dict[str, TemplateText], Meta(max_length=256)] = {}
    """Environment variables."""
    devices: Annotated[list[DeviceNode], Meta(max_length=256)] = []
    """Device nodes."""
    mounts: Annotated[list[MountPoint], Meta(max_length=256)] = []
    """Directories and files of the host."""
    files: Annotated[list[SideFile], Meta(max_length=64)] = []
    """Files that are written for the container."""
    annotations: Annotated[dict[str, TemplateText], Meta(max_length=256)] = {}
    """Annotations for the container runtime."""
    cdi: Annotated[list[TemplateText], Meta(max_length=256)] = []
    """CDI devices, by names that a specification on the host knows: `vendor.example/class=name`."""


class CdiSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A CDI specification written for the resource's devices; Allocate then names them by it."""

    kind: str
    """VENDOR/CLASS"""
    name: TemplateText = "{{ device.id }}"
    """What a device is called in it."""
    directory: str = "/var/run/cdi"
    """Where on the host specifications are looked for."""
    env: Annotated[dict[str, TemplateText], Meta(max_length=256)] = {}
    """Environment variables."""
    devices: Annotated[list[DeviceNode], Meta(max_length=256)] = []
    """Device nodes."""
    mounts: Annotated[list[MountPoint], Meta(max_length=256)] = []
    """Directories and files of the host."""


class PreStart(Struct, frozen=True, forbid_unknown_fields=True):
    """A program run before a container starts, once for each device where it uses `device`."""

    exec: Command
    """The program, an absolute path, and its arguments; no shell is in between."""
    timeout: Duration = "20s"
    """It is killed then, and the container does not start; 28s at most."""
