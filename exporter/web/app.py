"""The exporter's HTTP application: every route. No request reaches the kubelet or changes state."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from aiohttp import hdrs, web

from exporter.mapping.state import Freshness
from exporter.views.wording import spelled
from exporter.web.answers import Handler, wants_gzip
from exporter.web.events import Events
from exporter.web.site import MetricsSource, Site, judge
from runtime.exposition import negotiate
from runtime.http.app import application, problem
from runtime.http.bodies import Body, BodyResponse

if TYPE_CHECKING:
    from exporter.web.pages.handlers import Pages

__all__ = ["MetricsSource", "Site", "build"]

T = TypeVar("T")

_API: Final = "devices, pods, claims, resources, anomalies, explain, history, status, events"
"""What is below /api/v1."""


def build(site: Site) -> web.Application:
    """The exporter's HTTP application over `site`."""
    events = Events(site)
    api, pages = _Lazy(lambda: _api(site, events)), _Lazy(lambda: _pages(site))
    page = pages.handler

    def data(path: str) -> web.RouteDef:
        return web.get(path, api.handler(lambda found: found[path]))

    @web.middleware
    async def not_found(request: web.Request, handler: Handler) -> web.StreamResponse:
        """404: a problem below /api/, a page for a browser, otherwise a line of text."""
        try:
            return await handler(request)
        except web.HTTPNotFound:
            path = spelled(request.path)
            if request.path.startswith("/api/"):
                return problem(404, f"nothing is at {path}: below /api/v1/ there are {_API}")
            if "text/html" in request.headers.get(hdrs.ACCEPT, ""):
                words = f"This exporter serves nothing at {path}."
                return await (await pages.get()).message(404, "Nothing is here", words)
            return web.Response(text=f"nothing is at {path}\n", status=404)

    probes = Probes(site)
    app = application()
    app.middlewares.append(not_found)
    app.add_routes(
        [
            web.get("/", page(lambda found: found.status)),
            web.get(r"/devices/{path:[\s\S]*}", page(lambda found: found.device)),
            web.get(r"/pods/{path:[\s\S]*}", page(lambda found: found.pod)),
            web.get(r"/claims/{path:[\s\S]*}", page(lambda found: found.claim)),
            web.get("/history", page(lambda found: found.history)),
            web.get("/metrics", probes.metrics),
            web.get("/-/healthy", probes.healthy),
            web.get("/-/ready", probes.ready),
            *map(data, ("/api/openapi.json", "/api/v1", "/api/v1/")),
            *(data(f"/api/v1/{name}") for name in _API.split(", ")),
            web.get("/static/{name}", page(lambda found: found.assets.serve)),
        ]
    )
    app.on_shutdown.append(events.end)
    app.on_response_prepare.append(_errors_are_not_cached)
    return app


class _Lazy(Generic[T]):
    """Imports the API, or the pages, for the first request of it. Most nodes are only scraped: without both
    they need 6 MiB less, and less time to start.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._turn = asyncio.Lock()
        self._made: T | None = None

    def handler(self, of: Callable[[T], Handler]) -> Handler:
        """The handler `of` the API or the pages."""

        async def handler(request: web.Request) -> web.StreamResponse:
            return await of(await self.get())(request)

        return handler

    async def get(self) -> T:
        """The API or the pages."""
        async with self._turn:
            if self._made is None:
                # In a thread: the pages take a third of a second.
                self._made = await asyncio.to_thread(self._make)
            return self._made


def _api(site: Site, events: Events) -> Mapping[str, Handler]:
    """The handler of each address of the API."""
    from exporter.web.api import Api  # noqa: PLC0415 -- see _Lazy

    return Api(site, events).handlers


def _pages(site: Site) -> "Pages":
    from exporter.web.pages.handlers import Pages  # noqa: PLC0415 -- see _Lazy

    return Pages(site)


async def _errors_are_not_cached(_request: web.Request, response: web.StreamResponse) -> None:
    # Caches may keep a 404 (RFC 9110, section 15.1), which can be wrong a second later.
    if response.status >= web.HTTPBadRequest.status_code:
        response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")


class Probes:
    """/-/healthy, /-/ready and /metrics."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def healthy(self, _request: web.Request) -> web.Response:
        """200: the event loop answers."""
        return _line("healthy")

    async def ready(self, _request: web.Request) -> web.Response:
        """200 while the mapping is fresh; else 503 with the reason."""
        site = self._site
        standing = judge(site.states.state, site.clock(), site.stale_after)
        if standing.freshness is Freshness.FRESH:
            return _line(f"ready: {standing.line}")
        return _line(f"not ready: {standing.line}", status=503)

    async def metrics(self, request: web.Request) -> web.Response:
        """The exposition, in the format and the encoding that the client accepts."""
        form = negotiate(",".join(request.headers.getall(hdrs.ACCEPT, [])) or None)
        compress = wants_gzip(request)
        pieces = await self._site.metrics.document(form, compress=compress)
        response = BodyResponse(Body(pieces, gzipped=compress), headers={hdrs.CONTENT_TYPE: form.value})
        response.headers[hdrs.VARY] = f"{hdrs.ACCEPT}, {hdrs.ACCEPT_ENCODING}"
        if compress:
            response.headers[hdrs.CONTENT_ENCODING] = "gzip"
        return response


def _line(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=f"{text}\n", status=status, headers={hdrs.CACHE_CONTROL: "no-store"})
