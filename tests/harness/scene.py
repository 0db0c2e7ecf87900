"""Snapshots and states of the exporter: one builder, and the node that many tests and documents share."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from exporter.mapping.anomalies import find
from exporter.mapping.device_status import DeviceStatuses, device_statuses
from exporter.mapping.dra import ClaimName, PublishedDevice, PublishedName
from exporter.mapping.holdings import HeldSince, Holding, holdings
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import (
    NO_REPORTS,
    AdvertisedDevice,
    AdvertisedResource,
    Claimed,
    ClaimHolding,
    Container,
    Device,
    DeviceKey,
    Holder,
    PinnedMemory,
    PluginReport,
    PluginReports,
    Snapshot,
    by_claim,
    merge_reports,
)
from exporter.mapping.state import State
from exporter.mapping.status_anomalies import status_anomalies

GPU = "nvidia.com/gpu"
START = 1_793_227_263.25
"""2026-10-28T22:41:03.250Z."""


def device(
    name: str,
    *holders: Holder,
    resource: str = GPU,
    parent: str = "",
    numa: Iterable[int] = (),
    ok: bool = True,
) -> Device:
    """A device; `ok`: it is allocatable."""
    return Device(DeviceKey(resource, name), parent, tuple(numa), ok, tuple(sorted(holders)))


def claimed(
    name: str,
    *through: ClaimHolding,
    driver: str = "gpu.example.com",
    pool: str = "pool-a",
    resource: str = "",
    cdi: Iterable[str] = (),
    published: PublishedDevice | None = None,
    reserved: Iterable[ClaimName] = (),
    **changes: Any,
) -> Device:
    """A device of a DRA driver, held by those of `through` that are not for administration. The pool
    `node-1` is the node's.
    """
    facts = Claimed(
        *(PublishedName(driver, pool, name), published, tuple(cdi)),
        through=tuple(sorted(through, key=by_claim)),
        reserved=tuple(reserved),
    )
    key = DeviceKey(resource or driver, name if pool == "node-1" else f"{pool}/{name}")
    holders = {one.holder for one in through if not one.admin}
    return Device(key, holders=tuple(sorted(holders)), claimed=facts, **changes)


Pinned = Mapping[Holder, tuple[tuple[int, ...], tuple[PinnedMemory, ...]]]
"""Exclusive CPUs and pinned memory of containers."""


def snapshot(
    *devices: Device, pinned: Pinned | None = None, complete: bool = True, published: Iterable[str] = ()
) -> Snapshot:
    """A snapshot whose containers follow from what is held; ResourceSlices name all of `published`."""
    pinned = pinned or {}
    held: dict[Holder, list[Device]] = {holder: [] for holder in pinned}
    claiming = [one for one in devices if one.claimed is not None]
    held |= {one.holder: [] for device in claiming if device.claimed for one in device.claimed.through}
    for one in sorted(devices, key=lambda one: one.key):
        for holder in one.holders:
            held.setdefault(holder, []).append(one)
    containers: list[Container] = []
    for holder, mine in sorted(held.items()):
        cpus, memory = pinned.get(holder, ((), ()))
        resources = [one.requested_as(holder) or one.key.resource for one in mine]
        nodes = {node for one in mine for node in one.numa_nodes}
        nodes |= {node for block in memory for node in block.numa_nodes}
        counts = {resource: resources.count(resource) for resource in resources}
        containers.append(Container(holder, counts, cpus, memory, tuple(sorted(nodes))))
    return Snapshot(
        devices=tuple(sorted(devices, key=lambda one: one.key)),
        containers=tuple(containers),
        pods=len({holder[:2] for holder in held}),
        complete=complete,
        published=frozenset(published),
        held_only=frozenset({one.key.resource for one in claiming} - set(published)),
    )


def node() -> Snapshot:
    """Eight GPUs, of which one is shared and one is unhealthy and held; a claim of two pods; a container with
    exclusive CPUs.
    """
    trainer = Holder("ml", "llama-0", "trainer", "uid-1")
    server = Holder("inference", "vllm-0", "server")
    render = Holder("batch", "render-1", "blender")
    claimants = [ClaimHolding(Holder("dra", f"shared-{n}", "a"), "dra", "shared") for n in (1, 2)]
    holders = [(trainer,), (trainer,), (render,), (), (), (), ()]
    memory = PinnedMemory("memory", (0,), 200 << 20)
    return snapshot(
        *(device(f"GPU-{i}", *who, numa=(i // 4,), ok=i != 2) for i, who in enumerate(holders)),
        *(
            device(f"GPU-7::{i}", *who, resource=f"{GPU}.shared", parent="GPU-7", numa=(1,))
            for i, who in enumerate([(server,), ()])
        ),
        claimed("gpu-0", *claimants, cdi=["example.com/gpu=claim-1"]),
        pinned={Holder("trading", "engine-0", "main"): ((1, 2, 3, 8), (memory,))},
    )


def reported(
    devices: Mapping[str, AdvertisedDevice],
    *,
    resource: str = GPU,
    source: str = "plugin",
    registered: bool = True,
    streams: int = 1,
    received_at: float | None = 1.0,
    problem: str = "",
    silent_since: float | None = None,
) -> PluginReports:
    """The report of one plugin with one resource."""
    advertised = AdvertisedResource(registered, streams, devices)
    return merge_reports([PluginReport(source, {resource: advertised}, received_at, problem, silent_since)])


def statuses(shown: Snapshot, advertised: PluginReports = NO_REPORTS, *pods: PodIdentity) -> DeviceStatuses:
    """The statuses of devices; the uids of `pods` are proven."""
    return device_statuses(shown, {}, {one.key: one for one in pods}, advertised)


def state(
    shown: Snapshot,
    *,
    at: float,
    since: float | Callable[[Holding], HeldSince] = 0.0,
    generation: int = 1,
    advertised: PluginReports = NO_REPORTS,
    **changes: Any,
) -> State:
    """The state of a refresh at unix time `at`; `since` is the start of the holdings."""
    starts = {holding: since(holding) if callable(since) else HeldSince(since) for holding in holdings(shown)}
    values: dict[str, Any] = {
        "generation": generation,
        "snapshot": shown,
        "taken_at": at,
        "changed_at": at,
        "since": starts,
        "advertised": advertised,
        "api_version": "v1",
    }
    found = State(**values | changes)
    if "anomalies" in changes or found.statuses is None:
        return found
    return replace(found, anomalies=find(shown, advertised, further=status_anomalies(found.statuses)))
