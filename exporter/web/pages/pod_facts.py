"""What each container of a pod holds. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from exporter.core.diff import Holding
from exporter.core.model import ClaimDevice, ClaimHolder, Container, Device, Holder, PinnedMemory
from exporter.core.state import State
from exporter.web.links import claim_link, device_link
from exporter.web.pages import told
from exporter.web.pages.past import in_order
from exporter.web.pages.rows import row_key
from exporter.web.pages.told import Stamp
from exporter.web.words import Text, counted, ranges, size, text

HELD: Final = 500
"""Devices of one container that are shown."""


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device, or a claimed one, in a container's hands: `kind` is held, unhealthy or claimed."""

    key: str
    device: Text
    href: str
    of: Text
    kind: str
    words: str
    numa: str
    since: Stamp | None
    exact: bool


@dataclass(frozen=True, slots=True)
class ContainerFact:
    """One container with all that it holds."""

    key: str
    name: Text
    devices: tuple[HeldDevice, ...]
    more: int
    cpus: str
    cpu_count: str
    memory: tuple[Text, ...]
    numa: str


def container_of(container: Container, devices: Iterable[Device], state: State, now: float) -> ContainerFact:
    """A container with those of its pod's `devices` that it holds."""
    holder = container.holder
    own = sorted((d for d in devices if holder in d.holders), key=in_order)
    held = [_held(device, holder, state, now) for device in own]
    held += [
        _claimed(claimed, through, state, now)
        for claimed in state.snapshot.claims
        for through in claimed.holders
        if through.holder == holder
    ]
    return ContainerFact(
        key=row_key("container", *holder),
        name=text(holder.container),
        devices=tuple(held[:HELD]),
        more=max(0, len(held) - HELD),
        cpus=text(ranges(container.cpu_ids), limit=120).shown,
        cpu_count=counted(len(container.cpu_ids), "CPU") if container.cpu_ids else "",
        memory=tuple(map(_pinned, container.memory[:20])),
        numa=ranges(container.numa_nodes),
    )


def _pinned(memory: PinnedMemory) -> Text:
    where = f" on NUMA {ranges(memory.numa_nodes)}" if memory.numa_nodes else ""
    return text(f"{size(memory.size_bytes)} {memory.memory_type}{where}")


def _held(device: Device, holder: Holder, state: State, now: float) -> HeldDevice:
    key = device.key
    since = state.since.get(Holding(key, holder))
    ill = state.snapshot.complete and not device.allocatable
    return HeldDevice(
        key=row_key("held", *key, *holder),
        device=text(key.device, limit=200),
        href=device_link(key.resource, key.device),
        of=text(key.resource),
        kind="unhealthy" if ill else "held",
        words="unhealthy" if ill else "healthy" if state.snapshot.complete else "held",
        numa=ranges(device.numa_nodes),
        since=None if since is None else told.stamp(since.at, now),
        exact=since is not None and since.exact,
    )


def _claimed(claimed: ClaimDevice, through: ClaimHolder, state: State, now: float) -> HeldDevice:
    key, held = claimed.key, claimed.held(through)
    since = state.since.get(Holding(held, through.holder))
    share = f", share {key.share_id}" if key.share_id else ""
    claim = f"{key.driver}, pool {key.pool}{share}, claim {through.claim}"
    return HeldDevice(
        key=row_key("claimed", *held, *through.holder),
        device=text(key.device, limit=200),
        href=claim_link(key.driver, key.pool, key.device),
        of=text(claim, limit=160),
        kind="held",
        words="claimed",
        numa="",
        since=None if since is None else told.stamp(since.at, now),
        exact=since is not None and since.exact,
    )
