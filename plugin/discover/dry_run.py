"""A dry run: one look at everything, each probe asked once, Allocate answered. Nothing is written.

What Allocate would answer, and the CDI specification that would be written. Nothing is written.

What a dry run found, in the shape that scripts rely on: fields may be added, none is ever renamed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from plugin.config.plan import CdiPlan, ResourcePlan
from plugin.devices import cdi
from plugin.devices.allocation import (
    AllocationError,
    AllocationRequest,
    ContainerAllocation,
    Refusal,
    named_by_specification,
    refuse_missing,
    refusing,
    request,
)
from plugin.devices.claims import DeviceClaims, DeviceIds, claim_of
from plugin.devices.device import Device, Sharing
from plugin.devices.health import HealthTracker
from plugin.devices.identify import Identified, members
from plugin.devices.inventory import Inventory, ObservedDevice, TrackedDevice
from plugin.devices.rendering import Mount, RenderError, runs
from plugin.discovery.host import HostRoot
from plugin.names import natural
from plugin.serving.allocate import allocate_on_host
from plugin.serving.blocking import Offload, ProbeRunner, StuckError
from plugin.serving.probes import Question, questions
from plugin.serving.scan import DeviceScanner, ScanError, ScanResult, SharedSources
from plugin.serving.written_files import missing_nodes, present_edits
from runtime.clock import Instant
from runtime.config_file import quoted
from runtime.text import visible


class DeviceDocument(msgspec.Struct, frozen=True):
    """One physical device. `ids`: what it is advertised by; `reason` is empty while it is healthy."""

    id: str
    ids: tuple[str, ...]
    name: str
    path: str
    nodes: tuple[str, ...]
    numa_nodes: tuple[int, ...]
    attributes: dict[str, str]
    health: str
    """`Healthy` or `Unhealthy`, as the kubelet would be told."""
    reason: str


class LeftOut(msgspec.Struct, frozen=True):
    """Something that was found and is not advertised: its path or name, and why."""

    device: str
    reason: str


class Conflict(msgspec.Struct, frozen=True):
    """A device, or an advertised id, that another resource has."""

    device: str
    resource: str


class MountAnswer(msgspec.Struct, frozen=True):
    """A mount, as the device plugin API has it."""

    container_path: str
    host_path: str
    read_only: bool


class NodeAnswer(msgspec.Struct, frozen=True):
    """A device node, as the device plugin API has it."""

    container_path: str
    host_path: str
    permissions: str


class CdiAnswer(msgspec.Struct, frozen=True):
    """A CDI name, as the device plugin API has it."""

    name: str


class Answer(msgspec.Struct, frozen=True):
    """One ContainerAllocateResponse, field by field."""

    envs: dict[str, str]
    mounts: tuple[MountAnswer, ...]
    devices: tuple[NodeAnswer, ...]
    annotations: dict[str, str]
    cdi_devices: tuple[CdiAnswer, ...]


class Refused(msgspec.Struct, frozen=True):
    """What Allocate would refuse with: a gRPC code's name and its message."""

    code: str
    message: str


class Made(msgspec.Struct, frozen=True):
    """What would be made where nothing is: a `directory` or a `file`."""

    path: str
    kind: str


class Written(msgspec.Struct, frozen=True):
    """A file that would be written; `mode` in octal digits."""

    path: str
    mode: str
    content: str


class Allocation(msgspec.Struct, frozen=True):
    """What one container would get that is given `ids`: `answer`, or `refused`.

    `dropped`: optional paths that the host does not have. `pre_start`: the programs that would be run.
    """

    ids: tuple[str, ...]
    answer: Answer | None = None
    refused: Refused | None = None
    dropped: tuple[str, ...] = ()
    makes: tuple[Made, ...] = ()
    writes: tuple[Written, ...] = ()
    pre_start: tuple[tuple[str, ...], ...] = ()


class Specification(msgspec.Struct, frozen=True):
    """The CDI specification that would be written; `content` None: none, for it would have no device.

    `left_out`: devices that cannot be in it.
    """

    path: str
    content: dict[str, object] | None
    left_out: tuple[LeftOut, ...] = ()


