"""The status page, and the page for an address that nothing is at."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web

from daemon.http import problem
from exporter.web.answers import answer, is_known, not_modified, squeeze, wants_gzip
from exporter.web.api.documents import Moment
from exporter.web.assets import Assets
from exporter.web.pages.whens import day, filled
from exporter.web.query import PageQuery, QueryError, address, parse_page
from exporter.web.site import Site
from exporter.web.words import spelled

if TYPE_CHECKING:
    from exporter.web.pages.templating import Templates

_HTML: Final = "text/html; charset=utf-8"
_KEPT: Final = 16
"""Renderings kept: pages that follow one node ask for the same few addresses at the same moment."""
_API: Final = "devices, pods, claims, resources, anomalies, explain, history, status, events"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of one mapping and day, with places for its ages (exporter.web.pages.whens)."""

    key: tuple[str, float | None, int]
    template: bytes


@dataclass(frozen=True, slots=True)
class _Rendering:
    """A page as it was at one second: good for everyone who asks for it within the same one."""

    page: _Page
    second: int
    plain: bytes
    gzipped: bytes


class Pages:
    """The pages. Their templates are compiled for the first of them that is asked for."""

    def __init__(self, site: Site, assets: Assets) -> None:
        self._site = site
        self._assets = assets
        self._kept: dict[str, _Rendering] = {}

    @cached_property
    def _templates(self) -> "Templates":
        # On most nodes Prometheus alone ever asks: those are spared some 5 MiB, and a tenth of the start.
        from exporter.web.pages.templating import Templates  # noqa: PLC0415

        return Templates(self._assets.address, self._site.version)

    async def status(self, request: web.Request) -> web.Response:
        """`/`: who holds what. 400 for an address that asks for what there is not."""
        try:
            query = parse_page(request.query.items())
        except QueryError as error:
            return self.message(400, "This address cannot be read", str(error))
        moment = self._site.moment()
        tag = self._site.tag(moment)
        # A browser has no tag of a page, so that ages are right when it is loaded again: only the page's own
        # module has, which counts them on by itself.
        if is_known(request, tag):
            return not_modified(tag)
        rendering = await self._rendering(moment, tag, query)
        if wants_gzip(request):
            return answer(rendering.gzipped, _HTML, gzipped=True)
        return answer(rendering.plain, _HTML)

    async def _rendering(self, moment: Moment, tag: str, query: PageQuery) -> _Rendering:
        key, second = (tag, moment.state.taken_at, day(moment.now)), int(moment.now)
        where = address(query)
        kept = self._kept.pop(where, None)
        page = kept.page if kept is not None and kept.page.key == key else None
        if page is None:
            template = self._templates.status(moment, query, tag=tag, triggers=self._site.triggers())
            page = _Page(key, template)
        if kept is None or kept.page is not page or kept.second != second:
            plain = filled(page.template, moment.now)
            kept = _Rendering(page, second, plain, await squeeze(plain))
        self._kept[where] = kept
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return kept

    def render(self, moment: Moment, tag: str, query: PageQuery) -> bytes:
        """The status page at `moment`."""
        template = self._templates.status(moment, query, tag=tag, triggers=self._site.triggers())
        return filled(template, moment.now)

    def message(self, status: int, headline: str, detail: str) -> web.Response:
        """A page that says one thing."""
        rendered = self._templates.message(self._site.node, headline, detail)
        return answer(rendered, _HTML, status=status)

    @web.middleware
    async def not_found(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """An address that nothing is at: a problem below /api/, a page for a browser, else a line of text."""
        try:
            return await handler(request)
        except web.HTTPNotFound:
            where = spelled(request.path)
            if request.path.startswith("/api/"):
                return problem(404, f"nothing is at {where}: below /api/v1/ there are {_API}")
            if "text/html" in request.headers.get(hdrs.ACCEPT, ""):
                return self.message(404, "Nothing is here", f"This exporter serves nothing at {where}.")
            return web.Response(text=f"nothing is at {where}\n", status=404)
