"""The kubelet's part of Dynamic Resource Allocation: drivers, prepared claims, devices' health."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc

from kubelet.pb.dra.v1 import api_pb2, api_pb2_grpc
from kubelet.pb.drahealth.v1alpha1 import api_pb2 as health_pb2
from kubelet.pb.drahealth.v1alpha1 import api_pb2_grpc as health_grpc
from simulator.dra_allocation import results
from simulator.dra_claims import ClaimInfo, ClaimInfos, PreparedDevice, claim_names, named_claims
from simulator.dra_objects import CLAIMS, ObjectStore
from simulator.endpoint import CHANNEL_OPTIONS
from simulator.manager import RefusedError
from simulator.model import ContainerSpec, Pod, ResourceHealth
from simulator.rpc import RpcError, Tasks, call, target

SERVICE: Final = "v1.DRAPlugin"
PREPARE_TIMEOUT: Final = 45.0
WIPE_DELAY: Final = 30.0
"""Seconds after a driver's last connection is lost until its slices are deleted."""
HEALTH_TIMEOUT: Final = 30.0
"""Seconds that a device's health counts, unless the driver says otherwise."""
_HEALTH_RETRY: Final = 5.0
_LONGEST_MESSAGE: Final = 1024
_HEALTH: Final = {health_pb2.HEALTHY: "Healthy", health_pb2.UNHEALTHY: "Unhealthy"}


class PrepareError(Exception):
    """A pod's claims cannot be prepared; says it in the kubelet's words. The kubelet tries again."""


@dataclass(frozen=True, slots=True)
class _Health:
    health: str
    message: str
    until: float


@dataclass(slots=True, eq=False)
class _Driver:
    """A registered driver. Two with one name are an upgrade under way."""

    name: str
    endpoint: str
    channel: grpc.aio.Channel
    connected: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])


