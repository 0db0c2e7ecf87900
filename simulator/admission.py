"""Admission of pods: affinity, Allocate, CPUs and memory, in the kubelet's order and with its errors."""

from collections.abc import Mapping
from typing import Final

from simulator.allocation import UnavailableError, begin, finish
from simulator.endpoint import PluginClient
from simulator.manager import DeviceManager
from simulator.model import AdmissionError, ContainerError, ContainerSpec, Pod, PodSpec
from simulator.node import Node
from simulator.pinning import PinningError
from simulator.rpc import RpcError
from simulator.topology import Hint, Mask, admits, affinity, device_hints

UNEXPECTED: Final = "UnexpectedAdmissionError"


class _FailedError(Exception):
    """The device manager's error, before it is wrapped for the pod's status."""


class Admission:
    """Admits pods to one kubelet. Callers admit one pod at a time."""

    def __init__(self, node: Node, manager: DeviceManager) -> None:
        self._node = node
        self._manager = manager
        self._state = manager.state
        self._reusable: tuple[str, dict[str, set[str]]] = ("", {})

    async def admit(self, pod: Pod) -> None:
        """Allocate what all its containers ask for.

        Raises AdmissionError; devices allocated by then are freed when the next allocation needs them.
        """
        try:
            for container in pod.spec.all_containers():
                hint = self._affinity(pod, container)
                if not admits(self._node.settings.topology_policy, hint):
                    raise _rejected(
                        "TopologyAffinityError", "Resources cannot be allocated with Topology locality"
                    )
                await self._allocate(pod, container, hint.mask)
                if container.sidecar or container in pod.spec.containers:
                    self._node.pinning.pin(
                        pod.uid, container.name, container.exclusive_cpus, container.memory, hint.mask
                    )
        except (_FailedError, PinningError) as error:
            raise _rejected(UNEXPECTED, f"Allocate failed due to {error}, which is unexpected") from error
        self._check_node_has(pod)

    async def start(self, pod: Pod, container: ContainerSpec) -> None:
        """Start a container: PreStartContainer where the plugin wants it. Raises ContainerError."""
        for resource, amount in _of_plugins(pod, container).items():
            if not self._state.has(resource) or amount == 0:
                continue
            endpoint = self._state.endpoints.get(resource)
            if endpoint is None:
                raise ContainerError(f"endpoint not found in cache for a registered resource: {resource}")
            if endpoint.options is None or not endpoint.options.pre_start_required:
                continue
            held = self._state.held(pod.uid, container.name).get(resource)
            if held is None:
                raise ContainerError(
                    f"no devices found allocated in local cache for pod {pod.uid}, "
                    f"container {container.name}, resource {resource}"
                )
            try:
                await self._plugin(resource).pre_start(self._node.shuffle_ids(held.ids()))
            except (RpcError, _FailedError) as error:
                raise ContainerError(
                    f"device plugin PreStartContainer rpc failed with err: {error}"
                ) from error

    def _affinity(self, pod: Pod, container: ContainerSpec) -> Hint:
        settings, nodes, pinning = self._node.settings, self._node.settings.numa_nodes, self._node.pinning
        self._state.reclaim(self._node.active())
        wanted = _of_plugins(pod, container)
        providers = [
            device_hints(
                nodes,
                self._numa(resource),
                self._state.healthy(resource) - self._state.in_use(resource),
                self._handed_on(pod).get(resource, ()),
                amount,
            )
            for resource, amount in wanted.items()
            if self._state.has(resource)
        ]
        if container.exclusive_cpus and pinning.cpus:
            providers.append(pinning.cpu_hints(nodes, container.exclusive_cpus))
        if pinning.memory:
            providers.extend(pinning.memory_hints(nodes, *block) for block in container.memory.items())
        return affinity(settings.topology_policy, nodes, providers)

    async def _allocate(self, pod: Pod, container: ContainerSpec, mask: Mask | None) -> None:
        """kubelet: one Allocate for each resource; the checkpoint is written once, after the last."""
        save = False
        for resource, amount in self._node.shuffle(_of_plugins(pod, container).items()):
            if not self._state.has(resource):
                continue
            self._state.reclaim(self._node.active())
            ids = await self._choose(pod, container.name, resource, amount, mask)
            if not ids:
                continue
            save = True
            try:
                response = await self._plugin(resource).allocate(self._node.shuffle_ids(ids))
            except RpcError as error:
                raise _FailedError(str(error)) from error
            if response is None:
                raise _FailedError("no containers return in allocation response ")
            for lost in sorted(ids - self._state.devices.get(resource, {}).keys()):
                self._node.violation(
                    f"{resource}: device {lost!r} was dropped while its Allocate was in flight: "
                    "a kubelet panics here"
                )
            grouped = self._state.by_node(resource, self._node.shuffle_ids(ids))
            self._state.hold(pod.uid, container.name, resource, grouped, response)
            self._node.event(
                "allocated",
                pod=pod.full_name,
                container=container.name,
                resource=resource,
                devices=sorted(ids),
            )
            self._node.changed()
        if save:
            self._manager.save()
        self._hand_on(pod, container)

    async def _choose(
        self, pod: Pod, container: str, resource: str, amount: int, mask: Mask | None
    ) -> frozenset[str]:
        """Devices to allocate; none where the container has them already. Raises _FailedError."""
        held = self._state.held(pod.uid, container).get(resource)
        before = held.ids() if held is not None else frozenset[str]()
        if held is not None and len(before) != amount:
            raise _FailedError(
                f'pod "{pod.uid}" container "{container}" changed request for resource "{resource}" '
                f"from {len(before)} to {amount}"
            )
        healthy = self._state.healthy(resource)
        if not self._state.registered(resource):
            raise _FailedError(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise _FailedError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not healthy >= before:
            raise _FailedError(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {resource}"
            )
        if held is not None or amount == 0:
            return frozenset()
        shuffle = self._node.shuffle_ids
        try:
            choice = begin(
                resource,
                amount,
                reusable=self._handed_on(pod).get(resource, ()),
                available=healthy - self._state.in_use(resource),
                numa=self._numa(resource),
                mask=mask,
                order=shuffle,
            )
        except UnavailableError as error:
            raise _FailedError(str(error)) from error
        preferred: list[str] = []
        endpoint = self._state.endpoints.get(resource)
        options = endpoint.options if endpoint is not None else None
        if choice.offer is not None and options is not None and options.preferred_allocation:
            try:
                preferred = await self._plugin(resource).preferred(choice.offer, shuffle)
            except RpcError as error:
                raise _FailedError(
                    f"device plugin GetPreferredAllocation rpc failed with err: {error}"
                ) from error
            self._judge_preference(resource, choice.offer.must_include, choice.offer.available, preferred)
        return finish(choice, preferred, shuffle)

    def _judge_preference(
        self, resource: str, must: frozenset[str], available: frozenset[str], preferred: list[str]
    ) -> None:
        if not must <= set(preferred):
            self._node.violation(f"{resource}: preferred allocation lacks {sorted(must - set(preferred))}")
        if not set(preferred) <= available:
            odd = sorted(set(preferred) - available)
            self._node.violation(f"{resource}: preferred allocation has {odd}, which were not offered")

    def _plugin(self, resource: str) -> PluginClient:
        endpoint = self._state.endpoints.get(resource)
        if endpoint is None:
            raise _FailedError(f"unknown Device Plugin {resource}")
        if endpoint.stopped_at is not None or not isinstance(endpoint.plugin, PluginClient):
            # kubelet: it prints the endpoint as Go does a structure: lock, resource, client, stop time.
            raise _FailedError(
                f"endpoint &{{{{{{}} {{0 0}}}} {resource} 0xc0 {{0 0 0x0}} <nil>}} has been stopped"
            )
        return endpoint.plugin

    def _numa(self, resource: str) -> dict[str, tuple[int, ...] | None]:
        return {i: device.numa for i, device in self._state.devices.get(resource, {}).items()}

    def _handed_on(self, pod: Pod) -> Mapping[str, set[str]]:
        return self._reusable[1] if self._reusable[0] == pod.uid else {}

    def _hand_on(self, pod: Pod, container: ContainerSpec) -> None:
        """An ordinary init container's devices are free for the pod's next containers, others' are not."""
        if self._reusable[0] != pod.uid:
            self._reusable = (pod.uid, {})
        ordinary = container in pod.spec.init_containers and not container.sidecar
        for resource, held in self._state.held(pod.uid, container.name).items():
            pool = self._reusable[1].setdefault(resource, set())
            if ordinary:
                pool.update(held.ids())
            else:
                pool.difference_update(held.ids())

    def _check_node_has(self, pod: Pod) -> None:
        """The kubelet's last check: resources that the node reports at 0, or does not report at all."""
        for resource in sorted({name for c in pod.spec.all_containers() for name in _of_plugins(pod, c)}):
            requested = _requested(pod.spec, resource)
            if requested == 0 or self._state.has(resource):
                continue
            if self._node.settings.ignore_unknown_resources and not self._state.forgotten(resource):
                continue
            raise _rejected(
                f"OutOf{resource}",
                f"Node didn't have enough resource: {resource}, requested: {requested}, used: 0, capacity: 0",
            )


def _of_plugins(pod: Pod, container: ContainerSpec) -> Mapping[str, int]:
    """What a container asks of device plugins (kubelet: without extended resources that DRA serves)."""
    if pod.extended is None:
        return container.resources
    served = {one.resource for one in pod.extended.requests if one.container == container.name}
    return {name: amount for name, amount in container.resources.items() if name not in served}


def _rejected(reason: str, message: str) -> AdmissionError:
    return AdmissionError(reason, f"Pod was rejected: {message}")


def _requested(spec: PodSpec, resource: str) -> int:
    """What a pod asks for as a whole: all that run together, or the neediest init container."""
    together = sum(c.resources.get(resource, 0) for c in spec.listed_containers())
    return max([together, *(c.resources.get(resource, 0) for c in spec.init_containers)])
