"""A dry run: one look at everything, each probe asked once, Allocate answered. Nothing is written."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from plugin.core.claims import Claims, claim_of
from plugin.core.device import natural
from plugin.core.families import members
from plugin.core.health import Health
from plugin.core.identify import Identified
from plugin.core.inventory import Inventory
from plugin.core.known import Known, Moment, Sighting
from plugin.core.plan import ResourcePlan
from plugin.core.sharing import Sharing
from plugin.discover.document import (
    Conflict,
    DeviceDocument,
    LeftOut,
    ResourceDocument,
)
from plugin.discover.given import Asked, Shared, allocations, specification
from plugin.discovery.asking import Asking
from plugin.discovery.host import HostRoot
from plugin.discovery.offload import StuckError
from plugin.discovery.probes import Question, questions
from plugin.discovery.survey import Sources, Survey, SurveyError, Surveyor

REQUESTS: Final = 16
"""Requests of HTTP probes at the same time."""

_NOW: Final = Moment(0.0, 0.0)


async def dry_run(
    plans: Sequence[ResourcePlan], host: HostRoot, asked: Asked
) -> tuple[ResourceDocument, ...]:
    """What these plans would come to on `host`; `asked`: what Allocate is asked for, by resource.

    Without a request a resource is asked for its first healthy id.
    """
    shared = Shared(host, asked)
    return tuple([made for plan in plans async for made in _resources(plan, shared)])


async def _resources(plan: ResourcePlan, shared: Shared) -> AsyncIterator[ResourceDocument]:
    sources = Sources(plan, shared.host)
    if plan.family is None:
        yield await _resource(plan, sources, shared, None)
        return
    try:
        every = await shared.look(sources.discover)
    except (SurveyError, StuckError) as error:
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
    plan: ResourcePlan, sources: Sources, shared: Shared, since: float | None
) -> ResourceDocument:
    family = None if plan.member_of is None else plan.member_of.text
    surveyor = Surveyor(plan, shared.host, sources)
    try:
        survey = await shared.look(lambda: surveyor.look(since))
    except (SurveyError, StuckError) as error:
        return ResourceDocument(plan.name, family, str(error))
    conflicts = _conflicts(plan, survey, shared.claims)
    items = [item for item in survey.devices if item.device.id not in conflicts]
    reasons = await _health(plan, items, shared.host)
    inventory = Inventory(Sharing.of(plan))
    inventory.survey((Sighting(item.device, reasons[item.device.id]) for item in items), _NOW)
    advertised = inventory.advertised()
    clashes = shared.identities.claim(plan.name, [entry.id for entry in advertised])
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
        allocations=await allocations(plan, surveyor, inventory, shared),
        cdi=await specification(plan, devices, shared),
    )


def _sorted(others: Mapping[str, str]) -> tuple[Conflict, ...]:
    return tuple(Conflict(one, others[one]) for one in sorted(others, key=natural))


def _conflicts(plan: ResourcePlan, survey: Survey, claims: Claims) -> dict[str, str]:
    """Devices that an earlier resource keeps, and which one."""
    if not plan.exclusive:
        return {}
    own = {item.device.id: claim_of(item.device.found) for item in survey.devices if item.device.found}
    others = claims.claim(plan.name, {*own.values()} - {""}).refused
    return {device_id: others[claim] for device_id, claim in own.items() if claim in others}


def _device(known: Known, ids: Sequence[str]) -> DeviceDocument:
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
    health = Health(plan.probes)
    there = {item.device.id: item.device for item in items if not item.absent}
    health.survey(there, 0.0)
    every = [question for device in there.values() for question in questions(plan.probes, device, host)]

    def answered(question: Question, reason: str) -> None:
        health.answer(question.device, question.probe, reason, 0.0)

    await Asking().ask([question for question in every if question.ask is not None], answered)
    await _request([question for question in every if question.ask is None], answered)
    return {item.device.id: item.absent or health.reason(item.device.id) or "" for item in items}


async def _request(asked: Sequence[Question], answered: Callable[[Question, str], None]) -> None:
    if not asked:
        return
    # Imported where it is asked for: aiohttp takes a while.
    from plugin.services.http_probe import get  # noqa: PLC0415

    room = asyncio.Semaphore(REQUESTS)

    async def one(question: Question) -> None:
        async with room:
            answered(question, await get(question))

    async with asyncio.TaskGroup() as group:
        for question in asked:
            group.create_task(one(question))
