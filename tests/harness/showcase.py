"""A node's night, made up: what the pictures of the documentation show. The same each time.

gpu-worker-3 has six GPUs that are given out whole, one in four shares, three by claims, and four network
functions. Pods come and go from eight in the evening; for a while the kubelet does not answer; at half past
two a claimed GPU is tainted for maintenance; at twelve past three a GPU falls off the bus under the pod that
holds it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from exporter.history.record import present
from exporter.mapping.anomalies import find
from exporter.mapping.dra import PublishedDevice, PublishedName, Taint
from exporter.mapping.holdings import HeldSince, HoldingTracker, holdings
from exporter.mapping.identity import UNKNOWN, PodIdentity, Workload
from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    ClaimHolding,
    Device,
    DeviceKey,
    Holder,
    PinnedMemory,
    PluginReport,
    Snapshot,
    merge_reports,
)
from exporter.mapping.state import State
from exporter.mapping.status_anomalies import status_anomalies
from exporter.web.site import Site
from harness import scene
from harness.application import site
from harness.lives import Life
from harness.past import Past
from runtime import __version__

NODE: Final = "gpu-worker-3"
NOW: Final = datetime(2026, 11, 20, 3, 14, 7, 250_000, UTC).timestamp()
FAILED_AT: Final = datetime(2026, 11, 20, 3, 12, 4, tzinfo=UTC).timestamp()
GPUS: Final = (
    "GPU-0b4f6f0e-6d0c-4f2e-9a55-0e6b8f1d2c30",
    "GPU-1c5a7d1f-90cd-4f6e-8d21-5b3c7e9f0a41",
    "GPU-2d6b8e20-1e2f-4a3b-8c4d-5e6f70819203",
    "GPU-3e7c9f31-3456-489a-bcde-f0123456789a",
    "GPU-4f8da042-7c1f-4d3e-a9b5-50e6b8f1d2c3",
    "GPU-50ceb153-c4a8-4b71-9f02-7d83e16a5b94",
)
SHARED: Final = "GPU-61dfc264-2f90-4e1c-b6a7-93c05d8e7f12"
FAILED: Final = GPUS[4]
_NICS: Final = ("0000:3b:02.0", "0000:3b:02.1", "0000:af:02.0", "0000:af:02.1")

_GPU, _SHARE, _NIC = "nvidia.com/gpu", "nvidia.com/gpu.shared", "intel.com/sriov_dpdk"
_DRIVER: Final = "gpu.nvidia.com"
_TAINTED_AT: Final = datetime(2026, 11, 20, 2, 30, tzinfo=UTC).timestamp()
_TAINT: Final = Taint("gpu.nvidia.com/maintenance", "ecc", "NoSchedule", _TAINTED_AT)
_FIRST: Final = datetime(2026, 11, 19, 20, 0, tzinfo=UTC).timestamp()
_STEP: Final = 15.0
_SILENT: Final = (datetime(2026, 11, 20, 0, 40, tzinfo=UTC).timestamp(), 260.0)


@dataclass(frozen=True, slots=True)
class _Stay:
    """A pod's time on the node, by the clock (hours and minutes after 20:00), and what it holds."""

    holder: Holder
    workload: Workload
    began: str
    ended: str
    devices: tuple[tuple[str, str], ...] = ()
    claim: str = ""


def _stay(
    pod: str, container: str, workload: str, time: str, *devices: tuple[str, str], claim: str = ""
) -> _Stay:
    namespace, name = pod.split("/")
    kind, owner = workload.split()
    began, _, ended = time.partition("-")
    uid = f"{sum(map(ord, name + began)):08x}-5d1e-4c0b-9b6e-3f2a1d0c4e77"
    return _Stay(Holder(namespace, name, container, uid), Workload(kind, owner), began, ended, devices, claim)


