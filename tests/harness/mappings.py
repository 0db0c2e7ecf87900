"""A small mapping, and answers of the sources of `devicelens who`, for tests of the commands."""

from exporter.cli.select import CpusEntry, MappingAnswer, NodeDocument
from exporter.mapping.model import Holder
from exporter.views.schema import ClaimEntry, ClaimHolderEntry, DeviceEntry, HolderEntry
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
) -> HolderEntry:
    return HolderEntry(namespace, pod, "main", uid, since, exact)


def device(
    name: str,
    *holders: HolderEntry,
    resource: str = "nvidia.com/gpu",
    parent: str | None = None,
    healthy: bool | None = True,
) -> DeviceEntry:
    return DeviceEntry(resource, name, parent, (0,), healthy, holders)


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
