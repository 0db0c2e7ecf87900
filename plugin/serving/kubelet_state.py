"""What the kubelet reports about devices: held ids, allocatable ids, and the answers in its checkpoint."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from kubelet.checkpoint import CheckpointError, DeviceAssignment, read_checkpoint
from kubelet.paths import KubeletPaths
from kubelet.podresources import KubeletClient, KubeletError, decode_allocatable, decode_list
from plugin.devices.device import HeldIds, Holding
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

    def __init__(self, paths: KubeletPaths, clock: Clock) -> None:
        self._paths = paths
        self._offload = Offload()
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
        """Ids of `resource` by List or the checkpoint; None unless both answer."""
        listed, assigned = await self.listed(), await self.assigned()
        if listed is None or assigned is None:
            return None
        return listed.get(resource, frozenset()) | assigned.get(resource, frozenset())

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

    async def _list(self) -> HeldIds:
        async with self._client() as client:
            answer = decode_list((await client.fetch_raw(allocatable=False)).listed)
        containers = (container for pod in answer.pod_resources for container in pod.containers)
        return _by_resource((d.resource_name, d.device_ids) for c in containers for d in c.devices)

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


def _by_resource(entries: Iterable[tuple[str, Iterable[str]]]) -> HeldIds:
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for resource, some in entries:
        ids[resource].update(some)
    return {resource: frozenset(found) for resource, found in ids.items()}
