"""The pods of a node: they are scheduled, admitted or refused, run, end and go."""

import asyncio
import uuid
from contextlib import suppress
from typing import Final

from simulator.dra_allocation import UnschedulableError
from simulator.dra_claims import claim_names
from simulator.dra_manager import PrepareError
from simulator.dra_objects import SLICES, Change
from simulator.dra_scheduler import Scheduler
from simulator.model import AdmissionError, Phase, Pod, PodSpec
from simulator.node import Node
from simulator.process import KubeletProcess, Life
from simulator.rpc import Tasks

_RETRY: Final = 1.0
"""Seconds until claims that could not be prepared are tried again, unless something changes before."""


class Workload:
    """What the API server and the container runtime do to one kubelet."""

    def __init__(self, node: Node, process: KubeletProcess) -> None:
        self._node = node
        self._process = process
        self._sync_loop = asyncio.Lock()
        self._scheduler = Scheduler(node.objects, node.settings.node_name, node.wall)
        self._tasks = Tasks()
        self._letting_go: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self.waiting: dict[tuple[str, str], Pod] = {}
        """Pods that do not fit on the node yet."""
        node.objects.followers.add(self._object_changed)

    async def close(self) -> None:
        """End what is under way."""
        self._closed = True
        self._node.changed()
        await self._tasks.cancel()

    async def add(self, spec: PodSpec) -> str:
        """Bind a pod and wait until it runs; its uid. As SimulatedKubelet.add_pod."""
        key = (spec.namespace, spec.name)
        before = self._node.pods.get(key)
        if (before is not None and before.active) or key in self.waiting:
            raise ValueError(f"pod {spec.namespace}/{spec.name} exists already")
        if before is not None:
            self._remove(before)
        pod = Pod(spec, spec.uid or str(uuid.uuid4()), self._node.wall())
        await self._schedule(pod)
        self._node.pods[key] = pod
        self._node.notify("ADDED", pod)
        self._process.life.pods_api.added(pod)
        try:
            # kubelet: one loop admits pods one after another; an Allocate that hangs holds up all.
            async with self._sync_loop:
                await self._process.in_life(lambda life: self._admit(life, pod))
            await self._process.in_life(lambda life: self._start(life, pod))
        except (asyncio.CancelledError, RuntimeError):
            if claim_names(pod):
                self._end(pod, Phase.SUCCEEDED)
            self._remove(pod)
            raise
        return pod.uid

    async def delete(self, namespace: str, name: str) -> None:
        """Delete a pod at once; one with claims when drivers have unprepared them. Raises KeyError."""
        if self.waiting.pop((namespace, name), None) is not None:
            self._node.changed()
            return
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
        if pod.uid in self._letting_go:
            await asyncio.shield(self._letting_go[pod.uid])
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

    async def _schedule(self, pod: Pod) -> None:
        """Wait until the pod's claims are allocated. Raises RuntimeError if it is deleted first."""
        key = (pod.spec.namespace, pod.spec.name)
        self.waiting[key] = pod
        placed = False
        try:
            while not self._closed and self.waiting.get(key) is pod:
                try:
                    self._scheduler.place(pod, lambda name: len(self._process.life.state.healthy(name)))
                except UnschedulableError as error:
                    if pod.message != str(error):
                        self._node.event("pod does not fit", pod=pod.full_name, reason=str(error))
                    pod.reason, pod.message = "Unschedulable", str(error)
                else:
                    pod.reason = pod.message = ""
                    placed = True
                    return
                await self._node.change()
            raise RuntimeError(f"pod {pod.full_name} was deleted before it fitted on the node")
        finally:
            if self.waiting.get(key) is pod:
                del self.waiting[key]
            if not placed:
                self._scheduler.release(pod)

    def _object_changed(self, change: Change) -> None:
        """A new slice may have room for a waiting pod, or a taint that ends pods."""
        self._node.changed()
        if change.resource != SLICES:
            return
        for pod in self._scheduler.evicted(pod for pod in self._node.pods.values() if pod.active):
            if pod.deleted is None:
                pod.deleted = self._node.wall()
                self._node.event("pod evicted", pod=pod.full_name, reason="a device has a taint")
                self._tasks.spawn(self._evict(pod))

    async def _evict(self, pod: Pod) -> None:
        with suppress(KeyError, RuntimeError):
            await self.delete(pod.spec.namespace, pod.spec.name)

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
        await self._prepare(life, pod)
        if not pod.active:
            return
        for container in pod.spec.all_containers():
            await life.admission.start(pod, container)
        if pod.phase is Phase.PENDING:
            pod.phase = Phase.RUNNING
            life.statuses.update(pod)
            self._node.notify("MODIFIED", pod)
            life.pods_api.modified(pod)
            self._node.event("pod runs", pod=pod.full_name, uid=pod.uid)
            self._node.changed()

    async def _prepare(self, life: Life, pod: Pod) -> None:
        """Have drivers prepare the pod's claims; tried again until it succeeds or the pod ends."""
        while pod.active and claim_names(pod):
            try:
                await life.dra.prepare(pod)
            except PrepareError as error:
                self._node.event("claims not prepared", pod=pod.full_name, reason=str(error))
            else:
                return
            await self._change_or(_RETRY)

    async def _let_go(self, pod: Pod) -> None:
        """Have drivers unprepare an ended pod's claims, and release them."""
        try:
            await self._process.in_life(lambda life: self._unprepare(life, pod))
            self._scheduler.release(pod)
        finally:
            self._letting_go.pop(pod.uid, None)

    async def _unprepare(self, life: Life, pod: Pod) -> None:
        while True:
            try:
                await life.dra.unprepare(pod)
            except PrepareError as error:
                self._node.event("claims not unprepared", pod=pod.full_name, reason=str(error))
            else:
                return
            await self._change_or(_RETRY)

    async def _change_or(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._node.change()

    def _end(self, pod: Pod, phase: Phase) -> None:
        pod.phase = phase
        if claim_names(pod) and not self._closed:
            self._letting_go[pod.uid] = self._tasks.spawn(self._let_go(pod))
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
