"""The simulated kubelet: everything put together, and the node's pods."""

import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as deviceplugin
from kubelet.pb.podresources.v1 import api_pb2 as v1
from simulator.cgroups import Cgroups, Driver
from simulator.dra_manager import WIPE_DELAY
from simulator.dra_objects import ObjectStore
from simulator.faults import NO_FAULTS, Faults, Gate
from simulator.manager import DIAL_TIMEOUT, response
from simulator.model import Holding, Phase, Pod, PodSpec
from simulator.node import Node, Older, Replay, Settings
from simulator.pinning import MEMORY, Pinning
from simulator.podresources import holdings
from simulator.process import KubeletProcess
from simulator.rpc import PATH_BYTES
from simulator.topology import Policy
from simulator.workload import Workload

GIB: Final = 1024**3
SYNC_DELAY: Final = 0.8
"""Seconds, as seen on 1.36 beside its API server."""
STATUS_INTERVAL: Final = 60.0
"""Seconds; a kubelet synchronises each pod within 60 to 90."""


class SimulatedKubelet:
    """A kubelet without a node, below a directory of one's choice.

    It behaves as a real one, oddities included (a comment marks each). An async context
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
        sync_delay: float = SYNC_DELAY,
        wipe_delay: float = WIPE_DELAY,
        status_interval: float = STATUS_INTERVAL,
        topology_policy: Policy = "best-effort",
        topology_after_restart: bool = True,
        ignore_unknown_resources: bool = False,
        pods_api: bool = False,
        pods_api_waits: bool = False,
        cgroup_driver: Driver | None = None,
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
        kubelet lacks. `sync_delay`: seconds after a restart until the API server answers, before which
        no pod is listed. `pods_api_waits`: whether the Pods API refuses to answer until then, as 1.37
        does. `wipe_delay`: seconds after which the slices of a DRA driver without a connection are deleted.
        `status_interval`: seconds between two updates of pods' status where no event causes one.
        `topology_after_restart`: whether List keeps the NUMA nodes of devices read
        back from the checkpoint while their plugin has not registered again, as 1.36 does.
        `ignore_unknown_resources`: whether a pod that asks for a resource that was never registered is let
        in without (a kubelet takes it for a cluster-level one) or refused, as a scheduler would. `seed`
        decides orders and choices that a kubelet leaves to chance. `faults`: those it starts with.
        `cgroup_driver`: pods have directories below `root`/cgroup, named as that driver names cgroups.
        `on_event(event, **fields)` receives events.

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
            sync_delay=sync_delay,
            wipe_delay=wipe_delay,
            status_interval=status_interval,
            topology_policy=topology_policy,
            topology_after_restart=topology_after_restart,
            ignore_unknown_resources=ignore_unknown_resources,
            pods_api=pods_api,
            pods_api_waits=pods_api_waits,
            cgroup_driver=cgroup_driver,
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
            cgroups=Cgroups(settings.cgroups, cgroup_driver),
            objects=ObjectStore(wall, random.Random(seed)),  # noqa: S311 -- likewise
            uid=str(uuid.uuid5(uuid.NAMESPACE_DNS, node_name)),
        )
        self._process = KubeletProcess(self._node)
        self._workload = Workload(self._node, self._process)

    # Its life

    @property
    def root(self) -> Path:
        """The directory that everything is below."""
        return self._node.settings.root

    @property
    def node_name(self) -> str:
        """The node's name in Kubernetes."""
        return self._node.settings.node_name

    @property
    def node_uid(self) -> str:
        """The uid of the node's object."""
        return self._node.uid

    @property
    def objects(self) -> ObjectStore:
        """The cluster's slices, claims, templates and device classes."""
        return self._node.objects

    @property
    def is_up(self) -> bool:
        """Whether it serves at present; not while it restarts."""
        return self._process.is_up

    def paths(self) -> dict[str, Path]:
        """The sockets that it serves, by what they are for."""
        return self._node.settings.sockets()

    async def start(self) -> None:
        """Serve. Raises RootInUseError where another kubelet does already."""
        await self._process.start()

    async def stop(self) -> None:
        """End, and remove the sockets; the checkpoint stays. Raises what failed inside meanwhile."""
        await self._workload.close()
        await self._process.stop()

    @property
    def lists_all_pods(self) -> bool:
        """Whether List names every pod: it serves, and has heard of them from the API server."""
        return self.is_up and self._process.life.api_sync.done

    async def restart(self, down_for: float = 0.0) -> None:
        """The process dies, stays away for `down_for` seconds, and a new one starts.

        Meanwhile the sockets are there and refuse. Pods stay; streams of plugins and watchers break;
        a pod whose admission was under way is admitted anew. Raises RuntimeError when stopped meanwhile.
        """
        await self._process.restart(down_for)

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

        A pod whose claims do not fit waits unbound until they do; one whose claims cannot be prepared waits
        bound and Pending.

        Raises AdmissionError when it is refused (it stays as Failed, as a real one does),
        ContainerError when a container cannot be started, ValueError where the name is taken.
        """
        return await self._workload.add(spec)

    async def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod at once, without a grace period. Raises KeyError where there is none."""
        await self._workload.delete(namespace, name)

    async def complete_pod(self, namespace: str, name: str, *, failed: bool = False) -> None:
        """Its containers end: it leaves List and stays as Succeeded or Failed. Raises KeyError."""
        self._workload.complete(namespace, name, Phase.FAILED if failed else Phase.SUCCEEDED)

    async def restart_container(
        self, namespace: str, name: str, container: str
    ) -> dict[str, deviceplugin.ContainerAllocateResponse]:
        """A container ends and is started again, with the answers that were given before; returns them.

        No Allocate is made; PreStartContainer is. Raises KeyError, ContainerError.
        """
        pod = await self._workload.restart_container(namespace, name, container)
        return {
            resource: response(held.response)
            for resource, held in self._process.life.state.held(pod.uid, container).items()
        }

    def pods(self) -> tuple[Pod, ...]:
        """All pods bound to this node, ended ones too; copies."""
        return tuple(replace(pod) for _, pod in sorted(self._node.pods.items()))

    def unscheduled(self) -> tuple[Pod, ...]:
        """Pods that wait for devices: Pending, and bound to no node; copies."""
        return tuple(replace(pod) for pod in self._workload.waiting.values())

    @contextmanager
    def following(self, receive: Callable[[str, Pod], None]) -> Generator[None]:
        """Call `receive(kind, pod)` with the events of the API server: ADDED, MODIFIED, DELETED."""
        self._node.followers.add(receive)
        try:
            yield
        finally:
            self._node.followers.discard(receive)

    # What is seen

    def resources(self) -> tuple[str, ...]:
        """Resources that the node reports."""
        self._process.life.forget_expired()
        return self._process.life.state.resources()

    def capacity(self, resource: str) -> int:
        """Devices known, healthy or not; 0 for a resource that is not."""
        self._process.life.forget_expired()
        return self._process.life.state.capacity(resource)

    def allocatable(self, resource: str) -> int:
        """Healthy devices, held or free."""
        self._process.life.forget_expired()
        return len(self._process.life.state.healthy(resource))

    def streams(self, resource: str) -> int:
        """Connections to plugins that serve it; two while one takes over from another."""
        return self._process.life.manager.streams(resource)

    def holdings(self) -> frozenset[Holding]:
        """Which pod holds which device, as List would report it."""
        return holdings(self.pod_resources())

    def pod_resources(self) -> v1.ListPodResourcesResponse:
        """What List would answer now: no rate limit, no fault."""
        if self._node.settings.replay is not None:
            return v1.ListPodResourcesResponse.FromString(self._node.settings.replay.listed)
        return self._process.life.answers.listed(self._node.pods.values())

    def allocatable_resources(self) -> v1.AllocatableResourcesResponse:
        """What GetAllocatableResources would answer now."""
        replay = self._node.settings.replay
        if replay is not None and replay.allocatable is not None:
            return v1.AllocatableResourcesResponse.FromString(replay.allocatable)
        return self._process.life.answers.allocatable()

    def alloc_response(
        self, namespace: str, pod: str, container: str, resource: str
    ) -> deviceplugin.ContainerAllocateResponse:
        """What the plugin answered for a container. Raises KeyError where it was not asked."""
        held = self._process.life.state.held(self._workload.pod(namespace, pod).uid, container)
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
        self, condition: Callable[["SimulatedKubelet"], object], limit: float = 45.0
    ) -> None:
        """Wait until `condition(self)` holds; checked at each change, and at intervals.

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
        self._process.apply_faults_soon()

    async def set_faults(self, faults: Faults) -> None:
        """As assigning, and wait until sockets have come or gone."""
        self._node.gate.faults = faults
        await self._process.apply_faults()


def _ignore(_event: str, **_fields: object) -> None:
    """Nobody wants to know."""
