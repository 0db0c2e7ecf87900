"""One resource: its parts compiled, and what contradicts itself across them refused.

Sources: exactly one in each item of `discover`, its own contradictions told with their place.

What a container gets: allocate, CDI specifications, pre_start; what contradicts itself is refused.

Probes: exactly one kind in each item of `health`, and times that can be kept.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from msgspec import UNSET, UnsetType

from plugin import names, patterns
from plugin.config import model
from plugin.config.attributes import attributes_of
from plugin.config.place import FOUND, Check, Place
from plugin.config.plan import (
    AllocatePlan,
    CarrierCheck,
    CdiPlan,
    Entry,
    ExecCheck,
    ExistsCheck,
    FileCheck,
    FileEntry,
    HttpCheck,
    MountEntry,
    NodeEntry,
    PreStartPlan,
    ProbePlan,
    ResourcePlan,
    XidCheck,
)
from plugin.config.plan import (
    Check as Check_compile_health,
)
from plugin.config.templates import FOUND_FIELDS, Template
from runtime.config_file import quoted


def compile_sources(written: list[model.Source], place: Place) -> tuple[model.AnySource, ...]:
    """The sources of `discover`, at `place`. Raises ConfigError."""
    sources: list[model.AnySource] = []
    for index, item in enumerate(written):
        source = _source(item, place.at(index))
        if source in sources:
            raise place.at(index).error(f"found what item {sources.index(source)} is already")
        sources.append(source)
    return tuple(sources)


def _source(item: model.Source, place: Place) -> model.AnySource:
    names = model.Source.__struct_fields__
    given: dict[str, model.AnySource] = {
        name: source for name in names if (source := getattr(item, name)) is not UNSET
    }
    if len(given) != 1:
        found = " and ".join(given) or "no source"
        raise place.error(f"found {found}, expected exactly one of {', '.join(names)}")
    ((name, only),) = given.items()
    for path, problem in only.problems():
        raise place.at(name, *path).error(problem)
    return only


DEFAULT_TIMEOUT: Final = 5.0


def compile_probes(
    written: list[model.Probe], sources: tuple[model.AnySource, ...], place: Place
) -> tuple[ProbePlan, ...]:
    """The probes of `health`, at `place`, for devices of `sources`. Raises ConfigError."""
    probes: list[ProbePlan] = []
    for index, probe in enumerate(written):
        compiled = _probe(probe, sources, place.at(index))
        for earlier, other in enumerate(probes):
            if other.check == compiled.check:
                raise place.at(index).error(f"found what item {earlier} checks already")
        probes.append(compiled)
    return tuple(probes)


def _probe(probe: model.Probe, sources: tuple[model.AnySource, ...], place: Place) -> ProbePlan:
    given = [name for name in PROBES if getattr(probe, name) is not UNSET]
    if len(given) != 1:
        found = "no probe" if not given else " and ".join(given)
        raise place.error(f"found {found}, expected exactly one of {', '.join(PROBES)}")
    kind = given[0]
    if kind == "xid":
        _only_events(probe, sources, place)
    interval = (
        None if probe.interval is UNSET else place.at("interval").duration(probe.interval, "100ms", "1d")
    )
    return ProbePlan(
        check=PROBES[kind](getattr(probe, kind), place.at(kind)),
        place=f"health[{place.path[-1]}].{kind}",
        interval=interval,
        timeout=_timeout(probe.timeout, interval, place.at("timeout")),
        failures=probe.failures,
        successes=probe.successes,
        initial=None if probe.initial is UNSET else probe.initial,
    )


def _timeout(written: str | UnsetType, interval: float | None, place: Place) -> float:
    if written is UNSET:
        return DEFAULT_TIMEOUT if interval is None else min(DEFAULT_TIMEOUT, interval)
    timeout = place.duration(written, "10ms", "5m")
    if interval is None and timeout > 30.0:
        raise place.error(f"found '{written}', expected at most 30s, or an interval that is as long")
    if interval is not None and timeout > interval:
        raise place.error(f"found '{written}', expected at most the interval, {interval:g}s")
    return timeout


def _only_events(probe: model.Probe, sources: tuple[model.AnySource, ...], place: Place) -> None:
    """XIDs come when they come: nothing is asked, so nothing says how often."""
    for key in ("interval", "timeout", "initial"):
        if getattr(probe, key) is not UNSET:
            raise place.at(key).error(f"found {key} beside xid, which is told by events and never asked")
    for key in ("failures", "successes"):
        if getattr(probe, key) != 1:
            raise place.at(key).error(f"found {key} beside xid, which is told by events and never asked")
    if not any(isinstance(source, model.Nvidia) for source in sources):
        raise place.at("xid").error("found xid for devices of other sources, expected nvidia in discover")


def _exists(path: str, place: Place) -> Check_compile_health:
    return ExistsCheck(place.template(path, FOUND, names.path_problem))


def _file_compile_health(written: model.FileProbe, place: Place) -> Check_compile_health:
    keys = ("equals", "one_of", "matches", "not_matches", "at_least", "at_most")
    given = [key for key in keys if getattr(written, key) is not UNSET]
    if not given:
        raise place.error(f"found no expectation, expected one of {', '.join(keys)} (or the probe exists)")
    if "equals" in given and "one_of" in given:
        raise place.at("one_of").error("found equals and one_of, expected one of them")
    if written.one_of == []:
        raise place.at("one_of").error("found an empty list, which no content satisfies")
    at_least = _number(written.at_least, place.at("at_least"))
    at_most = _number(written.at_most, place.at("at_most"))
    if at_least is not None and at_most is not None and at_least > at_most:
        raise place.at("at_most").error(
            f"found {at_most:g}, expected at least {at_least:g}, at_least's value"
        )
    return FileCheck(
        path=place.at("path").template(written.path, FOUND, names.path_problem),
        equals=None
        if written.equals is UNSET
        else place.at("equals").template(written.equals, FOUND, _content_problem),
        one_of=None if written.one_of is UNSET else tuple(written.one_of),
        matches=_pattern(written.matches, place.at("matches")),
        not_matches=_pattern(written.not_matches, place.at("not_matches")),
        at_least=at_least,
        at_most=at_most,
    )


def _content_problem(text: str) -> str | None:
    return None if text == text.strip() else "expected text without white space at its ends"


def _number(value: float | UnsetType, place: Place) -> float | None:
    if value is UNSET:
        return None
    if not math.isfinite(value):
        raise place.error(f"found {value}, expected a finite number")
    return float(value)


def _pattern(text: str | UnsetType, place: Place) -> str | None:
    return None if text is UNSET else place.check(text, patterns.pattern_problem)


def _carrier(interface: str, place: Place) -> Check_compile_health:
    return CarrierCheck(place.template(interface, FOUND, names.interface_problem))


def _exec(written: model.ExecProbe, place: Place) -> Check_compile_health:
    return ExecCheck(compile_command(written.command, FOUND, place.at("command")))


def compile_command(command: list[str], variables: frozenset[str], place: Place) -> tuple[Template, ...]:
    """A program by its absolute path, and its arguments. Raises ConfigError."""
    return tuple(
        place.at(index).template(part, variables, names.path_problem if index == 0 else None)
        for index, part in enumerate(command)
    )


def _http(written: model.HttpProbe, place: Place) -> Check_compile_health:
    url = place.at("url").template(written.url, FOUND, names.url_problem)
    if written.status is UNSET:
        return HttpCheck(url)
    if not written.status:
        raise place.at("status").error("found an empty list, which no answer satisfies")
    for index, status in enumerate(written.status):
        if not 100 <= status <= 599:
            raise place.at("status", index).error(f"found {status}, expected a status from 100 to 599")
    return HttpCheck(url, frozenset(written.status))


def _xid(written: model.XidProbe, place: Place) -> Check_compile_health:
    for index, code in enumerate(written.ignore):
        if not 0 <= code < 1 << 32:
            raise place.at("ignore", index).error(f"found {code}, expected an XID: a number from 0")
    return XidCheck(frozenset(written.ignore), place.at("quiet").duration(written.quiet, "1s", "1w"))


PROBES: Final[Mapping[str, Callable[[Any, Place], Check_compile_health]]] = {
    "exists": _exists,
    "file": _file_compile_health,
    "carrier": _carrier,
    "exec": _exec,
    "http": _http,
    "xid": _xid,
}


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


REPLICA: Final = frozenset({"id", "n"})


def compile_resource(written: model.Resource, place: Place) -> ResourcePlan:
    """The plan of the resource that is written at `place`. Raises ConfigError."""
    sources = compile_sources(written.discover, place.at("discover"))
    place = replace(place, attributes=attributes_of(sources))
    family = _family(written.name, place.at("name"))
    name = (
        written.name if family is not None else place.at("name").check(written.name, names.resource_problem)
    )
    place = replace(place, resource=None if family is not None else name)
    numa = _numa(written.numa, place.at("numa"))
    if numa == "off" and written.prefer == "numa":
        raise place.at("prefer").error("found 'numa' with numa off: no device would have a NUMA node")
    if family is not None and written.advertise_empty:
        raise place.at("advertise_empty").error(
            "found true, but only devices tell the names of resources here"
        )
    share = written.share
    return ResourcePlan(
        name=name,
        sources=sources,
        family=family,
        match=_condition(written.match, place.at("match")),
        id=_id(written.id, place.at("id")),
        numa=numa,
        replicas=None if share.replicas is UNSET else share.replicas,
        replica_id=_replica_id(share, place.at("share")),
        first_replica=share.first,
        max_per_container=None if share.max_per_container is UNSET else share.max_per_container,
        probes=compile_probes(written.health, sources, place.at("health")),
        prefer=written.prefer,
        allocate=compile_allocate(written.allocate, place.at("allocate")),
        cdi=None if written.cdi is UNSET else compile_cdi(written.cdi, place.at("cdi")),
        pre_start=None
        if written.pre_start is UNSET
        else compile_pre_start(written.pre_start, place.at("pre_start")),
        exclusive=written.exclusive,
        advertise_empty=written.advertise_empty,
    )


def _family(name: str, place: Place) -> Template | None:
    """The name's template where devices name their resources; None for a name as it is."""
    if "{" not in name:
        return None
    template = place.template(name, FOUND, fields=FOUND_FIELDS)
    if "device" not in template.uses:
        raise place.error(f"found {quoted(name)}, expected a name, or a template that uses device")
    before = name.partition("{")[0]
    if "/" in before:
        place.check(before.partition("/")[0] + "/x", names.resource_problem)
    return template


