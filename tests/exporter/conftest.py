"""The snapshot that tests of the views, the API and the pages share."""

import pytest

from exporter.mapping.model import (
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Container,
    Device,
    DeviceKey,
    Holder,
    PinnedMemory,
    Snapshot,
)


@pytest.fixture
def snapshot() -> Snapshot:
    """Eight GPUs, one of them shared, one failed under its pod; a claim; a container with CPUs of its own."""
    trainer, server, render = (
        Holder("ml", "llama-0", "trainer", "uid-1"),
        Holder("inference", "vllm-0", "server"),
        Holder("batch", "render-1", "blender"),
    )
    claimants = Holder("dra", "shared-1", "a"), Holder("dra", "shared-2", "a")
    engine = Holder("trading", "engine-0", "main")
    gpus = [
        Device(DeviceKey("nvidia.com/gpu", f"GPU-{i}"), "", (i // 4,), i != 2, holders)
        for i, holders in enumerate([(trainer,), (trainer,), (render,), (), (), (), ()])
    ]
    shares = [
        Device(DeviceKey("nvidia.com/gpu.shared", f"GPU-7::{i}"), "GPU-7", (1,), True, holders)
        for i, holders in enumerate([(server,), ()])
    ]
    return Snapshot(
        devices=tuple(sorted((*gpus, *shares), key=lambda d: d.key)),
        claims=(
            ClaimDevice(
                ClaimDeviceKey("gpu.example.com", "pool-a", "gpu-0"),
                tuple(ClaimHolder(h, "dra", "shared") for h in claimants),
                ("example.com/gpu=claim-1",),
            ),
        ),
        containers=tuple(
            sorted(
                (
                    Container(trainer, {"nvidia.com/gpu": 2}, numa_nodes=(0,)),
                    Container(server, {"nvidia.com/gpu.shared": 1}, numa_nodes=(1,)),
                    Container(render, {"nvidia.com/gpu": 1}, numa_nodes=(0,)),
                    *(Container(h) for h in claimants),
                    Container(engine, {}, (1, 2, 3, 8), (PinnedMemory("memory", (0,), 200 << 20),), (0,)),
                ),
                key=lambda c: c.holder,
            )
        ),
        pods=6,
    )
