"""From a configuration file's text to the resources that it asks for, each template compiled."""

from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from plugin.core import model, names
from plugin.core.errors import ConfigError, Path, quoted
from plugin.core.places import convert
from plugin.core.plan import (
    AllocatePlan,
    Entry,
    ExistsCheck,
    MountEntry,
    NodeEntry,
    ProbePlan,
    ResourcePlan,
)
from plugin.core.templates import (
    DEVICE_FIELDS,
    FOUND_FIELDS,
    Template,
    TemplateError,
    compile_template,
)
from plugin.core.yaml_document import Document, parse

Check = Callable[[str], str | None]

_FOUND: Final = frozenset({"device"})
_CONTAINER: Final = frozenset({"device", "devices", "ids"})


def load(content: bytes, source: str) -> tuple[ResourcePlan, ...]:
    """The resources of a configuration file. Raises ConfigError for the first thing wrong in it."""
    document = parse(content, source)
    if not isinstance(document.root.value, dict):
        found = quoted(document.root.plain())
        raise document.error((), f"found {found}, expected a mapping with the keys version and resources")
    written = convert(document, model.Document)
    plans: list[ResourcePlan] = []
    for index, resource in enumerate(written.resources):
        path: Path = ("resources", index)
        problem = names.resource_problem(resource.name)
        if problem is not None:
            raise document.error((*path, "name"), f"found {quoted(resource.name)}, {problem}")
        for earlier, plan in enumerate(plans):
            if plan.name == resource.name:
                line = document.line(("resources", earlier, "name"))
                raise document.error(
                    (*path, "name"),
                    f"found {quoted(resource.name)} a second time, the first is on line {line}",
                )
        plans.append(_Compiler(document, path).resource(resource))
    return tuple(plans)


def combine(parts: Sequence[tuple[str, tuple[ResourcePlan, ...]]]) -> tuple[ResourcePlan, ...]:
    """The resources of several files, given as (source, resources).

    Raises ConfigError where two files ask for the same resource.
    """
    first: dict[str, str] = {}
    for source, plans in parts:
        for plan in plans:
            if plan.name in first:
                raise ConfigError(
                    source, None, (), f"found {quoted(plan.name)}, which {first[plan.name]} has too"
                )
            first[plan.name] = source
    return tuple(plan for _, plans in parts for plan in plans)


