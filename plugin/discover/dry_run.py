"""A dry run: one scan of the host, one run of each probe, and the answer to Allocate. It writes nothing.

Scripts rely on the shape of the documents: fields may be added, none is renamed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
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
from plugin.devices.claims import DeviceClaims, NamesInUse, claim_of
from plugin.devices.device import Device
from plugin.devices.health import HealthTracker
from plugin.devices.identify import members, unmatched
from plugin.devices.inventory import Inventory, ObservedDevice, TrackedDevice
from plugin.devices.rendering import Mount, RenderError, runs
from plugin.discovery.host import HostRoot
from plugin.discovery.source import MOST_NOT_SELECTED, Findings
from plugin.names import in_order, natural
from plugin.serving.allocate import allocate_on_host
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.probes import ProbeRunner, Question, questions
from plugin.serving.scan import DeviceScanner, ScanError, ScanResult, SharedSources
from plugin.serving.written_files import missing_nodes, present_edits
from runtime.clock import Instant
from runtime.text import quoted, visible


class DiscoveredDevice(msgspec.Struct, frozen=True):
    """One physical device. `ids`: its advertised ids; `reason` is empty while it is healthy."""

    id: str
    ids: tuple[str, ...]
    name: str
    path: str
    nodes: tuple[str, ...]
    numa_nodes: tuple[int, ...]
    attributes: dict[str, str]
    health: str
    """`Healthy` or `Unhealthy`, as for the kubelet."""
    reason: str


class LeftOut(msgspec.Struct, frozen=True):
    """Something that was found and is not advertised, by its path or name."""

    device: str
    reason: str


class Conflict(msgspec.Struct, frozen=True):
    """A device, or an advertised id, of another resource."""

    device: str
    resource: str


class MountAnswer(msgspec.Struct, frozen=True):
    """A mount, as in the device plugin API."""

    container_path: str
    host_path: str
    read_only: bool


class NodeAnswer(msgspec.Struct, frozen=True):
    """A device node, as in the device plugin API."""

    container_path: str
    host_path: str
    permissions: str


class CdiAnswer(msgspec.Struct, frozen=True):
    """A CDI name, as in the device plugin API."""

    name: str


class AllocateAnswer(msgspec.Struct, frozen=True):
    """One ContainerAllocateResponse, field by field."""

    envs: dict[str, str]
    mounts: tuple[MountAnswer, ...]
    devices: tuple[NodeAnswer, ...]
    annotations: dict[str, str]
    cdi_devices: tuple[CdiAnswer, ...]


class RefusedAllocation(msgspec.Struct, frozen=True):
    """The gRPC status code and message of a refusal."""

    code: str
    message: str


class CreatedPath(msgspec.Struct, frozen=True):
    """A missing `directory` or `file` that Allocate would create."""

    path: str
    kind: str


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that Allocate would write; `mode` in octal digits."""

    path: str
    mode: str
    content: str


class DryAllocation(msgspec.Struct, frozen=True):
    """What a container with `ids` would get: `answer`, or `refused`.

    `dropped`: missing optional paths. `pre_start`: programs that would run.
    """

    ids: tuple[str, ...]
    answer: AllocateAnswer | None = None
    refused: RefusedAllocation | None = None
    dropped: tuple[str, ...] = ()
    makes: tuple[CreatedPath, ...] = ()
    writes: tuple[WrittenFile, ...] = ()
    pre_start: tuple[tuple[str, ...], ...] = ()


class DryRunSpecification(msgspec.Struct, frozen=True):
    """The CDI specification that would be written; `content` None: none, as it would have no device.

    `left_out`: devices that cannot be in it.
    """

    path: str
    content: dict[str, object] | None
    left_out: tuple[LeftOut, ...] = ()