class DraManager:
    """Drivers and claims of one kubelet's life; `claims` outlive it, as the kubelet's file does."""

    def __init__(
        self,
        objects: ObjectStore,
        node: str,
        claims: ClaimInfos,
        *,
        tasks: Tasks,
        clock: Callable[[], float],
        changed: Callable[[], None],
        event: Callable[..., None],
        count: Callable[[str], None],
        wipe_delay: float = WIPE_DELAY,
    ) -> None:
        """`changed` is called when devices' health has changed."""
        self._objects = objects
        self._node = node
        self._claims = claims
        self._tasks = tasks
        self._clock = clock
        self._changed = changed
        self._event = event
        self._count = count
        self._wipe_delay = wipe_delay
        self._drivers: dict[str, list[_Driver]] = {}
        self._wipes: dict[str, asyncio.Task[None]] = {}
        self._health: dict[tuple[str, str, str], _Health] = {}

    # Drivers

    def wipe(self) -> None:
        """Delete the node's slices, as a kubelet that starts: no driver has registered yet."""
        self._objects.delete_slices(self._node)

    def validate(self, driver: str, endpoint: str, services: Sequence[str]) -> None:
        """Raises RefusedError unless one service is ours."""
        if SERVICE not in services:
            raise RefusedError(
                f"invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: "
                f"none of services supported by the plugin ({services}) are supported by the kubelet "
                f'(["{SERVICE}"])'
            )

    def register(self, driver: str, endpoint: str) -> None:
        """Connect to a driver. Raises RefusedError where its endpoint is registered already."""
        drivers = self._drivers.setdefault(driver, [])
        if any(one.endpoint == endpoint for one in drivers):
            raise RefusedError(f"endpoint {endpoint} already registered for DRA driver plugin {driver}")
        channel = grpc.aio.insecure_channel(target(endpoint), options=CHANNEL_OPTIONS)
        one = _Driver(driver, endpoint, channel)
        drivers.append(one)
        one.tasks = [self._tasks.spawn(self._follow(one)), self._tasks.spawn(self._watch(one))]
        self._sync(driver)
        self._event("driver registered", driver=driver, socket=endpoint)

    async def deregister(self, driver: str, endpoint: str) -> None:
        """A driver's socket left plugins_registry."""
        for one in tuple(self._drivers.get(driver, ())):
            if one.endpoint == endpoint:
                self._drivers[driver].remove(one)
                await self._close(one)
                self._event("driver left", driver=driver, socket=endpoint)
        self._sync(driver)

    async def close(self) -> None:
        """Cut every connection."""
        for one in [one for drivers in self._drivers.values() for one in drivers]:
            await self._close(one)
        self._drivers.clear()

    async def _close(self, one: _Driver) -> None:
        for task in one.tasks:
            task.cancel()
        await asyncio.gather(*one.tasks, return_exceptions=True)
        await one.channel.close(None)

    async def _follow(self, one: _Driver) -> None:
        """Note whether the driver is connected; connect again when it is not."""
        while True:
            state = one.channel.get_state(try_to_connect=True)
            connected = state is grpc.ChannelConnectivity.READY
            if connected != one.connected:
                one.connected = connected
                self._sync(one.name)
            await one.channel.wait_for_state_change(state)

    def _sync(self, driver: str) -> None:
        """kubelet: without a connection the driver's slices go after a while; what is queued stays queued."""
        wipe = self._wipes.get(driver)
        if any(one.connected for one in self._drivers.get(driver, ())):
            if wipe is not None:
                wipe.cancel()
                del self._wipes[driver]
        elif wipe is None or wipe.done():
            self._wipes[driver] = self._tasks.spawn(self._wipe(driver))

    async def _wipe(self, driver: str) -> None:
        await asyncio.sleep(self._wipe_delay)
        self._objects.delete_slices(self._node, driver)
        self._event("slices deleted", driver=driver)

    def _driver(self, name: str) -> _Driver:
        """kubelet: the newest one that is connected, else the newest. Raises PrepareError."""
        drivers = self._drivers.get(name)
        if not drivers:
            raise PrepareError(f"DRA driver {name} is not registered")
        return next((one for one in reversed(drivers) if one.connected), drivers[-1])

    # Health

    async def _watch(self, one: _Driver) -> None:
        """Follow the driver's health stream, whether it has one or not."""
        while True:
            stub: health_grpc.DRAResourceHealthAsyncStub = health_grpc.DRAResourceHealthStub(one.channel)
            self._count("NodeWatchResources")
            stream = stub.NodeWatchResources(health_pb2.NodeWatchResourcesRequest())
            try:
                while isinstance(answer := await call(stream.read()), health_pb2.NodeWatchResourcesResponse):
                    self._told(one.name, answer.devices)
            except RpcError:
                pass
            finally:
                stream.cancel()
                self._forget_health(one.name)
            await asyncio.sleep(_HEALTH_RETRY)

    def _told(self, driver: str, devices: Iterable[health_pb2.DeviceHealth]) -> None:
        before, now = dict(self._health), self._clock()
        for device in devices:
            seconds = device.health_check_timeout_seconds
            message = device.message
            if len(message) > _LONGEST_MESSAGE:
                message = message[: _LONGEST_MESSAGE - 3] + "..."
            key = (driver, device.device.pool_name, device.device.device_name)
            until = now + (seconds if seconds > 0 else HEALTH_TIMEOUT)
            self._health[key] = _Health(_HEALTH.get(device.health, "Unknown"), message, until)
        if any(
            (old := before.get(key)) is None or (old.health, old.message) != (new.health, new.message)
            for key, new in self._health.items()
        ):
            self._changed()

    def _forget_health(self, driver: str) -> None:
        """kubelet: a stream that ends clears the cache; pods' status follows with the next sync."""
        self._health = {key: health for key, health in self._health.items() if key[0] != driver}

    def health(self, pod: Pod, container: ContainerSpec) -> dict[str, tuple[ResourceHealth, ...]]:
        """The container's claims in allocatedResourcesStatus.

        kubelet 1.36: only what resources.claims name, so nothing of an extended resource; a device is named
        by its first CDI name, and each name is there once.
        """
        names = named_claims(pod)
        told: dict[str, tuple[ResourceHealth, ...]] = {}
        for ref in container.claim_refs:
            info = self._claims.get((pod.spec.namespace, names.get(ref.name, "")))
            if info is None:
                continue
            found: dict[str, ResourceHealth] = {}
            for driver, devices in info.devices.items():
                for device in devices:
                    base = ref.request.partition("/")[0]
                    if base and device.requests and base not in device.requests:
                        continue
                    i = device.cdi[0] if device.cdi else f"{driver}/{device.pool}/{device.device}"
                    found.setdefault(i, self._of(i, (driver, device.pool, device.device)))
            if found:
                name = f"claim:{ref.name}/{ref.request}" if ref.request else f"claim:{ref.name}"
                told[name] = tuple(found.values())
        return told

    def _of(self, resource_id: str, key: tuple[str, str, str]) -> ResourceHealth:
        known = self._health.get(key)
        if known is None or known.until < self._clock():
            return ResourceHealth(resource_id, "Unknown")
        return ResourceHealth(resource_id, known.health, known.message)

    # Claims

    async def prepare(self, pod: Pod) -> None:
        """Have drivers prepare the pod's claims (kubelet: prepareResources). Raises PrepareError."""
        namespace = pod.spec.namespace
        infos: list[ClaimInfo] = []
        for name in claim_names(pod):
            info = self._read(pod, name)
            for driver in info.devices:
                self._driver(driver)
            infos.append(info)
        batches: dict[str, list[ClaimInfo]] = {}
        for read in infos:
            info = self._claims.setdefault((namespace, read.name), read)
            if info.uid != read.uid:
                raise PrepareError(
                    f"old ResourceClaim with same name {read.name} and different UID {info.uid} still exists "
                    "(previous pod force-deleted?!)"
                )
            info.pods.add(pod.uid)
            if not info.prepared:
                for driver in info.devices:
                    batches.setdefault(driver, []).append(info)
        # kubelet: two pods that start together both ask; each answer's devices are added to the claim's.
        for driver, claims in batches.items():
            await self._prepare(driver, claims)
        for claims in batches.values():
            for info in claims:
                info.prepared = True
        self._event("claims prepared", pod=pod.full_name)

    def _read(self, pod: Pod, name: str) -> ClaimInfo:
        claim = self._objects.get(CLAIMS, name, pod.spec.namespace)
        if claim is None:
            raise PrepareError(
                f'fetch ResourceClaim {name}: resourceclaims.resource.k8s.io "{name}" not found'
            )
        uid = claim["metadata"]["uid"]
        if pod.uid not in {who["uid"] for who in claim.get("status", {}).get("reservedFor", ())}:
            raise PrepareError(
                f"pod {pod.spec.name} ({pod.uid}) is not allowed to use ResourceClaim {name} ({uid})"
            )
        return ClaimInfo(pod.spec.namespace, name, uid, {one["driver"]: [] for one in results(claim)})

    async def _prepare(self, driver: str, claims: Sequence[ClaimInfo]) -> None:
        self._count("NodePrepareResources")
        stub: api_pb2_grpc.DRAPluginAsyncStub = api_pb2_grpc.DRAPluginStub(self._driver(driver).channel)
        request = api_pb2.NodePrepareResourcesRequest(claims=map(_message, claims))
        try:
            answer = await call(stub.NodePrepareResources(request, timeout=PREPARE_TIMEOUT))
        except RpcError as error:
            raise PrepareError(f"NodePrepareResources: {error}") from error
        by_uid = {info.uid: info for info in claims}
        for uid, entry in answer.claims.items():
            if uid not in by_uid:
                raise PrepareError(f"NodePrepareResources returned result for unknown claim UID {uid}")
            if entry.error:
                raise PrepareError(
                    f"NodePrepareResources failed for ResourceClaim {by_uid[uid].name}: {entry.error}"
                )
            by_uid[uid].devices[driver] += [_device(device) for device in entry.devices]
        if skipped := len(claims) - len(answer.claims):
            raise PrepareError(f"NodePrepareResources skipped {skipped} ResourceClaims")

    async def unprepare(self, pod: Pod) -> None:
        """Have drivers unprepare claims that no other pod uses. Raises PrepareError."""
        batches: dict[str, list[ClaimInfo]] = {}
        done: list[tuple[str, str]] = []
        for name in claim_names(pod):
            info = self._claims.get((pod.spec.namespace, name))
            if info is None:
                continue
            if info.pods - {pod.uid}:
                info.pods.discard(pod.uid)
                continue
            done.append((info.namespace, info.name))
            for driver in info.devices:
                batches.setdefault(driver, []).append(info)
        for driver, claims in batches.items():
            await self._unprepare(driver, claims)
        for key in done:
            self._claims.pop(key, None)

    async def _unprepare(self, driver: str, claims: Sequence[ClaimInfo]) -> None:
        self._count("NodeUnprepareResources")
        stub: api_pb2_grpc.DRAPluginAsyncStub = api_pb2_grpc.DRAPluginStub(self._driver(driver).channel)
        request = api_pb2.NodeUnprepareResourcesRequest(claims=map(_message, claims))
        try:
            answer = await call(stub.NodeUnprepareResources(request, timeout=PREPARE_TIMEOUT))
        except RpcError as error:
            raise PrepareError(f"NodeUnprepareResources: {error}") from error
        for uid, entry in answer.claims.items():
            if entry.error:
                raise PrepareError(f"NodeUnprepareResources failed for ResourceClaim {uid}: {entry.error}")
        if skipped := len(claims) - len(answer.claims):
            raise PrepareError(f"NodeUnprepareResources skipped {skipped} ResourceClaims")


def _message(info: ClaimInfo) -> api_pb2.Claim:
    return api_pb2.Claim(namespace=info.namespace, uid=info.uid, name=info.name)


def _device(device: api_pb2.Device) -> PreparedDevice:
    return PreparedDevice(
        device.pool_name,
        device.device_name,
        tuple(device.cdi_device_ids),
        device.share_id if device.HasField("share_id") else None,
        tuple(device.request_names),
    )
