"""A small mapping, and answers of the sources of `devicelens who`, for tests of the commands."""

from exporter.cli.select import CpusEntry, MappingAnswer, NodeDocument
from exporter.mapping.model import Holder
from exporter.views.schema import (
    ClaimedEntry,
    ClaimEntry,
    ClaimHolderEntry,
    DeviceEntry,
    HolderEntry,
    IdentityEntry,
    TaintEntry,
    ThroughEntry,
)
from harness import scene

NOW = scene.START
TRAINER = Holder("ml", "llama-0", "trainer")
SNAPSHOT = scene.snapshot(
    scene.device("GPU-0", TRAINER), scene.device("GPU-1"), pinned={TRAINER: ((2, 3), ())}
)
STATE = scene.state(SNAPSHOT, at=NOW, since=NOW - 600)


def holder(
    pod: str,
    namespace: str = "ml",
    *,
    uid: str | None = None,
    since: str | None = None,
    exact: bool = True,
    requested_as: str | None = None,
) -> HolderEntry:
    return HolderEntry(namespace, pod, "main", uid, since, exact, requested_as=requested_as)


def device(
    name: str,
    *holders: HolderEntry,
    resource: str = "nvidia.com/gpu",
    parent: str | None = None,
    healthy: bool | None = True,
) -> DeviceEntry:
    return DeviceEntry(resource, name, parent, (0,), healthy, holders)


def claimed(
    name: str,
    *holders: HolderEntry,
    resource: str = "gpu.example.com",
    pool: str = "worker-3",
    healthy: bool | None = None,
    free: bool | None = True,
    alternative: bool = False,
    cdi: tuple[str, ...] = (),
    taints: tuple[TaintEntry, ...] = (),
    identity: IdentityEntry | None = None,
    share: str | None = None,
    admin: tuple[ThroughEntry, ...] = (),
) -> DeviceEntry:
    """A device of the driver gpu.example.com, that `holders` have through ml/wish. The pool worker-3 is the
    node's.
    """
    through = [
        ThroughEntry(h.namespace, h.pod, h.container, "ml", "wish", share, "r", h.requested_as, admin=False)
        for h in holders
    ]
    facts = ClaimedEntry(
        *("gpu.example.com", pool, name, cdi, {"memory": "80Gi"}, {"model": "LATEST"}, taints),
        shareable=False,
        alternative=alternative,
        through=(*through, *admin),
    )
    shown = name if pool == "worker-3" else f"{pool}/{name}"
    return DeviceEntry(
        *(resource, shown, None, (), healthy, holders),
        identity=identity,
        claimed=facts,
        free=free and not holders,
    )


def claim(
    name: str,
    pod: str = "one",
    *,
    driver: str = "gpu.example.com",
    since: str | None = None,
    exact: bool = True,
) -> ClaimEntry:
    through = ClaimHolderEntry("ml", "wish", "ml", pod, "main", None, since, since is not None and exact)
    return ClaimEntry(driver, "worker-3", name, None, (), (through,))


def mapping(
    *devices: DeviceEntry,
    claims: tuple[ClaimEntry, ...] = (),
    cpus: tuple[CpusEntry, ...] = (),
    node: str = "worker-3",
    labels: dict[str, str] | None = None,
) -> MappingAnswer:
    found = NodeDocument(
        node=node,
        generation=7,
        taken_at="2026-10-28T22:41:03.250Z",
        age_seconds=2.0,
        freshness="fresh",
        error=None,
        devices=devices,
        claims=claims,
        cpus=cpus,
        labels=labels or {},
    )
    return MappingAnswer((found,), "the exporter at x", fleet=labels is not None)
