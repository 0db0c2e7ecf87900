"""The compiler: from a resource of the model to its plan, with every template compiled and checked."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from plugin import names
from plugin.config import model, plan
from plugin.config.templates import DEVICE_FIELDS, FOUND_FIELDS, Template, TemplateError, plain_template
from plugin.names import Check
from runtime.config_file import ConfigError, Document, Path
from runtime.text import parse_duration, quoted

DEFAULT_TIMEOUT: Final = 5.0

FOUND: Final = frozenset({"device"})
_SHARE: Final = frozenset({"id", "n"})
_DEVICES: Final = frozenset({"device", "devices", "ids"})
"""Variables that differ from container to container."""
_CONTAINER: Final = _DEVICES | {"resource"}
_CDI: Final = frozenset({"device", "resource"})
_NODE: Final = frozenset({"node"})

_PREFIXES: Final[tuple[tuple[tuple[Check, ...], tuple[str, ...], str], ...]] = (
    ((names.path_problem, names.container_path_problem), ("/",), "an absolute path"),
    ((names.url_problem,), ("http://", "https://"), "an address that begins with http:// or https://"),
)


def compile_template(
    text: str, variables: frozenset[str], fields: frozenset[str], attributes: frozenset[str] | None = None
) -> Template:
    """Compile a template; the arguments are those of `plain_template`.

    Raises TemplateError for bad syntax, unknown names, and forbidden constructs.
    """
    plain = plain_template(text, variables, fields, attributes)
    if plain is not None:
        return plain
    # Jinja2 takes 3 MiB and 40 ms, and many configurations need it nowhere.
    from plugin.config.jinja import jinja_template  # noqa: PLC0415

    return jinja_template(text, variables, fields, attributes)


class Location(Struct, frozen=True):
    """A location in a document, and what its templates can use.

    `resource` is the resource's name, None if devices name it. `attributes` are the attributes of its
    devices, None if any name is possible.
    """

    document: Document
    path: Path
    resource: str | None = None
    attributes: frozenset[str] | None = None

    def at(self, *steps: str | int) -> "Location":
        """A location below."""
        return replace(self, path=(*self.path, *steps))

    def error(self, problem: str) -> ConfigError:
        """The error `problem` at this location."""
        return self.document.error(self.path, problem)

    def check(self, text: str, check: Check) -> str:
        """`text`, if it is valid. Raises ConfigError."""
        problem = check(text)
        if problem is not None:
            raise self.error(f"found {quoted(text)}, {problem}")
        return text

    def template(
        self,
        text: str,
        variables: frozenset[str],
        check: Check | None = None,
        fields: frozenset[str] = DEVICE_FIELDS,
    ) -> Template:
        """Compile a template whose result must pass `check`. Raises ConfigError.

        A template that depends on no device is checked now, others when they are rendered.
        """
        try:
            template = compile_template(text, variables, fields, self.attributes)
            if check is None:
                return template
            if template.uses - {"resource"} or (template.uses and self.resource is None):
                self._check_prefix(text, check)
                return template
            rendered = template.render({"resource": self.resource})
        except TemplateError as error:
            raise self.error(f"in the template {quoted(text)}: {error}") from None
        self.check(rendered, check)
        return template

    def _check_prefix(self, text: str, check: Check) -> None:
        """Refuse a template whose text before the first variable can begin no valid path or URL."""
        before = text.partition("{")[0]
        for checks, prefixes, expected in _PREFIXES:
            if check in checks and not any(before.startswith(p) or p.startswith(before) for p in prefixes):
                raise self.error(f"found {quoted(text)}, expected {expected}")

    def command(self, command: list[str], variables: frozenset[str]) -> tuple[Template, ...]:
        """Compile a program, by its absolute path, and its arguments. Raises ConfigError."""
        return tuple(
            self.at(index).template(part, variables, names.path_problem if index == 0 else None)
            for index, part in enumerate(command)
        )


def compile_resource(written: model.Resource, document: Document, path: Path) -> plan.ResourcePlan:
    """The plan of the resource at `path`. Raises ConfigError for its first problem."""
    place = Location(document, path)
    for below, problem in written.problems():
        raise place.at(*below).error(problem)
    sources = written.sources()
    attributes = [source.attributes() for source in sources]
    known = [each for each in attributes if each is not None]
    place = replace(place, attributes=frozenset().union(*known) if len(known) == len(attributes) else None)
    family = _family(written, place.at("name"))
    if family is None:
        place.at("name").check(written.name, names.resource_problem)
        place = replace(place, resource=written.name)
    share = written.share
    probes = _probes(written.health, place.at("health"))
    allocate = _allocate(written.allocate, place.at("allocate"))
    cdi = None if written.cdi is UNSET else _cdi(written.cdi, place.at("cdi"))
    checked = {probe.check.path for probe in probes if isinstance(probe.check, plan.ExistsCheck)}
    if all(source.checks_paths for source in sources):
        checked |= {_PATH, _NODE_PATH}
    return plan.ResourcePlan(
        name=written.name,
        sources=sources,
        family=family,
        match=_found_template(written.match, place.at("match"), _condition_problem),
        id=_found_template(written.id, place.at("id"), names.id_problem),
        numa=written.numa_node() or 0,
        sharing=_sharing(share, place.at("share", "id")),
        max_per_container=None if share.max_per_container is UNSET else share.max_per_container,
        probes=(
            *probes,
            *_nodes_probe("allocate.devices", allocate.devices, checked),
            *(_nodes_probe("cdi.devices", cdi.devices, checked) if cdi is not None else ()),
        ),
        prefer=written.prefer,
        allocate=allocate,
        cdi=cdi,
        pre_start=None
        if written.pre_start is UNSET
        else plan.PreStartPlan(
            place.at("pre_start", "exec").command(written.pre_start.exec, _CONTAINER),
            parse_duration(written.pre_start.timeout),
        ),
        exclusive=written.exclusive,
        advertise_empty=written.advertise_empty,
    )


def _family(written: model.Resource, place: Location) -> Template | None:
    """The template of the name, if devices name their resources."""
    name = written.name
    if "{" not in name:
        return None
    template = place.template(name, FOUND, fields=FOUND_FIELDS)
    if "device" not in template.uses:
        raise place.error(f"found {quoted(name)}, expected a name, or a template that uses device")
    before = name.partition("{")[0]
    if "/" in before:
        place.check(before.partition("/")[0] + "/x", names.resource_problem)
    if written.advertise_empty:
        problem = "found true, but only devices name resources here"
        raise place.document.error((*place.path[:-1], "advertise_empty"), problem)
    return template


def _found_template(text: str | UnsetType, place: Location, check: Check) -> Template | None:
    return None if text is UNSET else place.template(text, FOUND, check, FOUND_FIELDS)


def _condition_problem(text: str) -> str | None:
    if text.strip().lower() in {"true", "false"}:
        return None
    return "expected a condition such as {{ device.name == 'video0' }}"


def _sharing(share: model.Share, place: Location) -> plan.Sharing:
    if share.replicas is UNSET:
        return plan.UNSHARED
    if share.id is UNSET:
        return plan.Sharing(share.replicas, None, share.first)
    template = place.template(share.id, _SHARE, names.id_problem)
    if "n" not in template.uses and share.replicas > 1:
        raise place.error("does not use n: all replicas of a device would have the same id")
    return plan.Sharing(share.replicas, template, share.first)


def _probes(written: list[model.Probe], place: Location) -> tuple[plan.ProbePlan, ...]:
    probes: list[plan.ProbePlan] = []
    for index, probe in enumerate(written):
        kind = probe.kind()
        check = _CHECKS[kind](getattr(probe, kind), place.at(index, kind))
        earlier = next((number for number, other in enumerate(probes) if other.check == check), None)
        if earlier is not None:
            raise place.at(index).error(f"found what item {earlier} checks already")
        interval = None if probe.interval is UNSET else parse_duration(probe.interval)
        default = DEFAULT_TIMEOUT if interval is None else min(DEFAULT_TIMEOUT, interval)
        probes.append(
            plan.ProbePlan(
                check=check,
                place=f"health[{index}].{kind}",
                interval=interval,
                timeout=default if probe.timeout is UNSET else parse_duration(probe.timeout),
                failures=probe.failures,
                successes=probe.successes,
                initial=None if probe.initial is UNSET else probe.initial,
            )
        )
    return tuple(probes)


_PATH: Final = compile_template("{{ device.path }}", FOUND, DEVICE_FIELDS)
_NODE_PATH: Final = compile_template("{{ node }}", _NODE, DEVICE_FIELDS)


def _nodes_probe(
    place: str, entries: Iterable[plan.NodeEntry], known: Collection[Template]
) -> Iterator[plan.ProbePlan]:
    """The probe that what Allocate must give for a device exists, but for the `known` paths."""
    required = dict.fromkeys(entry.host for entry in entries if not entry.optional)
    hosts = tuple(host for host in required if host.uses <= FOUND | _NODE and host not in known)
    if hosts:
        yield plan.ProbePlan(plan.NodesCheck(hosts), place)


def _file_check(written: model.FileProbe, place: Location) -> plan.Check:
    equals = None
    if written.equals is not UNSET:
        equals = place.at("equals").template(written.equals, FOUND, _content_problem)
    return plan.FileCheck(
        path=place.at("path").template(written.path, FOUND, names.path_problem),
        equals=equals,
        one_of=None if written.one_of is UNSET else tuple(written.one_of),
        matches=None if written.matches is UNSET else written.matches,
        not_matches=None if written.not_matches is UNSET else written.not_matches,
        at_least=None if written.at_least is UNSET else float(written.at_least),
        at_most=None if written.at_most is UNSET else float(written.at_most),
    )


def _content_problem(text: str) -> str | None:
    return None if text == text.strip() else "expected text without white space at its ends"


def _http_check(written: model.HttpProbe, place: Location) -> plan.Check:
    url = place.at("url").template(written.url, FOUND, names.url_problem)
    return plan.HttpCheck(url, None if written.status is UNSET else frozenset(written.status))


_CHECKS: Final[Mapping[str, Callable[[Any, Location], plan.Check]]] = {
    "exists": lambda path, place: plan.ExistsCheck(place.template(path, FOUND, names.path_problem)),
    "file": _file_check,
    "carrier": lambda name, place: plan.CarrierCheck(place.template(name, FOUND, names.interface_problem)),
    "exec": lambda probe, place: plan.ExecCheck(place.at("command").command(probe.command, FOUND)),
    "http": _http_check,
    "xid": lambda probe, _: plan.XidCheck(frozenset(probe.ignore), parse_duration(probe.quiet)),
}


def _allocate(written: model.Allocate, place: Location) -> plan.AllocatePlan:
    variables = _CONTAINER | _NODE
    mounts = tuple(_mount(m, _CONTAINER, place.at("mounts", i)) for i, m in enumerate(written.mounts))
    files = tuple(_file(f, place.at("files", i)) for i, f in enumerate(written.files))
    devices = tuple(_device(d, variables, place.at("devices", i)) for i, d in enumerate(written.devices))
    taken: dict[str, str] = {}
    _refuse_shared_paths(((d.container, d.host) for d in devices), taken, place.at("devices"), repeat=True)
    _refuse_shared_paths(((m.container, m.host) for m in mounts), taken, place.at("mounts"))
    _refuse_shared_paths(((f.container, f.host) for f in files), taken, place.at("files"))
    return plan.AllocatePlan(
        env=_entries(written.env, names.variable_problem, place.at("env")),
        devices=devices,
        mounts=mounts,
        files=files,
        annotations=_entries(written.annotations, names.annotation_problem, place.at("annotations")),
        cdi=tuple(
            place.at("cdi", i).template(c, _CONTAINER, names.cdi_problem) for i, c in enumerate(written.cdi)
        ),
    )


def _cdi(written: model.CdiSpec, place: Location) -> plan.CdiPlan:
    name = place.at("name").template(written.name, _CDI, names.cdi_device_problem)
    if "device" not in name.uses:
        raise place.at("name").error("does not use device: all devices would have the same name")
    variables = _CDI | _NODE
    return plan.CdiPlan(
        kind=written.kind,
        name=name,
        directory=written.directory,
        env=_entries(written.env, names.variable_problem, place.at("env"), _CDI),
        devices=tuple(_device(d, variables, place.at("devices", i)) for i, d in enumerate(written.devices)),
        mounts=tuple(_mount(m, _CDI, place.at("mounts", i)) for i, m in enumerate(written.mounts)),
    )


def _entries(
    written: Mapping[str, str], check: Check, place: Location, variables: frozenset[str] = _CONTAINER
) -> tuple[plan.Entry, ...]:
    """For a container a value may use `device` only if its key does: several devices would share one key."""
    entries: list[plan.Entry] = []
    for key, value in written.items():
        here = place.at(key)
        entry = plan.Entry(here.template(key, variables, check), here.template(value, variables))
        several = variables >= _DEVICES
        if several and "device" in entry.value.uses and "device" not in entry.name.uses:
            raise here.error(
                "uses device, but a container may get several: use devices, or name device in the key too"
            )
        entries.append(entry)
    return tuple(entries)


def _device(node: model.DeviceNode, variables: frozenset[str], place: Location) -> plan.NodeEntry:
    host, container = _host_and_container(node.host, node.container, variables, place)
    return plan.NodeEntry(host, container, node.permissions, node.optional)


def _mount(mount: model.MountPoint, variables: frozenset[str], place: Location) -> plan.MountEntry:
    host, container = _host_and_container(mount.host, mount.container, variables, place)
    create = None if mount.create is UNSET else mount.create
    return plan.MountEntry(host, container, mount.read_only, create, mount.optional)


def _file(file: model.SideFile, place: Location) -> plan.FileEntry:
    host, container = _host_and_container(file.host, file.container, _CONTAINER, place)
    content = place.at("content").template(file.content, _CONTAINER)
    if content.uses & _DEVICES and not host.uses & _DEVICES:
        raise place.at("host").error(
            "is one file for all containers, but its content differs: name device or ids in its path"
        )
    return plan.FileEntry(host, container, content, int(file.mode, 8))


def _host_and_container(
    host: str, container: str | UnsetType, variables: frozenset[str], place: Location
) -> tuple[Template, Template]:
    compiled = place.at("host").template(host, variables, names.path_problem)
    if container is UNSET:
        place.at("host").template(host, variables, names.container_path_problem)
        return compiled, compiled
    return compiled, place.at("container").template(container, variables, names.container_path_problem)


def _refuse_shared_paths(
    entries: Iterable[tuple[Template, Template]],
    taken: dict[str, str],
    place: Location,
    *,
    repeat: bool = False,
) -> None:
    """Refuse a container path without variables that an earlier entry in `taken` has.

    `repeat`: an entry with the same host path may repeat it.
    """
    hosts: dict[str, Template] = {}
    for index, (container, host) in enumerate(entries):
        if container.uses:
            continue
        path = container.text.rstrip("/")
        if path in taken and not (repeat and hosts.get(path) == host):
            raise place.at(index).error(f"puts something at {path} again, the first is {taken[path]}")
        taken[path] = f"{place.path[-1]}[{index}]"
        hosts[path] = host
