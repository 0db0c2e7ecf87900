"""The application: every route. Nothing here asks the kubelet, and nothing changes state.

/-/healthy, /-/ready and /metrics.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from exporter.mapping.state import Freshness
from exporter.views.wording import judge
from exporter.web.answers import wants_gzip
from exporter.web.api import Api, HistoryApi
from exporter.web.assets import Assets
from exporter.web.endpoints import EVENTS, endpoint
from exporter.web.events import Events
from exporter.web.pages.serving import Pages
from exporter.web.site import MetricsSource, Site
from runtime.exposition import negotiate
from runtime.http import application


class Probes:
    """What Kubernetes and Prometheus ask."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def healthy(self, _request: web.Request) -> web.Response:
        """The process lives: its loop has answered."""
        return _line("healthy")

    async def ready(self, _request: web.Request) -> web.Response:
        """200 while the mapping is fresh; else 503, with the reason."""
        site = self._site
        standing = judge(site.states.state, site.clock(), site.stale_after)
        if standing.freshness is Freshness.FRESH:
            return _line(f"ready: {standing.line}")
        return _line(f"not ready: {standing.line}", status=503)

    async def metrics(self, request: web.Request) -> web.Response:
        """The exposition, in the format and the coding that the client asks for."""
        form = negotiate(",".join(request.headers.getall(hdrs.ACCEPT, [])) or None)
        compress = wants_gzip(request)
        body = await self._site.metrics.document(form, compress=compress)
        response = web.Response(body=body, headers={hdrs.CONTENT_TYPE: form.value})
        response.headers[hdrs.VARY] = f"{hdrs.ACCEPT}, {hdrs.ACCEPT_ENCODING}"
        if compress:
            response.headers[hdrs.CONTENT_ENCODING] = "gzip"
        return response


def _line(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=f"{text}\n", status=status, headers={hdrs.CACHE_CONTROL: "no-store"})


if TYPE_CHECKING:
    from exporter.web.pages.serving import FactPages

__all__ = ["MetricsSource", "Site", "build"]


def build(site: Site) -> web.Application:
    """The exporter's HTTP application over `site`."""
    assets = Assets()
    pages, api, events, probes = Pages(site, assets), Api(site), Events(site), Probes(site)
    facts = _facts(site, assets)
    app = application()
    app.middlewares.append(pages.not_found)
    app.add_routes(
        [
            web.get("/", pages.status),
            web.get(r"/devices/{path:[\s\S]*}", facts("device")),
            web.get(r"/pods/{path:[\s\S]*}", facts("pod")),
            web.get(r"/claims/{path:[\s\S]*}", facts("claim")),
            web.get("/history", facts("history")),
            web.get("/metrics", probes.metrics),
            web.get("/-/healthy", probes.healthy),
            web.get("/-/ready", probes.ready),
            web.get("/api/v1/devices", endpoint(api.devices)),
            web.get("/api/v1/pods", endpoint(api.pods)),
            web.get("/api/v1/claims", endpoint(api.claims)),
            web.get("/api/v1/resources", endpoint(api.resources)),
            web.get("/api/v1/anomalies", endpoint(api.anomalies)),
            web.get("/api/v1/status", endpoint(api.status)),
            web.get("/api/v1/explain", endpoint(_explain(site))),
            web.get("/api/v1/history", endpoint(HistoryApi(site).history)),
            web.get("/api/v1/events", endpoint(events.stream, EVENTS)),
            web.get("/api/v1", endpoint(_index(site))),
            web.get("/api/v1/", endpoint(_index(site))),
            web.get("/api/openapi.json", endpoint(_openapi)),
            web.get("/static/{name}", assets.serve),
        ]
    )
    app.on_shutdown.append(events.end)
    app.on_response_prepare.append(_keep_no_error)
    return app


async def _keep_no_error(_request: web.Request, response: web.StreamResponse) -> None:
    """A 404 might be kept by whoever is in between (RFC 9110, section 15.1), and be wrong a second later."""
    if response.status >= web.HTTPBadRequest.status_code:
        response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")


def _facts(site: Site, assets: Assets) -> Callable[[str], Handler]:
    @cache
    def pages() -> "FactPages":
        # Imported for the first of them that is asked for, with what renders them.
        from exporter.web.pages.serving import FactPages  # noqa: PLC0415

        return FactPages(site, assets)

    def named(name: str) -> Handler:
        async def page(request: web.Request) -> web.StreamResponse:
            found = pages()
            handlers = {
                "device": found.device,
                "pod": found.pod,
                "claim": found.claim,
                "history": found.history,
            }
            return await handlers[name](request)

        return page

    return named


def _explain(site: Site) -> Handler:
    async def explain(request: web.Request) -> web.StreamResponse:
        # Imported when it is asked for: few ever do.
        from exporter.web.api import ExplainApi  # noqa: PLC0415

        return await ExplainApi(site).explain(request)

    return explain


def _index(site: Site) -> Handler:
    async def index(request: web.Request) -> web.StreamResponse:
        from exporter.web.api import index  # noqa: PLC0415 -- likewise

        return await index(request, site)

    return index


async def _openapi(request: web.Request) -> web.StreamResponse:
    from exporter.web.api import openapi  # noqa: PLC0415 -- likewise

    return await openapi(request)