_STAYS: Final = (
    _stay("training/resnet-sweep-3-5m89f", "trainer", "Job resnet-sweep-3", "20:04-22:47", (_GPU, GPUS[0])),
    _stay(
        "training/llama-ft-0",
        "trainer",
        "StatefulSet llama-ft",
        "20:11-00:58",
        (_GPU, GPUS[1]),
        (_GPU, GPUS[2]),
    ),
    _stay(
        *("training/llama-ft-0", "trainer", "StatefulSet llama-ft", "01:02"),
        *((_GPU, GPUS[1]), (_GPU, GPUS[2])),
    ),
    _stay("training/resnet-sweep-4-x7k2d", "trainer", "Job resnet-sweep-4", "22:52", (_GPU, GPUS[0])),
    _stay("inference/vllm-7d9c6b5f4-x2klm", "server", "Deployment vllm", "21:30", (_GPU, FAILED)),
    _stay("batch/render-1841-q8w2n", "blender", "Job render-1841", "21:15-23:40", (_GPU, GPUS[5])),
    _stay(
        "notebooks/jupyter-anna-0", "notebook", "StatefulSet jupyter-anna", "23:20", (_SHARE, f"{SHARED}::0")
    ),
    _stay(
        "inference/embedder-6f7d8-9qwer", "server", "Deployment embedder", "20:40", (_SHARE, f"{SHARED}::1")
    ),
    _stay(
        "notebooks/jupyter-omar-0",
        "notebook",
        "StatefulSet jupyter-omar",
        "20:30-23:05",
        (_SHARE, f"{SHARED}::2"),
    ),
    _stay("network/upf-0", "dataplane", "StatefulSet upf", "20:01", (_NIC, _NICS[0]), (_NIC, _NICS[1])),
    _stay("vision/inspector-84c9d-lk2vp", "detector", "Deployment inspector", "02:15", claim="shared-gpu"),
    _stay("vision/inspector-84c9d-t6ms9", "detector", "Deployment inspector", "02:16", claim="shared-gpu"),
    _stay("training/tuner-9-c4v7b", "tuner", "Job tuner-9", "01:20", claim="tuner-gpu"),
)


def _at(clock: str) -> float:
    hours, minutes = map(int, clock.split(":"))
    return _FIRST + ((hours - 20) % 24) * 3600 + minutes * 60 + 0.25


def _claimed(number: int, *through: ClaimHolding, taints: tuple[Taint, ...] = ()) -> Device:
    name = f"gpu-{number}"
    published = PublishedDevice(
        PublishedName(_DRIVER, NODE, name),
        uuid=f"GPU-72e0d375-3fa1-4f2d-87b8-a4d16e9f802{number}",
        pci_address=f"0000:{0x17 + 0x11 * number:02x}:00.0",
        model="NVIDIA H100 80GB HBM3",
        numa_nodes=(1,),
        taints=taints,
    )
    device = scene.claimed(
        name,
        *through,
        driver=_DRIVER,
        pool=NODE,
        cdi=[f"nvidia.com/gpu={name}"] if through else (),
        published=published,
        numa_nodes=(1,),
        allocatable=not taints,
    )
    return replace(device, key=DeviceKey(_DRIVER, name))