class _Compiler:
    """Compiles one resource; every error names its place."""

    def __init__(self, document: Document, path: Path) -> None:
        self._document = document
        self._path = path

    def resource(self, written: model.Resource) -> ResourcePlan:
        share = written.share
        return ResourcePlan(
            name=written.name,
            sources=tuple(self._source(s, ("discover", i)) for i, s in enumerate(written.discover)),
            match=self._found_template(written.match, "match"),
            id=self._found_template(written.id, "id"),
            numa=self._numa(written.numa),
            replicas=None if share.replicas is UNSET else share.replicas,
            max_per_container=None if share.max_per_container is UNSET else share.max_per_container,
            probes=tuple(self._probe(p, i) for i, p in enumerate(written.health)),
            prefer=written.prefer,
            allocate=self._allocate(written.allocate),
            advertise_empty=written.advertise_empty,
        )

    def _probe(self, probe: model.Probe, index: int) -> ProbePlan:
        if probe.exists is UNSET:
            raise self._error(("health", index), "expected the key 'exists', which is missing")
        path: Path = ("health", index, "exists")
        template = self._template(probe.exists, path, _FOUND, names.path_problem)
        return ProbePlan(ExistsCheck(template), f"health[{index}].exists")

    def _source(self, source: model.Source, path: Path) -> model.AnySource:
        given = [s for s in (source.files, source.glob, source.static) if s is not UNSET]
        if len(given) != 1:
            found = "no source" if not given else f"{len(given)} sources in one item"
            raise self._error(path, f"found {found}, expected exactly one of files, glob, static")
        only = given[0]
        match only:
            case model.Files():
                self._check(only.directory, (*path, "files", "directory"), names.path_problem)
            case model.Glob():
                for index, pattern in enumerate(only.paths):
                    self._check(pattern, (*path, "glob", "paths", index), _pattern_problem)
            case model.Static():
                self._static(only, (*path, "static", "devices"))
        return only

    def _static(self, static: model.Static, path: Path) -> None:
        seen: set[str] = set()
        for index, device in enumerate(static.devices):
            if device.name in seen:
                raise self._error((*path, index, "name"), f"found {quoted(device.name)} a second time")
            seen.add(device.name)
            self._check(device.name, (*path, index, "name"), names.id_problem)
            if device.path is not UNSET:
                self._check(device.path, (*path, index, "path"), names.path_problem)

    def _numa(self, value: str | bool | int) -> Literal["auto", "off"] | int:  # noqa: FBT001 -- as it is written
        match value:
            case "auto" | "off":
                return "auto" if value == "auto" else "off"
            case False:  # what other YAML tools make of `off`
                return "off"
            case int() if not isinstance(value, bool) and 0 <= value <= 1023:
                return value
            case _:
                expected = "expected auto, off, or a node's number from 0 to 1023"
                raise self._error(("numa",), f"found {quoted(value)}, {expected}")

    def _allocate(self, written: model.Allocate) -> AllocatePlan:
        return AllocatePlan(
            env=tuple(
                self._entry(k, v, ("allocate", "env", k), names.variable_problem)
                for k, v in written.env.items()
            ),
            devices=tuple(self._node(d, ("allocate", "devices", i)) for i, d in enumerate(written.devices)),
            mounts=tuple(self._mount(m, ("allocate", "mounts", i)) for i, m in enumerate(written.mounts)),
            annotations=tuple(
                self._entry(k, v, ("allocate", "annotations", k), names.annotation_problem)
                for k, v in written.annotations.items()
            ),
            cdi=tuple(
                self._template(c, ("allocate", "cdi", i), _CONTAINER, names.cdi_problem)
                for i, c in enumerate(written.cdi)
            ),
        )

    def _entry(self, name: str, value: str, path: Path, check: Check) -> Entry:
        """A value may name `device` only where its key does, else several devices would share one key."""
        key = self._template(name, path, _CONTAINER, check)
        text = self._template(value, path, _CONTAINER)
        if "device" in text.uses and "device" not in key.uses:
            raise self._error(
                path,
                "uses device, but a container may get several: use devices, or name device in the key too",
            )
        return Entry(key, text)

    def _node(self, node: model.DeviceNode, path: Path) -> NodeEntry:
        self._check(node.permissions, (*path, "permissions"), names.permissions_problem)
        host, container = self._host_and_container(node.host, node.container, path)
        return NodeEntry(host, container, node.permissions)

    def _mount(self, mount: model.MountPoint, path: Path) -> MountEntry:
        host, container = self._host_and_container(mount.host, mount.container, path)
        return MountEntry(host, container, mount.read_only, None if mount.create is UNSET else mount.create)

    def _host_and_container(
        self, host: str, container: str | UnsetType, path: Path
    ) -> tuple[Template, Template]:
        compiled = self._template(host, (*path, "host"), _CONTAINER, names.path_problem)
        if container is UNSET:
            return compiled, compiled
        return compiled, self._template(container, (*path, "container"), _CONTAINER, names.path_problem)

    def _found_template(self, text: str | UnsetType, key: str) -> Template | None:
        return None if text is UNSET else self._template(text, (key,), _FOUND, fields=FOUND_FIELDS)

    def _template(
        self,
        text: str,
        path: Path,
        variables: frozenset[str],
        check: Check | None = None,
        fields: frozenset[str] = DEVICE_FIELDS,
    ) -> Template:
        """Compile a template; one without variables is checked now as it would be at Allocate."""
        try:
            template = compile_template(text, variables, fields)
            if check is not None and not template.uses:
                self._check(template.render({}), path, check)
        except TemplateError as error:
            raise self._error(path, f"in the template {quoted(text)}: {error}") from None
        return template

    def _check(self, text: str, path: Path, check: Check) -> None:
        problem = check(text)
        if problem is not None:
            raise self._error(path, f"found {quoted(text)}, {problem}")

    def _error(self, path: Path, problem: str) -> ConfigError:
        return self._document.error((*self._path, *path), problem)


def _pattern_problem(pattern: str) -> str | None:
    if "**" in pattern:
        return "expected a pattern without '**': each '*' stands for one component"
    return names.path_problem(pattern)
