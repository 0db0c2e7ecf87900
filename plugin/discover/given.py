"""What Allocate would answer, and the CDI specification that would be written. Nothing is written."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from daemon.text import visible
from plugin.core import cdi
from plugin.core.allocation import ContainerAnswer, Refusal, RefusedError, Request, request
from plugin.core.claims import Claims
from plugin.core.device import Device, natural
from plugin.core.errors import quoted
from plugin.core.identities import Identities
from plugin.core.inventory import Inventory
from plugin.core.plan import CdiPlan, ResourcePlan
from plugin.core.prestart import runs
from plugin.core.rendering import Mount, RenderError
from plugin.discover.document import (
    Allocation,
    Answer,
    CdiAnswer,
    LeftOut,
    Made,
    MountAnswer,
    NodeAnswer,
    Refused,
    Specification,
    Written,
)
from plugin.discovery.giving import answers, fit_edits, missing_edits, named_by, refuse_missing, refused
from plugin.discovery.host import HostRoot
from plugin.discovery.offload import Offload, StuckError
from plugin.discovery.survey import Surveyor

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
    claims: Claims = field(default_factory=Claims)
    identities: Identities = field(default_factory=Identities)
    offload: Offload = field(default_factory=Offload)

    async def look(self, look: Callable[[], T]) -> T:
        """`look()`, which may block. Raises what it raises, and StuckError."""
        return await self.offload.run(look, limit=LOOK_LIMIT)


async def allocations(
    plan: ResourcePlan, surveyor: Surveyor, inventory: Inventory, shared: Shared
) -> tuple[Allocation, ...]:
    """What Allocate would answer to what is asked for, or to the first healthy id."""
    wanted = shared.asked.get(plan.name)
    if wanted is None:
        first = next((entry.id for entry in inventory.advertised() if entry.known.healthy), None)
        wanted = [] if first is None else [[first]]
    return tuple([await _allocation(plan, surveyor, inventory, ids, shared) for ids in wanted])


async def _allocation(
    plan: ResourcePlan, surveyor: Surveyor, inventory: Inventory, ids: Sequence[str], shared: Shared
) -> Allocation:
    try:
        asked = request(inventory, plan, ids)
        return await shared.look(lambda: _given(plan, surveyor, shared.host, asked))
    except RefusedError as error:
        return Allocation(tuple(ids), refused=Refused(error.refusal.name, visible(str(error), 2048)))
    except StuckError as error:
        reason = f"{plan.name}: the host's files cannot be looked at: {error}"
        return Allocation(tuple(ids), refused=Refused(Refusal.FAILED_PRECONDITION.name, reason))


def _given(plan: ResourcePlan, surveyor: Surveyor, host: HostRoot, asked: Request) -> Allocation:
    """What one container would get. Blocking. Raises RefusedError."""
    given = answers(plan, surveyor, host, [asked])
    devices = [given.devices[device.id] for device in asked.devices]
    (made,), (dropped,) = given.answers, given.dropped
    mounts = made.mounts
    if plan.cdi is not None:
        with refused(plan, "cdi"):
            entries, common = _entries(plan, plan.cdi, devices, host, None)
            edits = (common, *entries.values())
            refuse_missing(plan, (path for one in edits for path in missing_edits(host, one)))
            listed = {cdi.qualified(plan.cdi.kind, name) for name in cdi.listed(entries, common)}
            made = named_by(plan, made, frozenset(listed))
            mounts = (*mounts, *(mount for one in edits for mount in one.mounts))
    with refused(plan, "pre_start"):
        commands = () if plan.pre_start is None else runs(plan.pre_start, plan.name, asked.ids, devices)
    with refused(plan, "allocate.mounts"):
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


def _answer(made: ContainerAnswer) -> Answer:
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
            entries[name] = fit_edits(host, cdi.edits_of(own, plan.name, device))
        except RenderError as error:
            if problems is None:
                raise
            problems.append(LeftOut(device.id, str(error)))
    return entries, fit_edits(host, cdi.common_edits(own, plan.name))


def _own_name(plan: ResourcePlan, own: CdiPlan, device: Device, taken: Collection[str]) -> str:
    name = cdi.name_of(own, plan.name, device)
    if name in taken:
        raise RenderError(f"cdi.name: {quoted(name)} is that of another device")
    return name
