"""A node of the simulated kubelet: `devicelens kubelet` as a process, asked through its control socket."""

import shutil
import tempfile
from pathlib import Path
from typing import Self

from harness.node import Holding, Pod, Refused
from harness.processes import Process
from harness.waiting import LIMIT
from simulator import Faults
from simulator.control import ControlClient
from simulator.model import AdmissionError, ContainerSpec, PodSpec


class SimulatedNode:
    """A kubelet without a node, below a temporary directory."""

    def __init__(self, *flags: str) -> None:
        """`flags` are added to those of `devicelens kubelet`."""
        self.name = "sim-node"
        self.namespace = "default"
        self.limit = LIMIT
        # Short: unix sockets take 107 bytes.
        self._directory = Path(tempfile.mkdtemp(prefix="dl-"))
        self.root = self._directory / "kubelet"
        self.process = Process("kubelet", "--kubelet.root", str(self.root), "--node-name", self.name, *flags)
        self.control = ControlClient(self.root)

    async def __aenter__(self) -> Self:
        await self.process.start()
        await self.process.line("ready")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.process.__aexit__(kind)
        shutil.rmtree(self._directory)

    def source_flags(self, source: str) -> tuple[str, ...]:
        given = ("--pods.source", source)
        return (*given, "--kubeconfig", str(self.root / "kubeconfig")) if source == "apiserver" else given

    async def add_pod(self, pod: Pod) -> str:
        spec = PodSpec(
            name=pod.name,
            namespace=self.namespace,
            containers=tuple(ContainerSpec(name, resources=wish) for name, wish in pod.containers.items()),
            init_containers=(
                *(ContainerSpec(name, resources=wish, sidecar=True) for name, wish in pod.sidecars.items()),
                *(ContainerSpec(name, resources=wish) for name, wish in pod.inits.items()),
            ),
            labels=pod.labels,
        )
        try:
            return await self.control.add_pod(spec)
        except AdmissionError as error:
            raise Refused(str(error)) from error

    async def uid(self, name: str) -> str:
        pods = await self.control.pods()
        (uid,) = [pod.uid for pod in pods if (pod.namespace, pod.name) == (self.namespace, name)]
        return uid

    async def end_pod(self, name: str) -> None:
        await self.control.complete_pod(self.namespace, name)

    async def delete_pod(self, name: str) -> None:
        await self.control.delete_pod(self.namespace, name)

    async def restart_kubelet(self) -> None:
        await self.control.restart(down_for=0.3)

    async def capacity(self, resource: str) -> int:
        return await self.control.capacity(resource)

    async def allocatable(self, resource: str) -> int:
        return await self.control.allocatable(resource)

    async def holdings(self) -> frozenset[Holding]:
        return frozenset(
            Holding(held.resource, held.device, held.pod, held.container)
            for held in await self.control.holdings()
            if held.namespace == self.namespace
        )

    async def fault(self, faults: Faults) -> None:
        """Let the kubelet's PodResources misbehave; Faults() ends it."""
        await self.control.set_faults(faults)

    async def violations(self) -> tuple[str, ...]:
        """What a plugin did that a real kubelet would have suffered from."""
        return tuple(await self.control.violations())