class ResourceDocument(msgspec.Struct, frozen=True):
    """One resource. `family`: the template of its name, where devices name it.

    `problem`: why nothing could be found out; `notes`: why there may be less than one would think.
    `conflicts`: devices that an earlier resource keeps; `clashes`: ids that another one advertises too.
    """

    name: str
    family: str | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()
    registers: bool = False
    """Whether it would be registered now; else it waits for devices."""
    devices: tuple[DeviceDocument, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    clashes: tuple[Conflict, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    cdi: Specification | None = None


class DiscoverDocument(msgspec.Struct, frozen=True):
    """A dry run."""

    version: int
    host_root: str
    resources: tuple[ResourceDocument, ...]


LOOK_LIMIT: Final = 20.0
"""Seconds for one look at the host, as when it is served."""

T = TypeVar("T")

Asked = Mapping[str, Sequence[Sequence[str]]]
"""Requests for containers, by resource."""


@dataclass(slots=True)
class Shared:
    """What resources take from each other."""

    host: HostRoot
    asked: Asked
    claims: DeviceClaims = field(default_factory=DeviceClaims)
    device_ids: DeviceIds = field(default_factory=DeviceIds)
    offload: Offload = field(default_factory=Offload)

    async def look(self, look: Callable[[], T]) -> T:
        """`look()`, which may block. Raises what it raises, and StuckError."""
        return await self.offload.run(look, limit=LOOK_LIMIT)


async def allocations(
    plan: ResourcePlan, scanner: DeviceScanner, inventory: Inventory, shared: Shared
) -> tuple[Allocation, ...]:
    """What Allocate would answer to what is asked for, or to the first healthy id."""
    wanted = shared.asked.get(plan.name)
    if wanted is None:
        first = next((entry.id for entry in inventory.advertised() if entry.known.healthy), None)
        wanted = [] if first is None else [[first]]
    return tuple([await _allocation(plan, scanner, inventory, ids, shared) for ids in wanted])


async def _allocation(
    plan: ResourcePlan, scanner: DeviceScanner, inventory: Inventory, ids: Sequence[str], shared: Shared
) -> Allocation:
    try:
        asked = request(inventory, plan, ids)
        return await shared.look(lambda: _given(plan, scanner, shared.host, asked))
    except AllocationError as error:
        return Allocation(tuple(ids), refused=Refused(error.refusal.name, visible(str(error), 2048)))
    except StuckError as error:
        reason = f"{plan.name}: the host's files cannot be looked at: {error}"
        return Allocation(tuple(ids), refused=Refused(Refusal.FAILED_PRECONDITION.name, reason))


def _given(
    plan: ResourcePlan, scanner: DeviceScanner, host: HostRoot, asked: AllocationRequest
) -> Allocation:
    """What one container would get. Blocking. Raises AllocationError."""
    given = allocate_on_host(plan, scanner, host, [asked])
    devices = [given.devices[device.id] for device in asked.devices]
    (made,), (dropped,) = given.allocations, given.dropped
    mounts = made.mounts
    if plan.cdi is not None:
        with refusing(plan, "cdi"):
            entries, common = _entries(plan, plan.cdi, devices, host, None)
            edits = (common, *entries.values())
            refuse_missing(plan, missing_nodes(host, (node for one in edits for node in one.nodes)))
            listed = {cdi.qualified(plan.cdi.kind, name) for name in cdi.listed(entries, common)}
            made = named_by_specification(plan, made, frozenset(listed))
            mounts = (*mounts, *(mount for one in edits for mount in one.mounts))
    with refusing(plan, "pre_start"):
        commands = () if plan.pre_start is None else runs(plan.pre_start, plan.name, asked.ids, devices)
    with refusing(plan, "allocate.mounts"):
        makes = tuple(_made(host, mounts))
    return Allocation(
        ids=asked.ids,
        answer=_answer(made),
        dropped=dropped,
        makes=makes,
        writes=tuple(Written(f.host, f"{f.mode:04o}", f.content) for f in made.files),
        pre_start=tuple(run.command for run in commands),
    )


def _made(host: HostRoot, mounts: Sequence[Mount]) -> Iterator[Made]:
    for path, kind in {mount.host: mount.create for mount in mounts if mount.create}.items():
        if not host.exists(path):
            yield Made(path, kind)


def _answer(made: ContainerAllocation) -> Answer:
    """Field by field what the endpoint would send."""
    return Answer(
        envs=dict(made.env),
        mounts=(
            *(MountAnswer(m.container, m.host, m.read_only) for m in made.mounts),
            *(MountAnswer(f.container, f.host, read_only=True) for f in made.files),
        ),
        devices=tuple(NodeAnswer(d.container, d.host, d.permissions) for d in made.devices),
        annotations=dict(made.annotations),
        cdi_devices=tuple(CdiAnswer(name) for name in made.cdi),
    )


async def specification(
    plan: ResourcePlan, devices: Sequence[Device], shared: Shared
) -> Specification | None:
    """The CDI specification that would be written; None where none is asked for."""
    own = plan.cdi
    if own is None:
        return None
    path = f"{own.directory.rstrip('/')}/{cdi.file_name(own.kind, plan.name)}"
    problems: list[LeftOut] = []

    def made() -> bytes | None:
        entries, common = _entries(plan, own, devices, shared.host, problems)
        return cdi.document(own.kind, entries, common)

    try:
        content = await shared.look(made)
    except (OSError, StuckError, RenderError) as error:
        return Specification(path, None, (LeftOut(path, str(error)),))
    decoded = None if content is None else msgspec.json.decode(content, type=dict[str, object])
    return Specification(path, decoded, tuple(problems))


def _entries(
    plan: ResourcePlan,
    own: CdiPlan,
    devices: Sequence[Device],
    host: HostRoot,
    problems: list[LeftOut] | None,
) -> tuple[dict[str, cdi.Edits], cdi.Edits]:
    """The specification's edits by name, and the common ones, as far as the host has what is optional.

    What cannot be in it goes to `problems`. Raises OSError, RenderError.
    """
    entries: dict[str, cdi.Edits] = {}
    for device in sorted(devices, key=lambda d: natural(d.id)):
        try:
            name = _own_name(plan, own, device, entries)
            entries[name] = present_edits(host, cdi.edits_of(own, plan.name, device))
        except RenderError as error:
            if problems is None:
                raise
            problems.append(LeftOut(device.id, str(error)))
    return entries, present_edits(host, cdi.common_edits(own, plan.name))


def _own_name(plan: ResourcePlan, own: CdiPlan, device: Device, taken: Collection[str]) -> str:
    name = cdi.name_of(own, plan.name, device)
    if name in taken:
        raise RenderError(f"cdi.name: {quoted(name)} is that of another device")
    return name


REQUESTS: Final = 16
"""Requests of HTTP probes at the same time."""

_NOW: Final = Instant(0.0, 0.0)


async def dry_run(
    plans: Sequence[ResourcePlan], host: HostRoot, asked: Asked
) -> tuple[ResourceDocument, ...]:
    """What these plans would come to on `host`; `asked`: what Allocate is asked for, by resource.

    Without a request a resource is asked for its first healthy id.
    """
    shared = Shared(host, asked)
    return tuple([made for plan in plans async for made in _resources(plan, shared)])


async def _resources(plan: ResourcePlan, shared: Shared) -> AsyncIterator[ResourceDocument]:
    sources = SharedSources(plan, shared.host)
    if plan.family is None:
        yield await _resource(plan, sources, shared, None)
        return
    try:
        every = await shared.look(sources.scan)
    except (ScanError, StuckError) as error:
        yield ResourceDocument(plan.name, plan.name, str(error))
        return
    named = members(plan, (found for findings in every for found in findings.found))
    left_out = tuple(LeftOut(device, reason) for device, reason in named.left_out)
    if left_out or not named.plans:
        notes = tuple(dict.fromkeys(note for findings in every for note in findings.notes))
        yield ResourceDocument(plan.name, plan.name, notes=notes, left_out=left_out)
    for name in sorted(named.plans, key=natural):
        # What the family found is theirs: nothing is looked for, and no program run, a second time.
        yield await _resource(named.plans[name], sources, shared, float("-inf"))


async def _resource(
    plan: ResourcePlan, sources: SharedSources, shared: Shared, since: float | None
) -> ResourceDocument:
    family = None if plan.member_of is None else plan.member_of.text
    scanner = DeviceScanner(plan, shared.host, sources)
    try:
        survey = await shared.look(lambda: scanner.scan(since))
    except (ScanError, StuckError) as error:
        return ResourceDocument(plan.name, family, str(error))
    conflicts = _conflicts(plan, survey, shared.claims)
    items = [item for item in survey.devices if item.device.id not in conflicts]
    reasons = await _health(plan, items, shared.host)
    inventory = Inventory(Sharing.of(plan))
    inventory.survey((ObservedDevice(item.device, reasons[item.device.id]) for item in items), _NOW)
    advertised = inventory.advertised()
    clashes = shared.device_ids.advertise(plan.name, [entry.id for entry in advertised])
    devices = [known.device for known in inventory.devices.values()]
    ids: dict[str, list[str]] = {}
    for entry in advertised:
        ids.setdefault(entry.known.device.id, []).append(entry.id)
    return ResourceDocument(
        name=plan.name,
        family=family,
        notes=survey.notes,
        registers=bool(advertised) or plan.advertise_empty,
        devices=tuple(_device(inventory.devices[i], ids[i]) for i in sorted(ids, key=natural)),
        left_out=tuple(LeftOut(*one) for one in (*survey.left_out, *inventory.left_out.items())),
        conflicts=_sorted(conflicts),
        clashes=_sorted(clashes),
        allocations=await allocations(plan, scanner, inventory, shared),
        cdi=await specification(plan, devices, shared),
    )


def _sorted(others: Mapping[str, str]) -> tuple[Conflict, ...]:
    return tuple(Conflict(one, others[one]) for one in sorted(others, key=natural))


def _conflicts(plan: ResourcePlan, survey: ScanResult, claims: DeviceClaims) -> dict[str, str]:
    """Devices that an earlier resource keeps, and which one."""
    if not plan.exclusive:
        return {}
    own = {item.device.id: claim_of(item.device.found) for item in survey.devices if item.device.found}
    others = claims.claim(plan.name, {*own.values()} - {""}).refused
    return {device_id: others[claim] for device_id, claim in own.items() if claim in others}


def _device(known: TrackedDevice, ids: Sequence[str]) -> DeviceDocument:
    device = known.device
    return DeviceDocument(
        id=device.id,
        ids=tuple(ids),
        name=device.name,
        path=device.path,
        nodes=device.nodes,
        numa_nodes=device.numa_nodes,
        attributes=dict(device.attrs),
        health="Healthy" if known.healthy else "Unhealthy",
        reason=known.reason,
    )


async def _health(plan: ResourcePlan, items: Sequence[Identified], host: HostRoot) -> dict[str, str]:
    """Why each device is unhealthy, empty where it is not: every probe is asked once."""
    health = HealthTracker(plan.probes)
    there = {item.device.id: item.device for item in items if not item.absent}
    health.survey(there, 0.0)
    every = [question for device in there.values() for question in questions(plan.probes, device, host)]

    def answered(question: Question, reason: str) -> None:
        health.answer(question.device, question.probe, reason, 0.0)

    await ProbeRunner().run([question for question in every if question.ask is not None], answered)
    await _request([question for question in every if question.ask is None], answered)
    return {item.device.id: item.absent or health.reason(item.device.id) or "" for item in items}


async def _request(asked: Sequence[Question], answered: Callable[[Question, str], None]) -> None:
    if not asked:
        return
    # Imported where it is asked for: aiohttp takes a while.
    from plugin.serving.prober import get  # noqa: PLC0415

    room = asyncio.Semaphore(REQUESTS)

    async def one(question: Question) -> None:
        async with room:
            answered(question, await get(question))

    async with asyncio.TaskGroup() as group:
        for question in asked:
            group.create_task(one(question))
