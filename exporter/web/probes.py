"""/-/healthy, /-/ready and /metrics."""

from aiohttp import hdrs, web

from daemon.exposition import negotiate
from exporter.core.state import Freshness
from exporter.web.answers import wants_gzip
from exporter.web.site import Site
from exporter.web.standing import judge


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
        standing = judge(site.board.state, site.clock(), site.stale_after)
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
