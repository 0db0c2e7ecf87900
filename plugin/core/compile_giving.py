"""What a container gets: allocate, CDI specifications, pre_start; what contradicts itself is refused."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import UNSET, UnsetType

from plugin.core import model, names
from plugin.core.compile_health import compile_command
from plugin.core.place import Check, Place
from plugin.core.plan import (
    AllocatePlan,
    CdiPlan,
    Entry,
    FileEntry,
    MountEntry,
    NodeEntry,
    PreStartPlan,
)
from plugin.core.templates import Template

_DEVICES: Final = frozenset({"device", "devices", "ids"})
"""Variables that differ from one container to another."""
CONTAINER: Final = _DEVICES | {"resource"}
NODES: Final = CONTAINER | {"node"}
CDI: Final = frozenset({"device", "resource"})
CDI_NODES: Final = CDI | {"node"}

_MODE: Final = re.compile(r"0?[0-7]{3}")


def compile_allocate(written: model.Allocate, place: Place) -> AllocatePlan:
    """What Allocate answers. Raises ConfigError."""
    mounts = tuple(_mount(m, CONTAINER, place.at("mounts", i)) for i, m in enumerate(written.mounts))
    files = tuple(_file(f, place.at("files", i)) for i, f in enumerate(written.files))
    devices = tuple(_node(d, NODES, place.at("devices", i)) for i, d in enumerate(written.devices))
    taken: dict[str, str] = {}
    _once(((d.container, d.host) for d in devices), taken, place.at("devices"), joined=True)
    _once(((m.container, m.host) for m in mounts), taken, place.at("mounts"))
    _once(((f.container, f.host) for f in files), taken, place.at("files"))
    return AllocatePlan(
        env=_entries(written.env, names.variable_problem, place.at("env")),
        devices=devices,
        mounts=mounts,
        files=files,
        annotations=_entries(written.annotations, names.annotation_problem, place.at("annotations")),
        cdi=tuple(
            place.at("cdi", i).template(c, CONTAINER, names.cdi_problem) for i, c in enumerate(written.cdi)
        ),
    )


def compile_cdi(written: model.CdiSpec, place: Place) -> CdiPlan:
    """The CDI specification to write. Raises ConfigError."""
    place.at("kind").check(written.kind, names.cdi_kind_problem)
    place.at("directory").check(written.directory, names.path_problem)
    if not (written.env or written.devices or written.mounts):
        raise place.error("gives containers nothing, expected env, devices or mounts")
    name = place.at("name").template(written.name, CDI, names.cdi_device_problem)
    if "device" not in name.uses:
        raise place.at("name").error("does not use device: all devices would have the same name")
    return CdiPlan(
        kind=written.kind,
        name=name,
        directory=written.directory,
        env=tuple(
            Entry(
                place.at("env", key).template(key, CDI, names.variable_problem),
                place.at("env", key).template(value, CDI),
            )
            for key, value in written.env.items()
        ),
        devices=tuple(_node(d, CDI_NODES, place.at("devices", i)) for i, d in enumerate(written.devices)),
        mounts=tuple(_mount(m, CDI, place.at("mounts", i)) for i, m in enumerate(written.mounts)),
    )


def compile_pre_start(written: model.PreStart, place: Place) -> PreStartPlan:
    """The program to run before a container starts. Raises ConfigError.

    kubelet: PreStartContainer has 30 s, and the answer has to be on its way by then.
    """
    return PreStartPlan(
        command=compile_command(written.exec, CONTAINER, place.at("exec")),
        timeout=place.at("timeout").duration(written.timeout, "10ms", "28s"),
    )


def _entries(written: Mapping[str, str], check: Check, place: Place) -> tuple[Entry, ...]:
    """A value may name `device` only where its key does, else several devices would share one key."""
    entries: list[Entry] = []
    for key, value in written.items():
        here = place.at(key)
        entry = Entry(here.template(key, CONTAINER, check), here.template(value, CONTAINER))
        if "device" in entry.value.uses and "device" not in entry.name.uses:
            raise here.error(
                "uses device, but a container may get several: use devices, or name device in the key too"
            )
        entries.append(entry)
    return tuple(entries)


def _node(node: model.DeviceNode, variables: frozenset[str], place: Place) -> NodeEntry:
    place.at("permissions").check(node.permissions, names.permissions_problem)
    host, container = _host_and_container(node.host, node.container, variables, place)
    return NodeEntry(host, container, node.permissions, node.optional)


def _mount(mount: model.MountPoint, variables: frozenset[str], place: Place) -> MountEntry:
    host, container = _host_and_container(mount.host, mount.container, variables, place)
    if mount.create is not UNSET and mount.optional:
        raise place.at("optional").error("found optional beside create: what is made is always there")
    create = None if mount.create is UNSET else mount.create
    return MountEntry(host, container, mount.read_only, create, mount.optional)


def _file(file: model.SideFile, place: Place) -> FileEntry:
    if not _MODE.fullmatch(file.mode):
        raise place.at("mode").error(f"found '{file.mode}', expected three octal digits such as '0444'")
    host, container = _host_and_container(file.host, file.container, CONTAINER, place)
    content = place.at("content").template(file.content, CONTAINER)
    if content.uses & _DEVICES and not host.uses & _DEVICES:
        raise place.at("host").error(
            "is one file for all containers, but its content differs: name device or ids in its path"
        )
    return FileEntry(host, container, content, int(file.mode, 8))


def _host_and_container(
    host: str, container: str | UnsetType, variables: frozenset[str], place: Place
) -> tuple[Template, Template]:
    compiled = place.at("host").template(host, variables, names.path_problem)
    if container is UNSET:
        place.at("host").template(host, variables, names.container_path_problem)
        return compiled, compiled
    return compiled, place.at("container").template(container, variables, names.container_path_problem)


def _once(
    entries: Iterable[tuple[Template, Template]], taken: dict[str, str], place: Place, *, joined: bool = False
) -> None:
    """Container paths without variables are noted in `taken`, with their places: one cannot be two things.

    `joined`: the same host path may be named again.
    """
    hosts: dict[str, Template] = {}
    for index, (container, host) in enumerate(entries):
        if container.uses:
            continue
        path = container.text.rstrip("/")
        if path in taken and not (joined and hosts.get(path) == host):
            raise place.at(index).error(f"puts something at {path} again, the first is {taken[path]}")
        taken[path] = f"{place.path[-1]}[{index}]"
        hosts[path] = host
