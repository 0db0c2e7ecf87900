"""The answer to Allocate: which devices a container gets, and what it needs to use them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeVar

from plugin.core import names
from plugin.core.device import Device, natural
from plugin.core.errors import quoted
from plugin.core.inventory import Inventory
from plugin.core.plan import AllocatePlan, Entry, MountEntry, NodeEntry, ResourcePlan
from plugin.core.templates import Template, TemplateError

T = TypeVar("T")

MAX_NAMED: Final = 8
"""How many ids an error names; the rest are counted."""


class Refusal(Enum):
    """Why Allocate was refused: the gRPC status code of the same name."""

    FAILED_PRECONDITION = "failed precondition"
    INVALID_ARGUMENT = "invalid argument"
    INTERNAL = "internal"


class RefusedError(Exception):
    """Allocate cannot be answered; the message names the ids or the place in the configuration."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Node:
    """A device node as a container gets it."""

    host: str
    container: str
    permissions: str


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount as a container gets it; `create` is what to make at the host path where nothing is."""

    host: str
    container: str
    read_only: bool
    create: Literal["directory", "file"] | None


@dataclass(frozen=True, slots=True)
class ContainerAnswer:
    """What one container gets."""

    env: Mapping[str, str]
    devices: tuple[Node, ...]
    mounts: tuple[Mount, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]


def choose(inventory: Inventory, plan: ResourcePlan, asked: Sequence[str]) -> tuple[Device, ...]:
    """The physical devices behind the ids of one container's request, each once, in natural order.

    Raises RefusedError for ids that are unknown or unhealthy, and for more than may be shared out.
    """
    ids = _distinct(asked)
    if not ids:
        raise RefusedError(Refusal.INVALID_ARGUMENT, f"{plan.name}: the request names no device")
    if plan.max_per_container is not None and len(ids) > plan.max_per_container:
        raise RefusedError(
            Refusal.INVALID_ARGUMENT,
            f"{plan.name}: a container may have at most {plan.max_per_container}, {len(ids)} were asked for",
        )
    devices: dict[str, Device] = {}
    faults: list[str] = []
    for advertised_id in ids:
        known = inventory.find(advertised_id)
        if known is None:
            faults.append(f"{quoted(advertised_id)} is unknown")
        elif not known.healthy:
            faults.append(f"{quoted(advertised_id)} is unhealthy ({known.reason})")
        else:
            devices[known.device.id] = known.device
    if faults:
        raise unavailable(plan, faults)
    return tuple(devices[i] for i in sorted(devices, key=natural))


def unavailable(plan: ResourcePlan, faults: Sequence[str]) -> RefusedError:
    """The refusal that names devices and what is wrong with each."""
    more = f" and {len(faults) - MAX_NAMED} more" if len(faults) > MAX_NAMED else ""
    return RefusedError(Refusal.FAILED_PRECONDITION, f"{plan.name}: {', '.join(faults[:MAX_NAMED])}{more}")


def answer(plan: ResourcePlan, asked: Sequence[str], devices: Sequence[Device]) -> ContainerAnswer:
    """What a container gets that was given `devices` for the ids `asked`.

    Raises RefusedError (INTERNAL) where a template fails, naming it and its place.
    """
    renderer = _Renderer(plan.name, tuple(sorted(_distinct(asked), key=natural)), devices)
    return renderer.answer(plan.allocate)


class _Renderer:
    """Renders the plan for one container."""

    def __init__(self, resource: str, ids: Sequence[str], devices: Sequence[Device]) -> None:
        self._resource = resource
        whole = {"devices": list(devices), "ids": list(ids)}
        self._whole: Mapping[str, object] = whole
        self._each: Sequence[Mapping[str, object]] = [{**whole, "device": device} for device in devices]

    def answer(self, plan: AllocatePlan) -> ContainerAnswer:
        return ContainerAnswer(
            env=self._entries("env", plan.env, names.variable_problem),
            devices=_distinct(self._nodes(plan.devices)),
            mounts=_distinct(self._mounts(plan.mounts)),
            annotations=self._entries("annotations", plan.annotations, names.annotation_problem),
            cdi=_distinct(self._cdi(plan.cdi)),
        )

    def _entries(
        self, key: str, entries: Iterable[Entry], check: Callable[[str], str | None]
    ) -> dict[str, str]:
        made: dict[str, str] = {}
        for entry in entries:
            place = f"allocate.{key}.{entry.name.text}"
            for variables in self._variables(entry.name, entry.value):
                name = self._render(entry.name, variables, place, check)
                value = self._render(entry.value, variables, place, _value_problem)
                if made.setdefault(name, value) != value:
                    raise self._failed(place, f"gives {quoted(name)} two values")
        return made

    def _nodes(self, entries: Iterable[NodeEntry]) -> Iterator[Node]:
        for index, entry in enumerate(entries):
            place = f"allocate.devices[{index}]"
            for variables in self._variables(entry.host, entry.container):
                host = self._render(entry.host, variables, f"{place}.host", names.path_problem)
                container = self._render(entry.container, variables, f"{place}.container", names.path_problem)
                yield Node(host, container, entry.permissions)

    def _mounts(self, entries: Iterable[MountEntry]) -> Iterator[Mount]:
        for index, entry in enumerate(entries):
            place = f"allocate.mounts[{index}]"
            for variables in self._variables(entry.host, entry.container):
                host = self._render(entry.host, variables, f"{place}.host", names.path_problem)
                container = self._render(entry.container, variables, f"{place}.container", names.path_problem)
                yield Mount(host, container, entry.read_only, entry.create)

    def _cdi(self, templates: Iterable[Template]) -> Iterator[str]:
        for index, template in enumerate(templates):
            for variables in self._variables(template):
                yield self._render(template, variables, f"allocate.cdi[{index}]", names.cdi_problem)

    def _variables(self, *templates: Template) -> Sequence[Mapping[str, object]]:
        """Once for each device where a template names `device`, else once for all of them."""
        return self._each if any("device" in t.uses for t in templates) else (self._whole,)

    def _render(
        self,
        template: Template,
        variables: Mapping[str, object],
        place: str,
        check: Callable[[str], str | None],
    ) -> str:
        try:
            text = template.render(variables)
        except TemplateError as error:
            raise self._failed(place, str(error)) from None
        problem = _value_problem(text) or check(text)
        if problem is not None:
            raise self._failed(place, f"rendered {quoted(text)}, {problem}")
        return text

    def _failed(self, place: str, problem: str) -> RefusedError:
        return RefusedError(Refusal.INTERNAL, f"{self._resource}: {place}: {problem}")


def _value_problem(text: str) -> str | None:
    if "\0" in text:
        return "expected text without NUL"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "expected valid UTF-8"
    return None


def _distinct(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))
