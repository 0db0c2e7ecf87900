"""The simulated kubelet: everything put together, and the node's pods."""

import asyncio
import fcntl
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from exporter.pb.podresources.v1 import api_pb2 as v1
from plugin.pb.deviceplugin.v1beta1 import api_pb2 as deviceplugin
from simulator.answers import holdings
from simulator.faults import NO_FAULTS, Faults, Gate
from simulator.life import Life
from simulator.manager import DIAL_TIMEOUT, response
from simulator.model import AdmissionError, Holding, Phase, Pod, PodSpec
from simulator.node import Node, Older, Replay, Settings
from simulator.pinning import MEMORY, Pinning
from simulator.sockets import PATH_BYTES, is_served
from simulator.topology import Policy

GIB: Final = 1024**3


class RootInUseError(Exception):
    """The directory is a live kubelet's, simulated or real."""


class SimulatedKubelet:
    """A kubelet without a node, below a directory of one's choice.

    It behaves as a real one, oddities included (each is told where it is done). An async context
    manager; or `start` and `stop`. All methods belong to the event loop that started it.
    """

    def __init__(
        self,
        root: Path,
        *,
        node_name: str = "sim-node",
        numa_nodes: int = 2,
        cpus: int = 8,
        reserved_cpus: int = 1,
        memory: int = 8 * GIB,
        grace_period: float = 300.0,
        dial_timeout: float = DIAL_TIMEOUT,
        registry_interval: float = 1.0,
        topology_policy: Policy = "best-effort",
        topology_after_restart: bool = False,
        ignore_unknown_resources: bool = False,
        pods_api: bool = False,
        old: Older | None = None,
        replay: Replay | None = None,
        seed: int = 0,
        faults: Faults = NO_FAULTS,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        on_event: Callable[..., None] | None = None,
    ) -> None:
        """`root` is made if it is not there. Times are seconds, `memory` bytes on each NUMA node.

        `cpus` are spread evenly over `numa_nodes`; the first `reserved_cpus` are not allocatable.
        `cpus=0` or `memory=0`: that static manager is off and lists nothing. `old`: what an older
        kubelet lacks. `topology_after_restart`: whether List keeps the NUMA nodes of devices read back
        from the checkpoint while their plugin has not registered again (kubelet.md: it does not; the
        recording of that state: it does). `ignore_unknown_resources`: whether a pod that asks for a
        resource nobody ever registered is let in without (a kubelet takes it for a cluster-level one)
        or refused, as a scheduler would. `seed` decides orders and choices that a kubelet leaves to
        chance. `faults`: those it starts with. `on_event(event, **fields)` is told what happens.

        Raises ValueError for what no kubelet would start with.
        """
        if not 1 <= numa_nodes <= 8:
            raise ValueError(f"numa_nodes: found {numa_nodes}, expected 1 to 8")
        root = root.absolute()
        if len(bytes(root / "device-plugins" / "kubelet.sock")) > PATH_BYTES:
            raise ValueError(f"root: too long for the sockets below it: {root}")
        nodes = tuple(range(numa_nodes))
        settings = Settings(
            root=root,
            node_name=node_name,
            numa_nodes=nodes,
            grace_period=grace_period,
            dial_timeout=dial_timeout,
            registry_interval=registry_interval,
            topology_policy=topology_policy,
            topology_after_restart=topology_after_restart,
            ignore_unknown_resources=ignore_unknown_resources,
            pods_api=pods_api,
            older=old,
            replay=replay,
        )
        share = [range(cpus * n // numa_nodes, cpus * (n + 1) // numa_nodes) for n in nodes]
        self._node = Node(
            settings=settings,
            gate=Gate(faults),
            pinning=Pinning(
                {n: [c for c in share[n] if c >= reserved_cpus] for n in nodes} if cpus else {},
                {MEMORY: dict.fromkeys(nodes, memory)} if memory else {},
            ),
            monotonic=monotonic,
            wall=wall,
            random=random.Random(seed),  # noqa: S311 -- to be repeatable, not secret
            on_event=on_event or _ignore,
        )
        self._life = Life(self._node)
        self._up = asyncio.Event()
        self._stopped = asyncio.Event()
        self._lock: int | None = None
        self._sync_loop = asyncio.Lock()
        self._lives = asyncio.Lock()
        self._applying: set[asyncio.Task[None]] = set()

    # Its life

    @property
    def root(self) -> Path:
        """The directory that everything is below."""
        return self._node.settings.root

    @property
    def node_name(self) -> str:
        """The node's name in Kubernetes."""
        return self._node.settings.node_name

    def paths(self) -> dict[str, Path]:
        """The sockets that it serves, by what they are for."""
        settings = self._node.settings
        paths = {"registration": settings.registration_socket, "pod_resources": settings.pod_resources_socket}
        return paths | ({"pods_api": settings.pods_api_socket} if settings.pods_api else {})

    async def start(self) -> None:
        """Serve. Raises RootInUseError where another kubelet does already."""
        settings = self._node.settings
        for path in (settings.registration_socket, settings.pod_resources_socket):
            if is_served(path):
                raise RootInUseError(f"{self.root}: a kubelet serves {path} already")
        settings.private.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(settings.private / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            await self._life.begin()
        except BlockingIOError as error:
            self._unlock()
            raise RootInUseError(f"{self.root}: another simulated kubelet runs here") from error
        except BaseException:
            await self._life.end(remove=True)
            self._unlock()
            raise
        self._up.set()

    async def stop(self) -> None:
        """End, and remove the sockets; the checkpoint stays. Raises what failed inside meanwhile."""
        self._stopped.set()
        async with self._lives:
            if self._lock is None:
                return
            for task in self._applying:
                task.cancel()
            try:
                await self._life.end(remove=True)
            finally:
                # A kubelet that is down has left sockets that no life owns.
                for path in self.paths().values():
                    path.unlink(missing_ok=True)
                self._unlock()
                self._up.set()
                self._node.changed()

    async def restart(self, down_for: float = 0.0) -> None:
        """The process dies, stays away for `down_for` seconds, and a new one starts.

        Meanwhile the sockets are there and refuse. Pods stay; streams of plugins and watchers break;
        a pod whose admission was under way is admitted anew.
        """
        async with self._lives:
            self._check_running()
            self._up.clear()
            await self._life.end(remove=False)
            self._node.event("kubelet down", seconds=down_for)
            with suppress(TimeoutError):
                async with asyncio.timeout(down_for):
                    await self._stopped.wait()
            self._check_running()
            self._life = Life(self._node)
            await self._life.begin()
            self._up.set()
            self._node.event("kubelet up")
            self._node.changed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # Pods

    async def add_pod(self, spec: PodSpec) -> str:
        """Bind a pod to this node and wait until it runs; returns its uid.

        Raises AdmissionError when it is refused (it stays as Failed, as a real one does),
        ContainerError when a container cannot be started, ValueError where the name is taken.
        """
        key = (spec.namespace, spec.name)
        before = self._node.pods.get(key)
        if before is not None and before.active:
            raise ValueError(f"pod {spec.namespace}/{spec.name} exists already")
        if before is not None:
            await self.delete_pod(*key)
        pod = Pod(spec, spec.uid or str(uuid.uuid4()), self._node.wall())
        self._node.pods[key] = pod
        self._life.pods_api.added(pod)
        try:
            # kubelet: one loop admits pods one after another; an Allocate that hangs holds up all.
            async with self._sync_loop:
                await self._in_life(lambda life: self._admit(life, pod))
            await self._in_life(lambda life: self._start(life, pod))
        except asyncio.CancelledError:
            self._remove(pod)
            raise
        return pod.uid

    async def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod at once, without a grace period. Raises KeyError where there is none."""
        async with self._sync_loop:
            pod = self._pod(namespace, name)
            await self._running()
            pod.deleted = self._node.wall()
            self._life.pods_api.modified(pod)
            if pod.active:
                self._end(pod, Phase.SUCCEEDED)
            self._remove(pod)

    async def complete_pod(self, namespace: str, name: str, *, failed: bool = False) -> None:
        """Its containers end: it leaves List and stays as Succeeded or Failed. Raises KeyError."""
        pod = self._pod(namespace, name)
        if pod.active:
            self._end(pod, Phase.FAILED if failed else Phase.SUCCEEDED)

    async def restart_container(
        self, namespace: str, name: str, container: str
    ) -> dict[str, deviceplugin.ContainerAllocateResponse]:
        """A container ends and is started again, with the answers that were given before; returns them.

        No Allocate is made; PreStartContainer is. Raises KeyError, ContainerError.
        """
        pod = self._pod(namespace, name)
        spec = next((c for c in pod.spec.all_containers() if c.name == container), None)
        if spec is None:
            raise KeyError(f"pod {namespace}/{name} has no container {container}")
        await self._in_life(lambda life: life.admission.start(pod, spec))
        return {
            resource: response(held.response)
            for resource, held in self._life.state.held(pod.uid, container).items()
        }

    def pods(self) -> tuple[Pod, ...]:
        """All pods bound to this node, ended ones too; copies."""
        return tuple(replace(pod) for _, pod in sorted(self._node.pods.items()))

    # What is seen

    def resources(self) -> tuple[str, ...]:
        """Resources that the node reports."""
        self._life.forget_expired()
        return self._life.state.resources()

    def capacity(self, resource: str) -> int:
        """Devices known, healthy or not; 0 for a resource that is not."""
        self._life.forget_expired()
        return self._life.state.capacity(resource)

    def allocatable(self, resource: str) -> int:
        """Healthy devices, held or free."""
        self._life.forget_expired()
        return len(self._life.state.healthy(resource))

    def streams(self, resource: str) -> int:
        """Connections to plugins that serve it; two while one takes over from another."""
        return self._life.manager.streams(resource)

    def holdings(self) -> frozenset[Holding]:
        """The truth about who holds what, as List would tell it."""
        if self._node.settings.replay is not None:
            return holdings(v1.ListPodResourcesResponse.FromString(self._node.settings.replay.listed))
        return holdings(self._life.answers.listed(self._node.pods.values()))

    def alloc_response(
        self, namespace: str, pod: str, container: str, resource: str
    ) -> deviceplugin.ContainerAllocateResponse:
        """What the plugin answered for a container. Raises KeyError where it was not asked."""
        held = self._life.state.held(self._pod(namespace, pod).uid, container)
        return response(held[resource].response)

    @property
    def violations(self) -> tuple[str, ...]:
        """What plugins did that they must not, in order; a kubelet would have panicked or been misled."""
        return tuple(self._node.violations)

    @property
    def calls(self) -> Counter[str]:
        """Calls by method: served (Register, List, v1alpha1.List, …) and made (Allocate, GetInfo, …)."""
        return Counter(self._node.calls)

    async def wait_until(
        self, condition: Callable[["SimulatedKubelet"], object], limit: float = 10.0
    ) -> None:
        """Wait until `condition(self)` holds; looked at with each change, and now and then without one.

        Raises TimeoutError after `limit` seconds.
        """
        async with asyncio.timeout(limit):
            while not condition(self):
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self._node.change()

    # Faults

    @property
    def faults(self) -> Faults:
        """What goes wrong at present. Assigning takes effect at once; sockets follow within moments."""
        return self._node.gate.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._node.gate.faults = faults
        task = asyncio.get_running_loop().create_task(self._apply_faults())
        self._applying.add(task)
        task.add_done_callback(self._applying.discard)

    async def set_faults(self, faults: Faults) -> None:
        """As assigning, and wait until sockets have come or gone."""
        self.faults = faults
        await asyncio.gather(*self._applying)

    async def _apply_faults(self) -> None:
        async with self._lives:
            if self._up.is_set() and not self._stopped.is_set():
                await self._life.apply_faults()

    # Inside

    async def _admit(self, life: Life, pod: Pod) -> None:
        life.forget_expired()
        try:
            await life.admission.admit(pod)
        except AdmissionError as error:
            pod.phase, pod.reason, pod.message = Phase.FAILED, error.reason, error.message
            self._node.event(
                "pod refused",
                pod=f"{pod.spec.namespace}/{pod.spec.name}",
                reason=error.reason,
                message=error.message,
            )
            self._released(pod)
            life.pods_api.modified(pod)
            self._node.changed()
            raise
        self._node.claims.prepare(pod.uid, pod.spec)

    async def _start(self, life: Life, pod: Pod) -> None:
        for container in pod.spec.all_containers():
            await life.admission.start(pod, container)
        if pod.phase is Phase.PENDING:
            pod.phase = Phase.RUNNING
            life.pods_api.modified(pod)
            self._node.event("pod runs", pod=f"{pod.spec.namespace}/{pod.spec.name}", uid=pod.uid)
            self._node.changed()

    async def _in_life(self, work: Callable[[Life], Any]) -> None:
        """Do it within the kubelet's life; if that ends first, do it again in the next."""
        while True:
            await self._running()
            task: asyncio.Task[None] = self._life.tasks.spawn(work(self._life), awaited=True)
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait((task,))
                raise
            if not task.cancelled():
                return task.result()

    async def _running(self) -> None:
        await self._up.wait()
        self._check_running()

    def _check_running(self) -> None:
        if self._stopped.is_set() or self._lock is None:
            raise RuntimeError("the simulated kubelet does not run")

    def _pod(self, namespace: str, name: str) -> Pod:
        try:
            return self._node.pods[namespace, name]
        except KeyError:
            raise KeyError(f"pod {namespace}/{name} not found") from None

    def _end(self, pod: Pod, phase: Phase) -> None:
        pod.phase = phase
        self._released(pod)
        self._life.pods_api.modified(pod)
        self._node.changed()

    def _remove(self, pod: Pod) -> None:
        key = (pod.spec.namespace, pod.spec.name)
        if self._node.pods.get(key) is pod:
            del self._node.pods[key]
            self._released(pod)
            self._life.pods_api.deleted(pod)
            self._node.event("pod gone", pod=f"{pod.spec.namespace}/{pod.spec.name}", uid=pod.uid)
            self._node.changed()

    def _released(self, pod: Pod) -> None:
        """What its containers had pinned is free. Devices are freed later, by whoever needs to know."""
        self._node.pinning.release(pod.uid)
        self._node.claims.release(pod.uid)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _ignore(_event: str, **_fields: object) -> None:
    """Nobody wants to know."""
