"""A driver for Dynamic Resource Allocation, for tests: with the simulated kubelet, or on a real node.

It registers, publishes ResourceSlices, prepares claims, writes CDI specifications, and reports health, as
drivers for hardware do; its devices exist in the slices alone.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import aiohttp

from kubelet.pb.dra.v1 import api_pb2
from kubelet.pb.drahealth.v1alpha1 import api_pb2 as health_pb2
from kubelet.pb.pluginregistration.v1 import api_pb2 as registration
from simulator.cdi import Specifications
from simulator.dra_allocation import DeviceName, name_of, results
from simulator.dra_objects import API_VERSION, Object, resource_slice
from simulator.rpc import Context, RawService, ServedSocket, Tasks

SERVICE: Final = "v1.DRAPlugin"
HEALTH_SERVICE: Final = "v1alpha1.DRAResourceHealth"
PREPARE_SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_SLICES: Final = f"/apis/{API_VERSION}/resourceslices"
_DEVICES_IN_SLICE: Final = 64
"""Kubernetes: 128, but 64 where devices have taints or counters."""
_HEALTH: Final = {
    "Healthy": health_pb2.HEALTHY,
    "Unhealthy": health_pb2.UNHEALTHY,
    "Unknown": health_pb2.UNKNOWN,
}

_API_FAILURES: Final = (aiohttp.ClientError, TimeoutError, ValueError)

Api = Callable[[str, str, Object | None], Awaitable[tuple[int, Object]]]
"""A request to the API server: method, path with query, and body; gives the answer's status and document."""


def http_api(session: aiohttp.ClientSession) -> Api:
    """Requests by a session that has the API server's address, certificates and token."""

    async def ask(method: str, path: str, body: Object | None) -> tuple[int, Object]:
        async with session.request(method, path, json=body) as response:
            return response.status, await response.json()

    return ask


class PrepareError(Exception):
    """A claim cannot be prepared; says why."""


class Prepared(NamedTuple):
    """A claim that is prepared: its devices as its allocation names them."""

    namespace: str
    name: str
    results: list[Object]


