"""Renders the templates of a resource for devices: nodes, mounts, files, named values, pre_start commands.

Every rendered value is checked: a template may give a path or name that the kubelet or a runtime refuses.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from plugin import names
from plugin.config.plan import Entry, FileEntry, MountEntry, NodeEntry, PreStartPlan
from plugin.config.templates import Template, TemplateError
from plugin.devices.device import Device
from plugin.names import in_order
from runtime.text import quoted

T = TypeVar("T")
Check = Callable[[str], str | None]

_PERMISSIONS: Final = "rwm"


class ContainerNode(Struct, frozen=True):
    """A device node for a container. `optional`: left out where the host does not have it."""

    host: str
    container: str
    permissions: str
    optional: bool = False


class Mount(Struct, frozen=True):
    """A mount for a container. `create`: what to create at a host path that does not exist."""

    host: str
    container: str
    read_only: bool
    create: Literal["directory", "file"] | None
    optional: bool = False


class File(Struct, frozen=True):
    """A file that is written at `host` on the host, and mounted read-only at `container`.

    `device`: the id of its device; empty for a file that all devices of the container share.
    """

    host: str
    container: str
    content: str
    mode: int
    device: str = ""


class RenderError(ValueError):
    """A template fails or gives an invalid value; the message has its place in the configuration."""


class Renderer:
    """Renders the entries of one part of the configuration for some devices.

    `part` is its place in the document, such as `allocate`. Every method raises RenderError.
    """

    def __init__(
        self, part: str, resource: str, devices: Sequence[Device], ids: Sequence[str] | None = None
    ) -> None:
        """`ids`: the advertised ids of a container; None for a part that is not rendered for a container."""
        self._part = part
        container = {} if ids is None else {"devices": list(devices), "ids": list(ids)}
        self._whole: Mapping[str, object] = {"resource": resource, **container}
        self._each: Sequence[Mapping[str, object]] = [{**self._whole, "device": d} for d in devices]

    def entries(self, key: str, entries: Iterable[Entry], check: Check) -> dict[str, str]:
        """Named values. Different values for one name are an error."""
        made: dict[str, str] = {}
        for entry in entries:
            place = f"{key}.{entry.name.text}"
            for variables in self.scopes(entry.name, entry.value):
                name = self.render(entry.name, variables, place, check)
                value = self.render(entry.value, variables, place)
                if made.setdefault(name, value) != value:
                    raise self.failed(place, f"gives {quoted(name)} two values")
        return made

    def nodes(
        self, entries: Iterable[NodeEntry], wanted: Callable[[NodeEntry], bool] = lambda _: True
    ) -> tuple[ContainerNode, ...]:
        """Device nodes of the `wanted` entries. Entries for one node give it the permissions of all."""
        made: dict[str, ContainerNode] = {}
        for index, entry in enumerate(entries):
            if not wanted(entry):
                continue
            place = f"devices[{index}]"
            for host, container in self._paths(place, entry.host, entry.container):
                node = ContainerNode(host, container, entry.permissions, entry.optional)
                known = made.setdefault(container, node)
                if known.host != host:
                    raise self._twice(place, container, known.host, host)
                if known is not node:
                    made[container] = _joined(known, node)
        return tuple(made.values())

    def mounts(
        self, entries: Iterable[MountEntry], wanted: Callable[[MountEntry], bool] = lambda _: True
    ) -> tuple[Mount, ...]:
        """Mounts of the `wanted` entries, each once."""
        made: dict[str, Mount] = {}
        for index, entry in enumerate(entries):
            if not wanted(entry):
                continue
            place = f"mounts[{index}]"
            for host, container in self._paths(place, entry.host, entry.container):
                mount = Mount(host, container, entry.read_only, entry.create, entry.optional)
                known = made.setdefault(container, mount)
                if known != mount:
                    raise self._twice(place, container, known.host, host)
        return tuple(made.values())

    def files(self, entries: Iterable[FileEntry]) -> tuple[File, ...]:
        """Files, each once."""
        made: dict[str, File] = {}
        placed: dict[str, str] = {}
        for index, entry in enumerate(entries):
            place = f"files[{index}]"
            for variables in self.scopes(entry.host, entry.container, entry.content):
                host = self.render(entry.host, variables, f"{place}.host", names.path_problem)
                container = self.render(
                    entry.container, variables, f"{place}.container", names.container_path_problem
                )
                content = self.render(entry.content, variables, f"{place}.content")
                device = variables.get("device")
                file = File(
                    host, container, content, entry.mode, device.id if isinstance(device, Device) else ""
                )
                if made.setdefault(host, file) != file:
                    raise self.failed(place, f"writes {quoted(host)} in two ways")
                if placed.setdefault(container, host) != host:
                    raise self._twice(place, container, placed[container], host)
        return tuple(made.values())

    def texts(self, key: str, templates: Iterable[Template], check: Check) -> tuple[str, ...]:
        """Texts of a list, each once."""
        return distinct(
            self.render(template, variables, f"{key}[{index}]", check)
            for index, template in enumerate(templates)
            for variables in self.scopes(template)
        )

    def scopes(self, *templates: Template) -> Sequence[Mapping[str, object]]:
        """Variables for each rendering: for each node or device where a template uses it, else once."""
        uses = {name for template in templates for name in template.uses}
        if "node" in uses:
            return [{**variables, "node": node} for variables in self._each for node in _nodes(variables)]
        return self._each if "device" in uses else (self._whole,)

    def render(
        self, template: Template, variables: Mapping[str, object], place: str, check: Check | None = None
    ) -> str:
        """One text, checked."""
        try:
            text = template.render(variables)
        except TemplateError as error:
            raise self.failed(place, str(error)) from None
        problem = _text_problem(text) or (check(text) if check is not None else None)
        if problem is not None:
            raise self.failed(place, f"rendered {quoted(text)}, {problem}")
        return text

    def failed(self, place: str, problem: str) -> RenderError:
        """A RenderError for a place in this part."""
        return RenderError(f"{self._part}.{place}: {problem}")

    def _paths(self, place: str, host: Template, container: Template) -> Iterator[tuple[str, str]]:
        for variables in self.scopes(host, container):
            there = self.render(host, variables, f"{place}.host", names.path_problem)
            # Most nodes have one path on both sides: it is rendered once.
            problem = names.container_path_problem(there) if container == host else ""
            yield (
                there,
                there
                if problem is None
                else self.render(container, variables, f"{place}.container", names.container_path_problem),
            )

    def _twice(self, place: str, container: str, first: str, second: str) -> RenderError:
        """Of two mounts at one container path the kubelet uses the first, and only logs the other."""
        return self.failed(
            place,
            f"gives {quoted(container)} in the container twice, for {quoted(first)} and {quoted(second)}",
        )


def distinct(items: Iterable[T]) -> tuple[T, ...]:
    """`items`, each once, in the order of their first appearance."""
    return tuple(dict.fromkeys(items))


def _nodes(variables: Mapping[str, object]) -> tuple[str, ...]:
    device = variables["device"]
    return device.nodes if isinstance(device, Device) else ()


def _joined(first: ContainerNode, second: ContainerNode) -> ContainerNode:
    if first == second:
        return first
    permissions = set(first.permissions) | set(second.permissions)
    return replace(
        first,
        permissions="".join(p for p in _PERMISSIONS if p in permissions),
        optional=first.optional and second.optional,
    )


def _text_problem(text: str) -> str | None:
    if "\0" in text:
        return "expected text without NUL"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "expected valid UTF-8"
    return None


class Run(Struct, frozen=True):
    """One program to run. `device`: the id of its device; empty for one that all devices share."""

    command: tuple[str, ...]
    device: str = ""


def runs(
    plan: PreStartPlan, resource: str, asked: Sequence[str], devices: Sequence[Device]
) -> tuple[Run, ...]:
    """The `pre_start` programs of a container: one for each device where the command uses it, else one.

    Raises RenderError.
    """
    renderer = Renderer("pre_start", resource, devices, tuple(in_order(distinct(asked))))
    made: list[Run] = []
    for variables in renderer.scopes(*plan.command):
        device = variables.get("device")
        command = tuple(
            renderer.render(argument, variables, f"exec[{index}]")
            for index, argument in enumerate(plan.command)
        )
        made.append(Run(command, device.id if isinstance(device, Device) else ""))
    return tuple(made)
