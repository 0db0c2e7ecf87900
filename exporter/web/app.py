"""The application: every route. Nothing here asks the kubelet, and nothing changes state."""

from aiohttp import web
from aiohttp.typedefs import Handler

from daemon.http import application
from exporter.web.api.history import HistoryApi
from exporter.web.api.mapping import Api
from exporter.web.assets import Assets
from exporter.web.events import Events
from exporter.web.pages.serving import Pages
from exporter.web.probes import Probes
from exporter.web.site import MetricsSource, Site

__all__ = ["MetricsSource", "Site", "build"]


def build(site: Site) -> web.Application:
    """The exporter's HTTP application over `site`."""
    assets = Assets()
    pages, api, events, probes = Pages(site, assets), Api(site), Events(site), Probes(site)
    app = application()
    app.middlewares.append(pages.not_found)
    app.add_routes(
        [
            web.get("/", pages.status),
            web.get("/metrics", probes.metrics),
            web.get("/-/healthy", probes.healthy),
            web.get("/-/ready", probes.ready),
            web.get("/api/v1/devices", api.devices),
            web.get("/api/v1/pods", api.pods),
            web.get("/api/v1/claims", api.claims),
            web.get("/api/v1/resources", api.resources),
            web.get("/api/v1/anomalies", api.anomalies),
            web.get("/api/v1/status", api.status),
            web.get("/api/v1/explain", _explain(site)),
            web.get("/api/v1/history", HistoryApi(site).history),
            web.get("/api/v1/events", events.stream, allow_head=False),
            web.get("/static/{name}", assets.serve),
        ]
    )
    app.on_shutdown.append(events.end)
    return app


def _explain(site: Site) -> Handler:
    async def explain(request: web.Request) -> web.StreamResponse:
        # Imported when it is asked for: few ever do.
        from exporter.web.api.explain import ExplainApi  # noqa: PLC0415

        return await ExplainApi(site).explain(request)

    return explain