class DraDriver:
    """Serves one driver below a kubelet's root. An async context manager.

    `prepared` are claims by uid. `health` is what the health stream says, by device: its health and a
    message; a device that is not in it is Healthy.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        node: str,
        devices: Iterable[Object],
        *,
        api: Api,
        cdi_root: Path,
        counters: Mapping[str, Mapping[str, str]] | None = None,
        pool: str = "",
        cdi_class: str = "claim",
        cdi_name_per_device: bool = False,
        cdi_edits: Mapping[str, Object] | None = None,
        reports_health: bool = True,
        interval: float = 1.0,
        health_interval: float = 10.0,
        seen_root: Path | None = None,
    ) -> None:
        """`devices` and `counters` as in a slice. `pool`: empty for the node's name.

        `cdi_name_per_device`: each device has a CDI name of its own; else one name stands for all devices
        of a request. `cdi_edits`: container edits by device. `interval`: seconds between two checks of the
        slices. `seen_root`: `root` as the kubelet sees it, if that differs.
        """
        self.name = name
        self.prepared: dict[str, Prepared] = {}
        self.notified: list[registration.RegistrationStatus] = []
        self.devices: dict[str, Object] = {}
        self.fields_dropped = False
        """Whether the API server left out something of a slice: a gate is off there."""
        self.health: dict[str, tuple[str, str]] = {}
        self._node = node
        self._pool = pool or node
        self._api = api
        self._cdi = Specifications(cdi_root, name, cdi_class)
        self._cdi_name_per_device = cdi_name_per_device
        self._cdi_edits = cdi_edits or {}
        self._reports_health = reports_health
        self._interval = interval
        self._health_interval = health_interval
        directory = root / "plugins" / name
        self._directory = directory
        self._state = directory / "prepared.json"
        self.socket = directory / "dra.sock"
        self._endpoint = (seen_root or root) / "plugins" / name / self.socket.name
        services = [
            RawService(
                PREPARE_SERVICE,
                {"NodePrepareResources": self._prepare_all, "NodeUnprepareResources": self._unprepare_all},
            )
        ]
        if reports_health:
            services.append(RawService(HEALTH_SERVICE, {}, {"NodeWatchResources": self._watch_health}))
        self._service = ServedSocket(self.socket, directory / "s", services)
        registrar = RawService(
            "pluginregistration.Registration",
            {"GetInfo": self._info, "NotifyRegistrationStatus": self._notified},
        )
        self.registrar = root / "plugins_registry" / f"{name}-reg.sock"
        self._registrar = ServedSocket(self.registrar, directory / "r", (registrar,))
        self._tasks = Tasks()
        self._changed = asyncio.Event()
        self._generation = 0
        self._wanted: list[Object] = []
        self._kept: dict[str, Object] = {}
        self._publishing = asyncio.Lock()
        self._offer(devices, counters)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Publish, serve, and register: the service is up before the registrar's socket appears."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self.registrar.parent.mkdir(parents=True, exist_ok=True)
        self._read_state()
        with suppress(*_API_FAILURES):
            await self._reconcile_orphans()
        self.socket.unlink(missing_ok=True)
        self.registrar.unlink(missing_ok=True)
        await self._service.open(renamed=False)
        with suppress(*_API_FAILURES):
            await self.publish()
        await self._registrar.open(renamed=False)
        self._tasks.spawn(self._keep_published())

    async def stop(self) -> None:
        """Go away: sockets go, slices and prepared claims stay."""
        await self._tasks.cancel()
        await self._registrar.close(remove=True)
        await self._service.close(remove=True)

    # Slices

    async def offer(
        self, devices: Iterable[Object], counters: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """Offer other devices, in a new generation of the pool."""
        async with self._publishing:
            self._offer(devices, counters)
        await self.publish()

    def _offer(
        self, devices: Iterable[Object], counters: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.devices = {one["name"]: one for one in devices}
        self._generation += 1
        offered = list(self.devices.values())
        parts = [offered[n : n + _DEVICES_IN_SLICE] for n in range(0, len(offered), _DEVICES_IN_SLICE)] or [
            []
        ]
        shared = [counters] if counters else []
        count = len(parts) + len(shared)
        self._wanted = [
            resource_slice(self.name, self._node, part, pool=self._pool, count=count) for part in parts
        ] + [
            resource_slice(self.name, self._node, (), pool=self._pool, count=count, counters=one)
            for one in shared
        ]
        for n, one in enumerate(self._wanted):
            one["metadata"]["generateName"] = f"{n:05d}-{self.name}-{self._node}-"
        self._kept = {}

    async def publish(self) -> None:
        """Make the API server's slices those that are offered; writes only what differs.

        Slices that vanish come back: the kubelet deletes them when it starts, and when the driver was away.
        """
        async with self._publishing:
            selector = f"fieldSelector=spec.nodeName={self._node},spec.driver={self.name}"
            status, listed = await self._api("GET", f"{_SLICES}?{selector}", None)
            if status != 200:
                return
            found = {one["metadata"].get("generateName", ""): one for one in listed["items"]}
            newest = max((one["spec"]["pool"]["generation"] for one in listed["items"]), default=0)
            if not self._kept:
                self._generation = max(self._generation, newest + 1)
            wanted = [one["metadata"]["generateName"] for one in self._wanted]
            for one in listed["items"]:
                if one["metadata"].get("generateName") not in wanted:
                    await self._api("DELETE", f"{_SLICES}/{one['metadata']['name']}", None)
            for one in self._wanted:
                await self._publish(one, found.get(one["metadata"]["generateName"]))

    async def _publish(self, wanted: Object, found: Object | None) -> None:
        key = wanted["metadata"]["generateName"]
        if found is not None and found["spec"] == self._kept.get(key):
            return
        spec = json.loads(json.dumps(wanted["spec"]))
        spec["pool"]["generation"] = self._generation
        meta = wanted["metadata"] | await self._owner() if found is None else found["metadata"]
        document = {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": meta, "spec": spec}
        path = _SLICES if found is None else f"{_SLICES}/{meta['name']}"
        status, kept = await self._api("POST" if found is None else "PUT", path, document)
        if status in {200, 201}:
            self._kept[key] = kept["spec"]
            self.fields_dropped = self.fields_dropped or not _has(kept["spec"], spec)

    async def _owner(self) -> Object:
        status, node = await self._api("GET", f"/api/v1/nodes/{self._node}", None)
        if status != 200:
            return {}
        uid = node["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid, "controller": True}
        return {"ownerReferences": [owner]}

    async def _keep_published(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            with suppress(*_API_FAILURES):
                await self.publish()

    # Registration

    async def _info(self, _content: bytes, _context: Context) -> bytes:
        versions = [SERVICE, *([HEALTH_SERVICE] if self._reports_health else [])]
        return registration.PluginInfo(
            type="DRAPlugin", name=self.name, endpoint=str(self._endpoint), supported_versions=versions
        ).SerializeToString()

    async def _notified(self, content: bytes, _context: Context) -> bytes:
        self.notified.append(registration.RegistrationStatus.FromString(content))
        return b""

    # Claims

    async def _prepare_all(self, content: bytes, _context: Context) -> bytes:
        answer = api_pb2.NodePrepareResourcesResponse()
        for claim in api_pb2.NodePrepareResourcesRequest.FromString(content).claims:
            entry = answer.claims[claim.uid]
            try:
                entry.devices.extend(await self._prepare(claim))
            except (PrepareError, OSError, *_API_FAILURES) as error:
                entry.error = str(error)
        return answer.SerializeToString()

    async def _prepare(self, claim: api_pb2.Claim) -> Sequence[api_pb2.Device]:
        """Prepare a claim, or prepare it again."""
        path = f"/apis/{API_VERSION}/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        status, document = await self._api("GET", path, None)
        if status != 200:
            raise PrepareError(f"claim {claim.namespace}/{claim.name}: the API server answers {status}")
        if document["metadata"]["uid"] != claim.uid:
            raise PrepareError(f"claim {claim.namespace}/{claim.name}: it was made anew")
        ours = [one for one in results(document) if one["driver"] == self.name]
        in_use = self._in_use(claim.uid)
        for one in ours:
            if name_of(one) in in_use and "shareID" not in one and not one.get("adminAccess"):
                raise PrepareError(f"device {one['device']} is prepared for claim {in_use[name_of(one)]}")
        self.prepared[claim.uid] = Prepared(claim.namespace, claim.name, ours)
        self._write_state()
        self._write_cdi(claim.uid, ours)
        return [
            api_pb2.Device(
                request_names=[_base(one)],
                pool_name=one["pool"],
                device_name=one["device"],
                cdi_device_ids=[f"{self._cdi.kind}={self._cdi_name(claim.uid, one)}"],
                share_id=one.get("shareID"),
            )
            for one in ours
        ]

    def _in_use(self, uid: str) -> dict[DeviceName, str]:
        """Devices that other claims hold alone, and the claims."""
        return {
            name_of(one): f"{claim.namespace}/{claim.name}"
            for other, claim in self.prepared.items()
            for one in claim.results
            if other != uid and "shareID" not in one and not one.get("adminAccess")
        }

    def _cdi_name(self, uid: str, one: Object) -> str:
        return f"claim-{uid}-{one['device'] if self._cdi_name_per_device else _base(one)}"

    def _write_cdi(self, uid: str, ours: Iterable[Object]) -> None:
        devices: dict[str, list[Object]] = {}
        for one in ours:
            name = one["device"]
            default = {"env": [f"CLAIMED_{name.upper().replace('-', '_')}={one['pool']}/{name}"]}
            devices.setdefault(self._cdi_name(uid, one), []).append(self._cdi_edits.get(name, default))
        self._cdi.write(uid, devices)

    async def _unprepare_all(self, content: bytes, _context: Context) -> bytes:
        answer = api_pb2.NodeUnprepareResourcesResponse()
        for claim in api_pb2.NodeUnprepareResourcesRequest.FromString(content).claims:
            self._unprepare(claim.uid)
            answer.claims[claim.uid].SetInParent()
        return answer.SerializeToString()

    def _unprepare(self, uid: str) -> None:
        """Forget a claim, known or not."""
        self._cdi.remove(uid)
        if self.prepared.pop(uid, None) is not None:
            self._write_state()

    async def _reconcile_orphans(self) -> None:
        """Forget claims that exist no more; write missing CDI files of the others again."""
        for uid, claim in tuple(self.prepared.items()):
            path = f"/apis/{API_VERSION}/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
            status, document = await self._api("GET", path, None)
            if status == 404 or (status == 200 and document["metadata"]["uid"] != uid):
                self._unprepare(uid)
            elif not self._cdi.path(uid).exists():
                self._write_cdi(uid, claim.results)
        for uid in self._cdi.uids() - self.prepared.keys():
            self._cdi.remove(uid)

    def _read_state(self) -> None:
        if self._state.exists():
            kept: dict[str, Any] = json.loads(self._state.read_text(encoding="utf-8"))
            self.prepared = {uid: Prepared(*claim) for uid, claim in kept.items()}

    def _write_state(self) -> None:
        temporary = self._state.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.prepared), encoding="utf-8")
        temporary.replace(self._state)

    # Health

    def set_health(self, device: str, health: str, message: str = "") -> None:
        """What the health stream says of a device: Healthy, Unhealthy or Unknown."""
        self.health[device] = (health, message)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch_health(self, _content: bytes, _context: Context) -> AsyncIterator[bytes]:
        """The complete list: at once, after each change, and within the kubelet's time limit."""
        while True:
            changed = self._changed
            answer = health_pb2.NodeWatchResourcesResponse()
            for name in self.devices:
                health, message = self.health.get(name, ("Healthy", ""))
                answer.devices.add(
                    device=health_pb2.DeviceIdentifier(pool_name=self._pool, device_name=name),
                    health=_HEALTH[health],
                    last_updated_time=int(time.time()),
                    message=message,
                )
            yield answer.SerializeToString()
            try:
                async with asyncio.timeout(self._health_interval):
                    await changed.wait()
            except TimeoutError:
                continue


def _has(kept: Any, sent: Any) -> bool:
    """Whether all that was sent was kept; the API server adds a taint's time."""
    if isinstance(sent, dict):
        return isinstance(kept, dict) and all(_has(kept.get(key), value) for key, value in sent.items())
    if isinstance(sent, list):
        return isinstance(kept, list) and len(kept) == len(sent) and all(map(_has, kept, sent))
    return bool(kept == sent)


def _base(one: Object) -> str:
    """The request of a result, without its subrequest."""
    request: str = one["request"]
    return request.partition("/")[0]
