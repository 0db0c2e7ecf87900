"""The status page, and the page for an address that nothing is at.

The pages of one device, one pod, one claimed device, and of the past.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web

from exporter.history.query import HistoryQuery
from exporter.history.record import bounded
from exporter.history.recorder import HistoryUnavailable
from exporter.mapping.model import DeviceKey
from exporter.views.documents import Moment
from exporter.views.links import LinkError, read_claim, read_device, read_pod
from exporter.views.query import PageQuery, QueryError, address, parse_page, single
from exporter.views.wording import spelled, text
from exporter.web.answers import answer, fitting, is_known, not_modified, squeeze, wants_gzip
from exporter.web.assets import Assets
from exporter.web.pages import history, past
from exporter.web.pages.claim import claim_page
from exporter.web.pages.claim import near as near_claims
from exporter.web.pages.device import Unknown, device_page
from exporter.web.pages.history import history_page
from exporter.web.pages.past import ROWS, Answer, MomentError, Range
from exporter.web.pages.periods import day, filled
from exporter.web.pages.pod import near as near_pods
from exporter.web.pages.pod import pod_page
from exporter.web.pages.templates import FactTemplates, Nowhere, Other
from exporter.web.site import Site
from runtime.http import problem

if TYPE_CHECKING:
    from exporter.web.pages.templates import Templates

_HTML: Final = "text/html; charset=utf-8"
_KEPT: Final = 16
"""Renderings kept: pages that follow one node ask for the same few addresses at the same moment."""
_API: Final = "devices, pods, claims, resources, anomalies, explain, history, status, events"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of one mapping and day, with places for its ages (exporter.web.pages.periods)."""

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
        from exporter.web.pages.templates import Templates  # noqa: PLC0415

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


_HTML_FACTS_SERVING: Final = "text/html; charset=utf-8"
_LIVES: Final = 500
"""Holdings of one pod's name that its page asks for."""
_AT_ONCE: Final = 4
"""Questions that pages ask history at the same time; the others wait, for it refuses many."""
_RENDERED_AT_ONCE: Final = 2
"""Pages that are rendered at the same time, each in a thread; the others wait."""
_WITHIN: Final = 8.0
"""Seconds in which history has to answer a page, the waiting counted in."""
_SPAN: Final = ("from", "to")


