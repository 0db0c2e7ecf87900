"""The pods bound to a node: they come, are admitted or refused, run, end and go."""

import asyncio
import uuid

from simulator.model import AdmissionError, Phase, Pod, PodSpec
from simulator.node import Node
from simulator.process import KubeletProcess, Life


class Workload:
    """What the API server and the container runtime do to one kubelet."""

    def __init__(self, node: Node, process: KubeletProcess) -> None:
        self._node = node
        self._process = process
        self._sync_loop = asyncio.Lock()

    async def add(self, spec: PodSpec) -> str:
        """Bind a pod and wait until it runs; its uid. As SimulatedKubelet.add_pod."""
        key = (spec.namespace, spec.name)
        before = self._node.pods.get(key)
        if before is not None and before.active:
            raise ValueError(f"pod {spec.namespace}/{spec.name} exists already")
        if before is not None:
            self._remove(before)
        pod = Pod(spec, spec.uid or str(uuid.uuid4()), self._node.wall())
        self._node.pods[key] = pod
        self._node.notify("ADDED", pod)
        self._process.life.pods_api.added(pod)
        try:
            # kubelet: one loop admits pods one after another; an Allocate that hangs holds up all.
            async with self._sync_loop:
                await self._process.in_life(lambda life: self._admit(life, pod))
            await self._process.in_life(lambda life: self._start(life, pod))
        except (asyncio.CancelledError, RuntimeError):
            self._remove(pod)
            raise
        return pod.uid

    async def delete(self, namespace: str, name: str) -> None:
        """Delete a pod at once. Raises KeyError."""
        # kubelet: the same loop takes deletions.
        async with self._sync_loop:
            pod = self.pod(namespace, name)
            await self._process.in_life(lambda life: life.api_sync.wait(pod))
            life = await self._process.running()
            pod.deleted = self._node.wall()
            self._node.notify("MODIFIED", pod)
            life.pods_api.modified(pod)
            if pod.active:
                self._end(pod, Phase.SUCCEEDED)
            self._remove(pod)

    def complete(self, namespace: str, name: str, phase: Phase) -> None:
        """Its containers end by themselves. Raises KeyError."""
        pod = self.pod(namespace, name)
        if pod.active:
            self._end(pod, phase)

    async def restart_container(self, namespace: str, name: str, container: str) -> Pod:
        """End and start one container; its pod. Raises KeyError, ContainerError."""
        pod = self.pod(namespace, name)
        spec = next((c for c in pod.spec.all_containers() if c.name == container), None)
        if spec is None:
            raise KeyError(f"pod {namespace}/{name} has no container {container}")
        await self._process.in_life(lambda life: life.admission.start(pod, spec))
        return pod

    def pod(self, namespace: str, name: str) -> Pod:
        """A pod by its name. Raises KeyError."""
        try:
            return self._node.pods[namespace, name]
        except KeyError:
            raise KeyError(f"pod {namespace}/{name} not found") from None

    async def _admit(self, life: Life, pod: Pod) -> None:
        await life.api_sync.wait(pod)
        life.forget_expired()
        pod.taken_on = pod.taken_on or self._node.wall()
        try:
            await life.admission.admit(pod)
        except AdmissionError as error:
            pod.reason, pod.message = error.reason, error.message
            self._node.event("pod refused", pod=pod.full_name, reason=error.reason, message=error.message)
            self._end(pod, Phase.FAILED)
            raise
        self._node.notify("MODIFIED", pod)
        self._node.claims.prepare(pod.uid, pod.spec)

    async def _start(self, life: Life, pod: Pod) -> None:
        self._node.cgroups.add(pod)
        for container in pod.spec.all_containers():
            await life.admission.start(pod, container)
        if pod.phase is Phase.PENDING:
            pod.phase = Phase.RUNNING
            self._node.notify("MODIFIED", pod)
            life.pods_api.modified(pod)
            self._node.event("pod runs", pod=pod.full_name, uid=pod.uid)
            self._node.changed()

    def _end(self, pod: Pod, phase: Phase) -> None:
        pod.phase = phase
        self._released(pod)
        self._node.notify("MODIFIED", pod)
        self._process.life.pods_api.ended(pod)
        self._node.changed()

    def _remove(self, pod: Pod) -> None:
        key = (pod.spec.namespace, pod.spec.name)
        if self._node.pods.get(key) is pod:
            del self._node.pods[key]
            self._released(pod)
            self._node.notify("DELETED", pod)
            self._process.life.pods_api.deleted(pod)
            self._node.event("pod gone", pod=pod.full_name, uid=pod.uid)
            self._node.changed()

    def _released(self, pod: Pod) -> None:
        """Free CPUs and memory of its containers, and its cgroup. Devices are freed when the next allocation
        needs them.
        """
        if self._process.is_up:
            self._node.cgroups.remove(pod)
        self._node.pinning.release(pod.uid)
        self._node.claims.release(pod.uid)
