"""The answer to Allocate: which devices a container gets, and what it needs to use them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from plugin.core import cdi, names
from plugin.core.device import Device, natural
from plugin.core.errors import quoted
from plugin.core.inventory import Inventory
from plugin.core.plan import ResourcePlan
from plugin.core.rendering import File, Mount, Node, Renderer, RenderError, distinct

__all__ = [
    "ContainerAnswer",
    "File",
    "Mount",
    "Node",
    "Refusal",
    "RefusedError",
    "answer",
    "choose",
    "unavailable",
]

MAX_NAMED: Final = 8
"""How many ids an error names; the rest are counted."""


class Refusal(Enum):
    """Why Allocate was refused: the gRPC status code of the same name."""

    FAILED_PRECONDITION = "failed precondition"
    INVALID_ARGUMENT = "invalid argument"
    RESOURCE_EXHAUSTED = "resource exhausted"
    DEADLINE_EXCEEDED = "deadline exceeded"
    INTERNAL = "internal"


class RefusedError(Exception):
    """Allocate cannot be answered; the message names the ids or the place in the configuration."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class ContainerAnswer:
    """What one container gets."""

    env: Mapping[str, str]
    devices: tuple[Node, ...]
    mounts: tuple[Mount, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]
    files: tuple[File, ...] = ()
    """To be written first; each is mounted read-only."""


@dataclass(frozen=True, slots=True)
class Request:
    """One container's request: the ids asked for, each once, and the physical devices behind them.

    `owners`: the device's id by the id asked for.
    """

    ids: tuple[str, ...]
    devices: tuple[Device, ...]
    owners: Mapping[str, str]


def request(inventory: Inventory, plan: ResourcePlan, asked: Sequence[str]) -> Request:
    """What a container asks for by `asked`. Raises RefusedError as `choose` does."""
    devices = choose(inventory, plan, asked)
    ids = distinct(asked)
    known = ((i, inventory.find(i)) for i in ids)
    return Request(ids, devices, {i: entry.device.id for i, entry in known if entry is not None})


def choose(inventory: Inventory, plan: ResourcePlan, asked: Sequence[str]) -> tuple[Device, ...]:
    """The physical devices behind the ids of one container's request, each once, in natural order.

    Raises RefusedError for ids that are unknown or unhealthy, and for more than may be shared out.
    """
    ids = distinct(asked)
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
    """What a container gets that was given `devices` for the ids `asked`, optional things among it.

    Raises RefusedError (INTERNAL) where a template fails, naming it and its place.
    """
    allocate = plan.allocate
    ids = tuple(sorted(distinct(asked), key=natural))
    rendered = Renderer("allocate", plan.name, devices, ids)
    try:
        env = rendered.entries("env", allocate.env, names.variable_problem)
        mounts, files = rendered.mounts(allocate.mounts), rendered.files(allocate.files)
        taken = {mount.container for mount in mounts}
        for file in files:
            if file.container in taken:
                raise rendered.failed("files", f"{quoted(file.container)} in the container is a mount too")
        return ContainerAnswer(
            env=env,
            devices=rendered.nodes(allocate.devices),
            mounts=mounts,
            annotations=rendered.entries("annotations", allocate.annotations, names.annotation_problem),
            cdi=(*rendered.texts("cdi", allocate.cdi, names.cdi_problem), *cdi.names_of(plan, devices)),
            files=files,
        )
    except RenderError as error:
        raise RefusedError(Refusal.INTERNAL, f"{plan.name}: {error}") from None