class FactPages:
    """The pages. What is asked of history at the same moment by several is asked once."""

    def __init__(self, site: Site, assets: Assets) -> None:
        self._site = site
        self._templates = FactTemplates(assets.address, site.version)
        self._asking: dict[HistoryQuery, asyncio.Task[Answer]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._renderings = asyncio.Semaphore(_RENDERED_AT_ONCE)

    async def device(self, request: web.Request) -> web.StreamResponse:
        """`/devices/{resource}/{id}`: who has it, since when, and is it well."""
        try:
            key = DeviceKey(*read_device(request.rel_url.raw_path))
            moment, span = self._looked_at(request)
        except (LinkError, QueryError, MomentError) as error:
            return await self._refused(request, error)
        question = HistoryQuery(
            device=bounded(key.device), since=_since(span), until=_until(span, moment), limit=ROWS
        )
        answer = await self._ask(question)
        state = moment.state
        if not any(d.key == key for d in state.snapshot.devices) and not _any(answer):
            # Of a device that is gone the latest that is known, however long ago.
            answer = await self._ask(HistoryQuery(device=bounded(key.device), limit=ROWS))
        page = device_page(moment, key, span, answer, tag=self._site.tag(moment), reader=self._site.reader)
        if not isinstance(page, Unknown):
            return await self._page(request, lambda: self._templates.device(page))
        name = text(key.device, limit=200)
        others = tuple(Other(c.name, c.href, c.resource.shown) for c in page.candidates)
        return await self._nowhere(
            request, moment, answer, Nowhere("No such device", name, page.words, others)
        )

    async def pod(self, request: web.Request) -> web.StreamResponse:
        """`/pods/{namespace}/{name}`: all that it holds and held."""
        try:
            pod = read_pod(request.rel_url.raw_path)
            moment, span = self._looked_at(request)
        except (LinkError, QueryError, MomentError) as error:
            return await self._refused(request, error)
        namespace, name = map(bounded, pod)
        answer = await self._ask(HistoryQuery(namespace=namespace, pod=name, limit=_LIVES))
        page = pod_page(
            moment,
            pod,
            span if any(request.query.get(one, "").strip() for one in _SPAN) else None,
            answer,
            tag=self._site.tag(moment),
            cpu_nodes=self._site.cpu_nodes,
        )
        if page is not None:
            return await self._page(request, lambda: self._templates.pod(page))
        shown = text(f"{pod[0]}/{pod[1]}", limit=200)
        words = (
            "No pod of this name holds a device, CPUs or memory of its own on this node, or ever did as far "
            "as history goes back."
        )
        others = tuple(Other(near.name, near.href) for near in near_pods(moment.state, pod))
        nowhere = Nowhere("Nothing is known of this pod", shown, words, others)
        return await self._nowhere(request, moment, answer, nowhere)

    async def claim(self, request: web.Request) -> web.StreamResponse:
        """`/claims/{driver}/{pool}/{device}`: who has a claimed device."""
        try:
            name = read_claim(request.rel_url.raw_path)
            moment, span = self._looked_at(request)
        except (LinkError, QueryError, MomentError) as error:
            return await self._refused(request, error)
        driver, _, device = map(bounded, name)
        question = HistoryQuery(
            driver=driver, device=device, since=_since(span), until=_until(span, moment), limit=ROWS
        )
        answer = await self._ask(question)
        tag = self._site.tag(moment)
        page = claim_page(moment, name, span, answer, tag=tag)
        if page is None and answer.found is not None:
            answer = await self._ask(HistoryQuery(driver=driver, device=device, limit=ROWS))
            page = claim_page(moment, name, span, answer, tag=tag)
        if page is not None:
            return await self._page(request, lambda: self._templates.claim(page))
        words = (
            "No pod on this node holds this device through a claim, or ever did as far as history goes back."
        )
        others = tuple(Other(near.name, near.href) for near in near_claims(moment, name))
        shown = text("/".join(name), limit=200)
        return await self._nowhere(
            request, moment, answer, Nowhere("Nothing is known of this claimed device", shown, words, others)
        )

    async def history(self, request: web.Request) -> web.StreamResponse:
        """`/history`: who held what, in a time or at a moment. A 400 keeps what was typed."""
        moment = self._site.moment()
        wish = history.read(request.query.items(), moment.now)
        answer = None if wish.question is None else await self._ask(wish.question)
        tag = self._site.tag(moment)
        status = 400 if wish.problems else 503 if answer is not None and answer.found is None else 200

        def render() -> bytes:
            return self._templates.history(history_page(moment, wish, answer, tag=tag))

        return await self._page(request, render, status=status)

    def _looked_at(self, request: web.Request) -> tuple[Moment, Range]:
        """The present moment, and the range of the address. Raises QueryError and MomentError."""
        found = single(request.query.items(), _SPAN)
        moment = self._site.moment()
        return moment, past.span_of(found, moment.now)

    async def _ask(self, question: HistoryQuery) -> Answer:
        """History's answer, the same for all who ask the same at the same time."""
        task = self._asking.get(question)
        if task is None:
            task = asyncio.create_task(self._answer(question))
            self._asking[question] = task
            task.add_done_callback(lambda _: self._asking.pop(question, None))
        return await asyncio.shield(task)

    async def _answer(self, question: HistoryQuery) -> Answer:
        source = self._site.history
        if source is None:
            return Answer(None, "this exporter keeps no history")
        try:
            async with asyncio.timeout(_WITHIN), self._turns:
                return Answer(await source.find(question))
        except TimeoutError:
            return Answer(None, f"no answer within {_WITHIN:g} s")
        except HistoryUnavailable as error:
            return Answer(None, spelled(str(error)))

    async def _nowhere(
        self, request: web.Request, moment: Moment, answer: Answer, nowhere: Nowhere
    ) -> web.Response:
        """404; 503 where it may have been known, but nobody can tell at the moment."""
        problem = ""
        if answer.found is None and self._site.history is not None:
            problem = f"History cannot be asked: {answer.trouble}. It may know more."
        elif moment.state.taken_at is None:
            problem = "The kubelet has not answered yet: what is on this node is not known."
        status = 503 if problem else 404
        return await self._page(
            request, lambda: self._templates.nowhere(self._site.node, nowhere, problem), status=status
        )

    async def _refused(self, request: web.Request, error: Exception) -> web.Response:
        """An address that cannot be read."""
        status, parameter = 404 if isinstance(error, LinkError) else 400, getattr(error, "parameter", "")
        words = str(error) if isinstance(error, QueryError | LinkError) else f"'{parameter}': {error}"
        nowhere = Nowhere(
            "This address cannot be read",
            text(spelled(request.path), limit=200),
            text(words, limit=600).shown,
            (),
        )
        node = self._site.node
        return await self._page(request, lambda: self._templates.nowhere(node, nowhere, ""), status=status)

    async def _page(
        self, request: web.Request, render: Callable[[], bytes], *, status: int = 200
    ) -> web.Response:
        """What `render` makes, off the event loop: a thousand holdings take half a second."""
        async with self._renderings:
            body = await asyncio.to_thread(render)
        response = await fitting(request, body, _HTML_FACTS_SERVING)
        response.set_status(status)
        if status >= 400:
            response.headers[hdrs.CACHE_CONTROL] = "no-store"
        if status == 503:
            response.headers[hdrs.RETRY_AFTER] = "2"
        return response


def _since(span: Range) -> float:
    """To the second: pages that follow the same are to ask the same."""
    return float(math.floor(span.since))


def _until(span: Range, moment: Moment) -> float | None:
    """To now is without end: what begins while it is asked belongs to it."""
    return None if span.until == moment.now else span.until


def _any(answer: Answer) -> bool:
    return answer.found is None or bool(answer.found.rows)
