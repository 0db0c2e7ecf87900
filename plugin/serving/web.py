"""The plugin's HTTP API: /metrics, /api/v1/devices, /-/healthy, /-/ready. All of it is read-only."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from aiohttp import web
from msgspec import Struct, field

from plugin.serving.metrics import ConfigStatus, Exposition
from plugin.serving.status import ResourceStatus
from runtime.exposition import CollectorBlocks, accepts_gzip, negotiate
from runtime.http.app import application
from runtime.http.bodies import ANSWER_WORKER, Body, BodyResponse
from runtime.text import visible


class StatusSource(Protocol):
    """The resources that the process serves."""

    def statuses(self) -> tuple[ResourceStatus, ...]:
        """The status of each resource."""
        ...

    @property
    def settled(self) -> bool:
        """Whether all configured resources have been started."""
        ...


class PluginSite(Struct, frozen=True):
    """What the responses are made of. `further`: metric families of other parts of the process."""

    fleet: StatusSource
    config: Callable[[], ConfigStatus]
    further: Sequence[CollectorBlocks] = ()
    exposition: Exposition = field(default_factory=Exposition)
    rendering: asyncio.Lock = field(default_factory=asyncio.Lock)


_SITE: web.AppKey[PluginSite] = web.AppKey("site", PluginSite)


class PluginDeviceDocument(msgspec.Struct, frozen=True):
    """One advertised device: times are RFC 3339 in UTC, `reason` is empty while it is healthy."""

    id: str
    health: str
    reason: str
    since: str
    numa_nodes: tuple[int, ...]
    attributes: dict[str, str]
    last_allocated: str | None


class PluginResourceDocument(msgspec.Struct, frozen=True):
    """One resource. `devices`: each PluginDeviceDocument as JSON, which takes a quarter of its memory."""

    name: str
    registered: bool
    streams: int
    devices: list[msgspec.Raw]


class PluginDevicesDocument(msgspec.Struct, frozen=True):
    """The document that the exporter reads."""

    version: int
    resources: list[PluginResourceDocument]


def build(site: PluginSite) -> web.Application:
    """The application."""
    app = application()
    app[_SITE] = site
    app.router.add_get("/", _index)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/api/v1/devices", _devices)
    app.router.add_get("/-/healthy", _healthy)
    app.router.add_get("/-/ready", _ready)
    return app


def document(statuses: tuple[ResourceStatus, ...]) -> PluginDevicesDocument:
    """Every device of every resource by advertised id. `parent`: the id of the device behind a share."""
    return PluginDevicesDocument(1, [_resource(status) for status in statuses])


def _resource(status: ResourceStatus) -> PluginResourceDocument:
    devices: list[msgspec.Raw] = []
    for entry in status.advertised:
        device = entry.known.device
        attributes = dict(device.attrs)
        if device.path:
            attributes["path"] = device.path
        if device.id != entry.id:
            attributes["parent"] = device.id
        named = status.last_allocated(entry.id)
        made = PluginDeviceDocument(
            id=entry.id,
            health="Healthy" if entry.known.healthy else "Unhealthy",
            reason=entry.known.reason,
            since=_stamp(entry.known.since),
            numa_nodes=device.numa_nodes,
            attributes=attributes,
            last_allocated=None if named is None else _stamp(named),
        )
        devices.append(msgspec.Raw(msgspec.json.encode(made)))
    return PluginResourceDocument(status.name, status.registered, status.streams, devices)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _index(_request: web.Request) -> web.Response:
    return web.Response(text="devicelens plugin: /metrics /api/v1/devices /-/healthy /-/ready\n")


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="healthy\n")


async def _ready(request: web.Request) -> web.Response:
    """Ready when every resource is served, or waits for what its state names."""
    fleet = request.app[_SITE].fleet
    statuses = fleet.statuses()
    lines = [f"{'ready' if s.ready else 'not ready'} {s.name}: {visible(s.state)}" for s in statuses]
    problem = request.app[_SITE].config().problem
    if problem:
        lines.append(f"configuration refused, the last one stays in force: {visible(problem)}")
    ready = fleet.settled and all(status.ready for status in statuses)
    if not fleet.settled:
        lines.append("not ready: resources are being started")
    return web.Response(text="\n".join(lines) + "\n", status=200 if ready else 503)


async def _devices(request: web.Request) -> web.Response:
    """Made in a thread, as /metrics is."""
    statuses = request.app[_SITE].fleet.statuses()
    worker = request.app[ANSWER_WORKER]
    body = await worker.made(request, lambda: Body((msgspec.json.encode(document(statuses)),)))
    return BodyResponse(body, content_type="application/json")


async def _metrics(request: web.Request) -> web.Response:
    """Rendered in a thread: ten thousand series would delay an Allocate call."""
    site = request.app[_SITE]
    form = negotiate(request.headers.get("Accept"))
    compress = accepts_gzip(request.headers.get("Accept-Encoding"))
    async with site.rendering:
        body = await asyncio.to_thread(
            site.exposition.document,
            site.fleet.statuses(),
            site.config(),
            form,
            compress=compress,
            further=[part.of(form) for part in site.further],
        )
    headers = {"Content-Type": form.value, "Vary": "Accept, Accept-Encoding"}
    if compress:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, headers=headers)
