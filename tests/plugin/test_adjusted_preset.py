"""A preset that a configuration file adjusts, served by a whole process to a kubelet."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.processes import Process
from simulator import SimulatedKubelet
from simulator.model import ContainerSpec, PodSpec

CONFIGURATION = """\
version: 1
resources:
  - preset: cola
    name: example.com/cola
    share: {replicas: 3, max_per_container: 1}
    allocate:
      env: {COLA_DEVICES: , COLA: "{{ devices | map(attribute='id') | join(',') }}"}
"""


@pytest.fixture
async def kubelet(root: Path) -> AsyncIterator[SimulatedKubelet]:
    async with SimulatedKubelet(root / "k") as running:
        yield running
        assert running.violations == ()


async def test_what_is_written_beside_a_preset_is_served(kubelet: SimulatedKubelet, root: Path) -> None:
    (root / "h/etc/colas").mkdir(parents=True)
    (root / "h/etc/colas/one").touch()
    (root / "plugin.yaml").write_text(CONFIGURATION)
    flags = (
        *("plugin", "--config", str(root / "plugin.yaml"), "--kubelet.root", str(root / "k")),
        *("--host-root", str(root / "h"), "--web.listen-address", f"unix:{root / 'p.sock'}"),
    )
    async with Process(*flags):
        await kubelet.wait_until(lambda k: k.allocatable("example.com/cola") == 3, limit=20.0)
        await kubelet.add_pod(PodSpec("p", containers=(ContainerSpec("c", {"example.com/cola": 1}),)))
        answer = kubelet.alloc_response("default", "p", "c", "example.com/cola")
        assert dict(answer.envs) == {"COLA": "one"}
