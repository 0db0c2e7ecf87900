"""The device manager's state: registered, healthy, and held devices. No gRPC, no files, no clock.

It follows the kubelet: an endpoint belongs to a resource, not to a plugin, so the end of any plugin's stream
stops it, and health and capacity are counted from separate sets. `is_extended_resource` is the kubelet's rule
for resource names.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simulator.checkpoint import NO_NODE, Checkpoint, Entry

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


@dataclass(frozen=True, slots=True)
class Device:
    """A device as advertised. `numa`: its nodes; None when it was sent without topology."""

    id: str
    health: str = HEALTHY
    numa: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What GetDevicePluginOptions said."""

    pre_start_required: bool = False
    preferred_allocation: bool = False


@dataclass(slots=True, eq=False)
class Endpoint:
    """The way to a resource's plugin. `stopped_at`: when its stream ended, None while it is up."""

    options: Options | None
    plugin: object | None
    stopped_at: float | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a container holds of a resource. `restored`: read back from the checkpoint."""

    devices: Mapping[int, tuple[str, ...]]
    response: bytes
    restored: bool = False

    def ids(self) -> frozenset[str]:
        """The devices, each once however many NUMA nodes it is on."""
        return frozenset(i for ids in self.devices.values() for i in ids)


class DeviceState:
    """Endpoints, devices and allocations of one kubelet's life."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        grace_period: float,
        numa_nodes: Collection[int],
        active: Callable[[], Collection[str]],
        violation: Callable[[str], None],
    ) -> None:
        """`clock`: seconds, never going back. `active` returns the uids of pods that have not ended.
        `violation` receives what a plugin must not do.
        """
        self._clock = clock
        self._grace_period = grace_period
        self._numa_nodes = frozenset(numa_nodes)
        self._active = active
        self._violation = violation
        self.endpoints: dict[str, Endpoint] = {}
        self.devices: dict[str, dict[str, Device]] = {}
        self._healthy: dict[str, set[str]] = {}
        self._unhealthy: dict[str, set[str]] = {}
        self._held: dict[str, dict[str, dict[str, Allocation]]] = {}
        self._forgotten: set[str] = set()

    # Registration and streams

    def restore(self, checkpoint: Checkpoint) -> None:
        """Start from a checkpoint: holders stay, their resources are known with capacity 0."""
        for entry in checkpoint.entries:
            self.hold(entry.pod_uid, entry.container, entry.resource, entry.devices, entry.response)
            held = self._held[entry.pod_uid][entry.container]
            held[entry.resource] = Allocation(dict(entry.devices), entry.response, restored=True)
        for resource in checkpoint.registered or ():
            self._healthy[resource] = set()
            self._unhealthy[resource] = set()
            self.endpoints[resource] = Endpoint(None, None, stopped_at=self._clock())

    def connected(self, resource: str, plugin: object, options: Options) -> None:
        """A plugin registered: it has the endpoint now, devices stay as they were until it lists them."""
        self.endpoints[resource] = Endpoint(options, plugin)
        self._forgotten.discard(resource)

    def disconnected(self, resource: str) -> None:
        """A stream ended: all is unhealthy and the endpoint stopped, even where a newer plugin has it."""
        endpoint = self.endpoints.get(resource)
        if endpoint is not None:
            self._unhealthy.setdefault(resource, set()).update(self._healthy.get(resource, ()))
            self._healthy[resource] = set()
            endpoint.stopped_at = self._clock()

    def listed(self, resource: str, devices: Sequence[Device]) -> None:
        """A plugin sent its list; it replaces the last one, whichever stream it came by."""
        old = self.devices.get(resource, {})
        self._judge(resource, devices, old)
        self.devices[resource] = {device.id: device for device in devices}
        self._healthy[resource] = {d.id for d in devices if d.health == HEALTHY}
        self._unhealthy[resource] = {d.id for d in devices if d.health != HEALTHY}

    def expire(self) -> bool:
        """Forget resources whose endpoint stopped more than the grace period ago; whether there were any."""
        now = self._clock()
        gone = [name for name in self._healthy.keys() | self._unhealthy.keys() if self._expired(name, now)]
        for name in gone:
            self.endpoints.pop(name, None)
            self._healthy.pop(name, None)
            self._unhealthy.pop(name, None)
            self._forgotten.add(name)
        return bool(gone)

    def _expired(self, resource: str, now: float) -> bool:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            return True
        return endpoint.stopped_at is not None and now - endpoint.stopped_at > self._grace_period

    # Counting

    def resources(self) -> tuple[str, ...]:
        """Names of the resources that the node reports."""
        return tuple(sorted(self._healthy.keys() | self._unhealthy.keys()))

    def healthy(self, resource: str) -> frozenset[str]:
        """Ids that could be handed out, held or free."""
        return frozenset(self._healthy.get(resource, ()))

    def capacity(self, resource: str) -> int:
        """Healthy and unhealthy devices; a duplicate id of two healths counts twice, as in a kubelet."""
        return len(self._healthy.get(resource, ())) + len(self._unhealthy.get(resource, ()))

    def registered(self, resource: str) -> bool:
        """Whether it has not been forgotten, nor never been there."""
        return resource in self._healthy

    def has(self, resource: str) -> bool:
        """Whether the device manager takes a request for it as its own: registered, or held by a pod."""
        return self.registered(resource) or any(
            resource in held for pod in self._held.values() for held in pod.values()
        )

    def forgotten(self, resource: str) -> bool:
        """Whether it was registered once and then forgotten: the node reports a capacity of 0."""
        return resource in self._forgotten

    # Allocations

    def hold(
        self,
        pod_uid: str,
        container: str,
        resource: str,
        devices: Mapping[int, Sequence[str]],
        response: bytes,
    ) -> None:
        """Note what a container was given."""
        kept = {node: tuple(ids) for node, ids in devices.items()}
        self._held.setdefault(pod_uid, {}).setdefault(container, {})[resource] = Allocation(kept, response)

    def held(self, pod_uid: str, container: str) -> Mapping[str, Allocation]:
        """What a container holds, by resource."""
        return self._held.get(pod_uid, {}).get(container, {})

    def in_use(self, resource: str) -> frozenset[str]:
        """Ids of a resource that any container holds, by the kubelet's books."""
        return self._in_use(resource, self._held)

    def _in_use(self, resource: str, pods: Iterable[str]) -> frozenset[str]:
        return frozenset(
            i
            for uid in pods
            for held in self._held[uid].values()
            if resource in held
            for i in held[resource].ids()
        )

    def reclaim(self, active: Collection[str]) -> None:
        """Free what ended pods held; `active`: uids of those that have not. Nothing is written."""
        for uid in self._held.keys() - set(active):
            del self._held[uid]

    def by_node(self, resource: str, ids: Sequence[str]) -> dict[int, list[str]]:
        """`ids` by NUMA node, a device on two nodes under both, NO_NODE for those without."""
        known = self.devices.get(resource, {})
        grouped: dict[int, list[str]] = {}
        for i in ids:
            device = known.get(i)
            for node in (device.numa if device is not None else None) or (NO_NODE,):
                grouped.setdefault(node, []).append(i)
        return grouped

    def checkpoint(self) -> Checkpoint:
        """All of it that is kept over a restart."""
        entries = [
            Entry(uid, container, resource, allocation.devices, allocation.response)
            for uid, containers in self._held.items()
            for container, held in containers.items()
            for resource, allocation in held.items()
        ]
        return Checkpoint(tuple(entries), {name: tuple(sorted(ids)) for name, ids in self._healthy.items()})

    # What a plugin must not do

    def _judge(self, resource: str, devices: Sequence[Device], old: Mapping[str, Device]) -> None:
        ids = Counter(device.id for device in devices)
        for i in sorted(i for i, times in ids.items() if times > 1):
            self._violation(f"{resource}: device {i!r} is listed more than once")
        elsewhere = {i: name for name, known in self.devices.items() if name != resource for i in known}
        for device in devices:
            if device != old.get(device.id):
                self._judge_device(resource, device, elsewhere.get(device.id))
        # kubelet: devices of an ended pod stay in its books until the next allocation, but no pod status
        # shows their health: dropping them does no harm.
        in_use = self._in_use(resource, self._held.keys() & self._active())
        for i in sorted((old.keys() & in_use) - ids.keys()):
            self._violation(f"{resource}: device {i!r} is held by a pod and is no longer advertised")

    def _judge_device(self, resource: str, device: Device, other: str | None) -> None:
        what = f"{resource}: device {device.id!r}"
        if not device.id:
            self._violation(f"{resource}: a device has an empty id")
        if device.health not in {HEALTHY, UNHEALTHY}:
            self._violation(f"{what}: health {device.health!r} is neither {HEALTHY} nor {UNHEALTHY}")
        if device.numa == ():
            self._violation(f"{what}: topology without a NUMA node hides it from GetAllocatableResources")
        for node in device.numa or ():
            if node not in self._numa_nodes:
                self._violation(f"{what}: NUMA node {node} is not one of this node's")
        if other is not None:
            self._violation(f"{what} is advertised by {other} too: the kubelet finds health by id alone")


_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_QUOTA_PREFIX = "requests."


def is_extended_resource(name: str) -> bool:
    """Whether the kubelet lets a plugin serve `name` (the API's rule for extended resources).

    One slash; a lower-case DNS domain that is not Kubernetes' own, short enough to be prefixed for
    quotas (253 characters); up to 63 letters, digits, `-`, `_`, `.` behind the slash.
    """
    domain, slash, rest = name.partition("/")
    if not slash or "kubernetes.io/" in name or name.startswith(_QUOTA_PREFIX):
        return False
    if len(_QUOTA_PREFIX + domain) > 253 or _DOMAIN.fullmatch(domain) is None:
        return False
    return len(rest) <= 63 and _NAME.fullmatch(rest) is not None