def _snapshot(at: float) -> Snapshot:
    """What the kubelet says at unix time `at`."""
    here = [s for s in _STAYS if _at(s.began) <= at and (not s.ended or at < _at(s.ended))]
    held: dict[DeviceKey, list[Holder]] = {}
    for stay in here:
        for resource, name in stay.devices:
            held.setdefault(DeviceKey(resource, name), []).append(stay.holder)
    keys = [
        *((DeviceKey(_GPU, gpu), "", i // 3) for i, gpu in enumerate(GPUS)),
        *((DeviceKey(_SHARE, f"{SHARED}::{i}"), SHARED, 1) for i in range(4)),
        *((DeviceKey(_NIC, nic), "", i // 2) for i, nic in enumerate(_NICS)),
    ]
    claims: dict[str, list[ClaimHolding]] = {claim: [] for claim in ("shared-gpu", "tuner-gpu")}
    for s in here:
        if s.claim:
            names = s.holder.namespace, s.claim, "", "gpu", _DRIVER
            claims[s.claim].append(ClaimHolding(s.holder, *names, admin=False))
    taints = (_TAINT,) if at >= _TAINTED_AT else ()
    memory = (PinnedMemory("hugepages-1Gi", (0,), 8 << 30),)
    found = scene.snapshot(
        *(
            Device(
                *(key, parent, (numa,), key.device != FAILED or at < FAILED_AT),
                tuple(sorted(held.get(key, ()))),
            )
            for key, parent, numa in keys
        ),
        _claimed(7, *claims["shared-gpu"]),
        _claimed(8),
        _claimed(9, *claims["tuner-gpu"], taints=taints),
        pinned={
            stay.holder: ((2, 3, 4, 5, 34, 35, 36, 37), memory) for stay in here if stay.holder.pod == "upf-0"
        },
        published=[_DRIVER],
    )
    return replace(found, pods=len(here) + 9)


def _workload(holder: Holder) -> Workload:
    return next((s.workload for s in _STAYS if s.holder[:2] == holder[:2]), UNKNOWN)


def _told(name: str, number: int) -> AdvertisedDevice:
    reason = "XID 79: the GPU has fallen off the bus"
    told = AdvertisedDevice(
        healthy=True,
        since=_FIRST,
        attributes=(
            ("address", f"0000:{0x17 + 0x11 * number:02x}:00.0"),
            ("driver", "nvidia"),
            ("memory_mib", "81559"),
            ("model", "NVIDIA H100 80GB HBM3"),
            ("path", f"/dev/nvidia{number}"),
            ("uuid", name),
        ),
    )
    return replace(told, healthy=False, reason=reason, since=FAILED_AT) if name == FAILED else told


def night() -> Site:
    """The node at fourteen minutes past three, with its history."""
    life = Life(None, wall=_FIRST - _STEP).start()
    past, tracker = Past(life), HoldingTracker()
    moments = {_FIRST + _STEP * n for n in range(int((NOW - _FIRST) / _STEP) + 1)} | {NOW - 1.2}
    for stay in _STAYS:
        for clock in filter(None, (stay.began, stay.ended)):
            # The kubelet's directory tells of what begins at once; of what ends, the Pods API.
            moments |= {_at(clock) - 0.4, _at(clock)}
    snapshot = Snapshot()
    for at in sorted(moments | {FAILED_AT}):
        if _SILENT[0] < at < _SILENT[0] + _SILENT[1]:
            if life.wall < _SILENT[0] + 30:
                past.silent(at - life.wall)
            continue
        snapshot = _snapshot(at)
        tracker.advance(snapshot, at)
        found = present(snapshot, _workload, NODE)
        past.look(*((key, facts[0]) for key, facts in found.items()), after=at - life.wall)
    life.pass_time(NOW - life.wall)
    resources = {_GPU: AdvertisedResource(True, 1, {name: _told(name, i) for i, name in enumerate(GPUS)})}
    reason = "; its plugin says why: XID 79: the GPU has fallen off the bus"
    judged = find(snapshot, further=status_anomalies(scene.statuses(snapshot)))
    anomalies = tuple(
        replace(a, since=FAILED_AT, evidence=a.evidence + reason)
        if a.kind == "unhealthy_held"
        else replace(a, since=_TAINTED_AT)
        for a in judged
    )
    state = State(
        generation=41,
        snapshot=snapshot,
        taken_at=NOW - 1.2,
        changed_at=FAILED_AT,
        since=tracker.since,
        pods={s.holder[:2]: _identity(s) for s in _STAYS if not s.ended},
        anomalies=anomalies,
        advertised=merge_reports([PluginReport("http://127.0.0.1:10191", resources, _FIRST)]),
        api_version="v1",
    )
    return _site(state, past)


def _identity(stay: _Stay) -> PodIdentity:
    holder = stay.holder
    return PodIdentity(
        *(holder.namespace, holder.pod, holder.pod_uid),
        phase="Running",
        workload=stay.workload,
        created=_at(stay.began) - 4,
    )


def large(devices: int = 2000) -> Site:
    """A node with very many devices of five resources."""
    names = (
        "xilinx.com/fpga-u250",
        "intel.com/sriov_dpdk",
        "example.com/npu",
        "nvidia.com/gpu.shared",
        "amd.com/gpu",
    )
    found: list[Device] = []
    for i in range(devices):
        resource, number = names[i % 5], i // 5
        pods = (
            ()
            if i % 7 in {1, 4}
            else (Holder("batch", f"render-{1800 + i // 11}-{i % 97:02d}kx", "worker", f"u{i}"),)
        )
        name, parent = f"{resource.partition('/')[2].partition('-')[0]}-{number}", ""
        if resource == "nvidia.com/gpu.shared":
            parent = f"GPU-{number // 8:08x}-5b1e-4c0b-9b6e-3f2a1d0c4e77"
            name = f"{parent}::{number % 8}"
        found.append(Device(DeviceKey(resource, name), parent, (number % 2,), i % 331 != 5, pods))
    snapshot = Snapshot(tuple(sorted(found, key=lambda d: d.key)), pods=devices // 11)
    ages = {h: HeldSince(NOW - 40.0 - 97.0 * (n % 900)) for n, h in enumerate(sorted(holdings(snapshot)))}
    state = State(7, snapshot, NOW - 0.8, NOW - 40, ages, anomalies=find(snapshot), api_version="v1")
    return _site(state, None)


def _site(state: State, history: Past | None) -> Site:
    return site(
        *(state, NOW, NODE),
        triggers=lambda: ("allocations and plugins (inotify)", "the Pods API", "a timer, every 5 s"),
        version=__version__,
        history=history,
        cpu_nodes={cpu: cpu % 32 // 16 for cpu in range(64)},
        run="showcase",
    )


SITES: Final[Mapping[str, Callable[[], Site]]] = {"night": night, "large": large}
"""By the name that a picture asks for."""
