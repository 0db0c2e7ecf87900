"""What the kubelet reports about devices: held ids, allocatable ids, and the answers in its checkpoint."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from msgspec import Struct

from kubelet.checkpoint import CheckpointError, DeviceAssignment, read_checkpoint
from kubelet.paths import KubeletPaths
from kubelet.pb.podresources.v1.api_pb2 import ListPodResourcesResponse
from kubelet.podresources import KubeletClient, KubeletError, decode_allocatable, decode_list
from plugin.devices.device import HeldIds, Holding
from plugin.devices.ended_pods import EndedPods, ListAnswer
from plugin.serving.blocking import Offload, StuckError
from runtime.clock import Clock
from runtime.log import Log

CALL_TIMEOUT: Final = 2.0
CHECKPOINT_TIMEOUT: Final = 5.0
SHARED_FOR: Final = 1.0
"""Seconds for which an answer serves all resources: the kubelet takes 100 calls a second from all clients."""

T = TypeVar("T")

_log = Log("pod-resources")


class KubeletState:
    """Reads the PodResources API and the checkpoint.

    Every method returns None where the kubelet gives no answer; callers then draw no conclusion.
    """

    def __init__(self, paths: KubeletPaths, clock: Clock, node_name: str) -> None:
        """`node_name`: the end of static pods' names."""
        self._paths = paths
        self._clock = clock
        self._static = f"-{node_name.lower()}"
        self._offload = Offload()
        self._ended_pods = EndedPods()
        self._compared = _SharedAnswer(self._compare, clock)
        self._listed = _SharedAnswer(self._list, clock)
        self._allocatable = _SharedAnswer(self._get_allocatable, clock)
        self._assignments = _SharedAnswer(self._read_checkpoint, clock)

    async def listed(self) -> HeldIds | None:
        """Ids that active pods hold, by List. Ordinary init containers are not in it."""
        return await self._listed.get()

    async def allocatable(self) -> HeldIds | None:
        """Healthy ids by GetAllocatableResources."""
        return await self._allocatable.get()

    async def assigned(self) -> HeldIds | None:
        """Ids by the checkpoint, including those of pods that ended since the last allocation."""
        assignments = await self._assignments.get()
        return None if assignments is None else _by_resource((a.resource, a.ids) for a in assignments)

    async def may_be_held(self, resource: str) -> frozenset[str] | None:
        """Ids of `resource` by List, or by the checkpoint unless the pod has ended.

        None unless both answer.
        """
        compared = await self._compared.get()
        if compared is None:
            return None
        ended = self._ended_pods.ended
        assigned = (a.ids for a in compared.assignments if a.resource == resource and a.pod_uid not in ended)
        return compared.held.get(resource, frozenset()).union(*assigned)

    async def with_listed_pod(self, resource: str) -> frozenset[str] | None:
        """Ids of `resource` by the checkpoint whose pod List has named; None unless both answer."""
        compared = await self._compared.get()
        if compared is None:
            return None
        listed = self._ended_pods.listed
        ids = (a.ids for a in compared.assignments if a.resource == resource and a.pod_uid in listed)
        return frozenset[str]().union(*ids)

    async def held(self) -> HeldIds | None:
        """Ids by List, or by the checkpoint where List names none.

        List answers without pods for about a second after the kubelet has restarted.
        """
        return await self.listed() or await self.assigned()

    async def holdings(self) -> dict[Holding, frozenset[str]] | None:
        """Identifiers of the physical devices behind each id of `held`, as far as the checkpoint has them."""
        held = await self.held()
        if held is None:
            return None
        found: defaultdict[Holding, frozenset[str]] = defaultdict(frozenset)
        for assignment in await self._assignments.get() or ():
            for device_id in assignment.ids:
                found[assignment.resource, device_id] |= assignment.identifiers
        return {(name, i): found.get((name, i), frozenset()) for name, ids in held.items() for i in ids}

    async def _compare(self) -> "_Compared":
        # In this order: see EndedPods.observe.
        assignments = await self._read_checkpoint()
        at, before = self._clock.monotonic(), self._socket()
        answer = await self._fetch_list()
        held = _held(answer)
        synced = any(not pod.name.endswith(self._static) for pod in answer.pod_resources)
        kubelet = before if before == self._socket() else None
        pods: defaultdict[str, frozenset[Holding]] = defaultdict(frozenset)
        for each in assignments:
            if each.pod_uid:
                pods[each.pod_uid] |= {(each.resource, device_id) for device_id in each.ids}
        self._ended_pods.observe(pods, ListAnswer(held, kubelet, synced, at))
        return _Compared(assignments, held)

    def _socket(self) -> tuple[int, int] | None:
        """Identifies the kubelet's process: each makes a socket of its own."""
        try:
            status = self._paths.pod_resources_socket.stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    async def _list(self) -> HeldIds:
        return _held(await self._fetch_list())

    async def _fetch_list(self) -> ListPodResourcesResponse:
        async with self._client() as client:
            return decode_list((await client.fetch_raw(allocatable=False)).listed)

    async def _get_allocatable(self) -> HeldIds | None:
        async with self._client() as client:
            answer = await client.fetch_allocatable()
        devices = None if answer is None else decode_allocatable(answer).devices
        return None if devices is None else _by_resource((d.resource_name, d.device_ids) for d in devices)

    async def _read_checkpoint(self) -> tuple[DeviceAssignment, ...]:
        return await self._offload.run(
            lambda: read_checkpoint(self._paths.checkpoint), limit=CHECKPOINT_TIMEOUT
        )

    def _client(self) -> KubeletClient:
        # A connection for each call: calls are rare, and the kubelet may have restarted since the last one.
        return KubeletClient(self._paths.pod_resources_socket, timeout=CALL_TIMEOUT)


class _SharedAnswer(Generic[T]):
    """The newest answer of `fetch`, None where it failed. Fetched again after SHARED_FOR."""

    def __init__(self, fetch: Callable[[], Awaitable[T | None]], clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = asyncio.Lock()
        self._answer: T | None = None
        self._fetched_at = float("-inf")

    async def get(self) -> T | None:
        async with self._lock:
            if self._clock.monotonic() - self._fetched_at >= SHARED_FOR:
                try:
                    self._answer = await self._fetch()
                except (KubeletError, CheckpointError, StuckError, ValueError) as error:
                    _log.debug("no answer", reason=error)
                    self._answer = None
                self._fetched_at = self._clock.monotonic()
            return self._answer


class _Compared(Struct, frozen=True):
    """The checkpoint, and what List named just after."""

    assignments: tuple[DeviceAssignment, ...]
    held: HeldIds


def _held(answer: ListPodResourcesResponse) -> HeldIds:
    containers = (container for pod in answer.pod_resources for container in pod.containers)
    return _by_resource((d.resource_name, d.device_ids) for c in containers for d in c.devices)


def _by_resource(entries: Iterable[tuple[str, Iterable[str]]]) -> HeldIds:
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for resource, some in entries:
        ids[resource].update(some)
    return {resource: frozenset(found) for resource, found in ids.items()}