class DiscoveredResource(msgspec.Struct, frozen=True):
    """One resource. `family`: the template of its name, if devices name it.

    `problem`: why the scan failed. `notes`: why there may be fewer devices than expected. `not_offered`:
    what sources and `match` exclude; `not_listed` counts more. `conflicts`: devices of an earlier resource;
    `clashes`: ids that another resource advertises too.
    """

    name: str
    family: str | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()
    registers: bool = False
    """Whether it would register now, rather than wait for devices."""
    devices: tuple[DiscoveredDevice, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    not_offered: tuple[LeftOut, ...] = ()
    not_listed: int = 0
    conflicts: tuple[Conflict, ...] = ()
    clashes: tuple[Conflict, ...] = ()
    allocations: tuple[DryAllocation, ...] = ()
    cdi: DryRunSpecification | None = None


class DryRunDocument(msgspec.Struct, frozen=True):
    """The result of a dry run."""

    version: int
    host_root: str
    resources: tuple[DiscoveredResource, ...]


SCAN_LIMIT: Final = 20.0
"""Seconds for one scan, as when serving."""
REQUESTS: Final = 16
"""Concurrent requests of HTTP probes."""
_NOW: Final = Instant(0.0, 0.0)

T = TypeVar("T")

Requests = Mapping[str, Sequence[Sequence[str]]]
"""The ids that each container asks for, by resource."""


async def dry_run(
    plans: Sequence[ResourcePlan], host: HostRoot, requests: Requests
) -> tuple[DiscoveredResource, ...]:
    """What these plans would advertise on `host`, and how Allocate would answer `requests`.

    A resource without a request gets one for its first healthy id.
    """
    run = _DryRun(host, requests)
    return tuple([resource for plan in plans async for resource in run.resources(plan)])


class _DryRun:
    """One dry run: the claims that resources share, and the calls that may block."""

    def __init__(self, host: HostRoot, requests: Requests) -> None:
        self._host = host
        self._requests = requests
        self._claims = DeviceClaims()
        self._ids = NamesInUse()
        self._offload = Offload()

    async def _call(self, call: Callable[[], T]) -> T:
        return await self._offload.run(call, limit=SCAN_LIMIT)

    async def resources(self, plan: ResourcePlan) -> AsyncIterator[DiscoveredResource]:
        """The resource of a plan, or those of a family."""
        sources = SharedSources(plan, self._host)
        if plan.family is None:
            yield await self._resource(plan, sources, None)
            return
        try:
            every = await self._call(sources.scan)
        except (ScanError, StuckError) as error:
            yield DiscoveredResource(plan.name, plan.name, str(error))
            return
        others, more = _not_offered(plan, every)
        named = members(plan, (found for findings in every for found in findings.found))
        left_out = tuple(LeftOut(device, reason) for device, reason in named.left_out)
        if left_out or others or not named.plans:
            notes = tuple(dict.fromkeys(note for findings in every for note in findings.notes))
            yield DiscoveredResource(
                plan.name, plan.name, notes=notes, left_out=left_out, not_offered=others, not_listed=more
            )
        for name in in_order(named.plans):
            # The members use the scan of the family: no source scans, and no program runs, twice.
            yield await self._resource(named.plans[name], sources, float("-inf"))

    async def _resource(
        self, plan: ResourcePlan, sources: SharedSources, not_before: float | None
    ) -> DiscoveredResource:
        family = None if plan.member_of is None else plan.member_of.text
        scanner = DeviceScanner(plan, self._host, sources)
        try:
            scan = await self._call(lambda: scanner.scan(not_before))
            every = sources.scan(float("-inf"))
        except (ScanError, StuckError) as error:
            return DiscoveredResource(plan.name, family, str(error))
        conflicts = self._conflicts(plan, scan)
        devices = [device for device in scan.devices if device.id not in conflicts]
        reasons = await _health(plan, devices, self._host)
        inventory = Inventory(plan.sharing)
        inventory.survey((ObservedDevice(device, reasons[device.id]) for device in devices), _NOW)
        advertised = inventory.advertised()
        others, more = _not_offered(plan, every) if family is None else ((), 0)
        clashes = self._ids.replace(plan.name, [entry.id for entry in advertised])
        ids: dict[str, list[str]] = {}
        for entry in advertised:
            ids.setdefault(entry.known.device.id, []).append(entry.id)
        return DiscoveredResource(
            name=plan.name,
            family=family,
            notes=scan.notes,
            registers=bool(advertised) or plan.advertise_empty,
            devices=tuple(_device(inventory.devices[i], ids[i]) for i in in_order(ids)),
            left_out=tuple(LeftOut(*one) for one in (*scan.left_out, *inventory.left_out.items())),
            not_offered=others,
            not_listed=more,
            conflicts=_sorted(conflicts),
            clashes=_sorted(clashes),
            allocations=await self._allocations(plan, scanner, inventory),
            cdi=await self._specification(plan, [known.device for known in inventory.devices.values()]),
        )

    def _conflicts(self, plan: ResourcePlan, scan: ScanResult) -> dict[str, str]:
        """The earlier resource of each device that it keeps."""
        if not plan.exclusive:
            return {}
        own = {device.id: claim_of(device.found) for device in scan.devices if device.found}
        others = self._claims.claim(plan.name, {*own.values()} - {""}).refused
        return {device_id: others[claim] for device_id, claim in own.items() if claim in others}

    async def _allocations(
        self, plan: ResourcePlan, scanner: DeviceScanner, inventory: Inventory
    ) -> tuple[DryAllocation, ...]:
        wanted = self._requests.get(plan.name)
        if wanted is None:
            first = next((entry.id for entry in inventory.advertised() if entry.known.healthy), None)
            wanted = [] if first is None else [[first]]
        return tuple([await self._allocation(plan, scanner, inventory, ids) for ids in wanted])

    async def _allocation(
        self, plan: ResourcePlan, scanner: DeviceScanner, inventory: Inventory, ids: Sequence[str]
    ) -> DryAllocation:
        try:
            asked = request(inventory, plan, ids)
            return await self._call(lambda: _allocate(plan, scanner, self._host, asked))
        except AllocationError as error:
            refused = RefusedAllocation(error.refusal.name, visible(str(error), 2048))
        except StuckError as error:
            reason = f"{plan.name}: the host's files cannot be read: {error}"
            refused = RefusedAllocation(Refusal.FAILED_PRECONDITION.name, reason)
        return DryAllocation(tuple(ids), refused=refused)

    async def _specification(
        self, plan: ResourcePlan, devices: Sequence[Device]
    ) -> DryRunSpecification | None:
        own = plan.cdi
        if own is None:
            return None
        path = f"{own.directory.rstrip('/')}/{cdi.file_name(own.kind, plan.name)}"
        problems: list[LeftOut] = []

        def made() -> bytes | None:
            entries, common = _entries(plan, own, devices, self._host, problems)
            return cdi.document(own.kind, entries, common)

        try:
            content = await self._call(made)
        except (OSError, StuckError, RenderError) as error:
            return DryRunSpecification(path, None, (LeftOut(path, str(error)),))
        decoded = None if content is None else msgspec.json.decode(content, type=dict[str, object])
        return DryRunSpecification(path, decoded, tuple(problems))


def _allocate(
    plan: ResourcePlan, scanner: DeviceScanner, host: HostRoot, asked: AllocationRequest
) -> DryAllocation:
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
        makes = tuple(_created(host, mounts))
    return DryAllocation(
        ids=asked.ids,
        answer=_answer(made),
        dropped=dropped,
        makes=makes,
        writes=tuple(WrittenFile(f.host, f"{f.mode:04o}", f.content) for f in made.files),
        pre_start=tuple(run.command for run in commands),
    )


def _created(host: HostRoot, mounts: Sequence[Mount]) -> Iterator[CreatedPath]:
    for path, kind in {mount.host: mount.create for mount in mounts if mount.create}.items():
        if not host.exists(path):
            yield CreatedPath(path, kind)


def _answer(made: ContainerAllocation) -> AllocateAnswer:
    return AllocateAnswer(
        envs=dict(made.env),
        mounts=(
            *(MountAnswer(m.container, m.host, m.read_only) for m in made.mounts),
            *(MountAnswer(f.container, f.host, read_only=True) for f in made.files),
        ),
        devices=tuple(NodeAnswer(d.container, d.host, d.permissions) for d in made.devices),
        annotations=dict(made.annotations),
        cdi_devices=tuple(CdiAnswer(name) for name in made.cdi),
    )


def _entries(
    plan: ResourcePlan,
    own: CdiPlan,
    devices: Sequence[Device],
    host: HostRoot,
    problems: list[LeftOut] | None,
) -> tuple[dict[str, cdi.Edits], cdi.Edits]:
    """(edits by name, common edits) of the specification, without missing optional nodes and mounts.

    Devices that cannot be in it go to `problems`; None: the first one raises. Raises OSError, RenderError.
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


def _not_offered(plan: ResourcePlan, every: Sequence[Findings]) -> tuple[tuple[LeftOut, ...], int]:
    """What neither a source nor `match` selects, with the reasons, and how many more there are."""
    found = [item for findings in every for item in findings.found]
    known = {name for item in found for name in (item.name, item.path)}
    not_selected = [findings.not_selected for findings in every]
    pairs = dict.fromkeys(
        (name, str(reason)) for one in not_selected for name, reason in one.first if name not in known
    )
    excluded = [(item.path or item.name, "match is false") for item in unmatched(plan, found)]
    rest = max(0, len(excluded) - MOST_NOT_SELECTED)
    listed = sorted((*pairs, *excluded[:MOST_NOT_SELECTED]), key=lambda pair: natural(pair[0]))
    return tuple(LeftOut(*pair) for pair in listed), rest + sum(one.more for one in not_selected)


def _sorted(others: Mapping[str, str]) -> tuple[Conflict, ...]:
    return tuple(Conflict(one, others[one]) for one in in_order(others))


def _device(known: TrackedDevice, ids: Sequence[str]) -> DiscoveredDevice:
    device = known.device
    return DiscoveredDevice(
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


async def _health(plan: ResourcePlan, devices: Sequence[Device], host: HostRoot) -> dict[str, str]:
    """Why each device is unhealthy, by one run of every probe; empty for a healthy device."""
    health = HealthTracker(plan.probes)
    there = {device.id: device for device in devices if not device.absent}
    health.survey(there, 0.0)
    every = [question for device in there.values() for question in questions(plan.probes, device, host)]

    def answered(question: Question, reason: str) -> None:
        health.answer(question.device, question.probe, reason, 0.0)

    await ProbeRunner().run([question for question in every if question.ask is not None], answered)
    await _request([question for question in every if question.ask is None], answered)
    return {device.id: device.absent or health.reason(device.id) or "" for device in devices}


async def _request(probes: Sequence[Question], answered: Callable[[Question, str], None]) -> None:
    if not probes:
        return
    # Imported only for HTTP probes: aiohttp takes a while.
    from plugin.serving.prober import get  # noqa: PLC0415

    limit = asyncio.Semaphore(REQUESTS)

    async def one(question: Question) -> None:
        async with limit:
            answered(question, await get(question))

    async with asyncio.TaskGroup() as group:
        for question in probes:
            group.create_task(one(question))