def _condition(text: str | UnsetType, place: Place) -> Template | None:
    return None if text is UNSET else place.template(text, FOUND, _condition_problem, FOUND_FIELDS)


def _condition_problem(text: str) -> str | None:
    if text.strip().lower() in {"true", "false"}:
        return None
    return "expected a condition such as {{ device.name == 'video0' }}"


def _id(text: str | UnsetType, place: Place) -> Template | None:
    return None if text is UNSET else place.template(text, FOUND, names.id_problem, FOUND_FIELDS)


def _replica_id(share: model.Share, place: Place) -> Template | None:
    if share.replicas is UNSET:
        for key in ("id", "first"):
            if getattr(share, key):
                raise place.at(key).error(f"found {key} without replicas, which it is about")
        return None
    if share.id is UNSET:
        return None
    template = place.at("id").template(share.id, REPLICA, names.id_problem)
    if "n" not in template.uses and share.replicas > 1:
        raise place.at("id").error("does not use n: all replicas of a device would have the same id")
    return template


def _numa(value: str | bool | int, place: Place) -> Literal["auto", "off"] | int:  # noqa: FBT001 -- as it is written
    match value:
        case "auto" | "off":
            return "auto" if value == "auto" else "off"
        case False:  # what other YAML tools make of `off`
            return "off"
        case int() if not isinstance(value, bool) and 0 <= value <= 1023:
            return value
        case _:
            raise place.error(f"found {quoted(value)}, expected auto, off, or a node's number from 0 to 1023")
