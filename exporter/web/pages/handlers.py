"""The pages' addresses: each handler reads the request and queries history. A thread makes the view, renders
it with Jinja2, and compresses the page. The status page and its rows are cached.
"""

import asyncio
import gzip
import math
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from aiohttp import hdrs, web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import Struct
from msgspec.structs import replace

from exporter.history.query import MAX_LIMIT, HistoryQuery
from exporter.history.record import bounded
from exporter.history.recorder import HistoryUnavailable
from exporter.mapping.model import DeviceKey, PodKey
from exporter.mapping.state import Moment
from exporter.views.query import (
    LinkError,
    PageQuery,
    QueryError,
    address,
    device_link,
    parse_page,
    pod_link,
    read_claim,
    read_device,
    read_pod,
    single,
)
from exporter.views.wording import counted, lasting, ranges, size, spelled, text, unbroken
from exporter.web.answers import answer, is_current, not_modified, wants_gzip
from exporter.web.assets import Assets
from exporter.web.pages.device import DevicePage, claimed_key, device_page
from exporter.web.pages.history import history_page, read_form
from exporter.web.pages.parts import Frame, NotFound, device_state, life_link, resource_address, row_key
from exporter.web.pages.past import (
    ROWS,
    HistoryAnswer,
    TimeRange,
    held_details,
    held_link,
    past_state,
    time_range,
)
from exporter.web.pages.pod import PodPage, pod_page
from exporter.web.pages.rows import Row, RowItem, row, row_inputs
from exporter.web.pages.status import status_page
from exporter.web.pages.times import REASONS, began, day, ended, filled, lasted
from exporter.web.site import Site

_HTML: Final = "text/html; charset=utf-8"
_KEPT: Final = 16
"""Rendered status pages that are kept: pages that follow one node request the same few addresses."""
_POD_ROWS: Final = 500
"""Holdings of one pod's name that its page queries."""
_QUERIES: Final = 4
"""Concurrent history queries of pages; further ones wait, because history refuses too many."""
_THREADS: Final = 2
"""Pages that threads make at the same time; further ones wait."""
_HISTORY_TIMEOUT: Final = 8.0
"""Seconds for history to answer a page, including the wait."""
_SPAN: Final = ("from", "to")
_DIRECTORY: Final = Path(__file__).parent / "templates"
_BREAK: Final = re.compile(r"([/._])(?=\w)")
_ROWS_KEPT: Final = 1000
"""Rows in the cache, about 2 KiB each: those of a few pages."""
_FUNCTIONS: Final[dict[str, object]] = {
    **{one.__name__: one for one in (device_link, pod_link, life_link, row_key, device_state)},
    **{one.__name__: one for one in (began, ended, lasted, counted, held_link, held_details)},
    **{one.__name__: one for one in (past_state, resource_address)},
    "lasting_time": lasting,
    "reasons": REASONS,
}
"""What templates call: links, times and states of what they show."""

T = TypeVar("T")

_MadePage = tuple[DevicePage | PodPage | NotFound, Moment, HistoryAnswer]
"""The page of one object, the moment that it shows, and history's answer."""
_MakePage = Callable[[web.Request], Awaitable[_MadePage]]


class RenderedRow(Struct, frozen=True):
    """A row, its HTML with placeholders for ages, and its inputs."""

    inputs: tuple[object, ...]
    row: Row
    html: Markup


class RowCache:
    """Renders rows, and keeps them while their inputs are equal: a change of the mapping affects few rows."""

    def __init__(self, render: Callable[[Row, Frame], str], limit: int = _ROWS_KEPT) -> None:
        self._render = render
        self._limit = limit
        self._kept: dict[tuple[tuple[str, ...], PodKey | None], RenderedRow] = {}

    def rendered(self, item: RowItem, frame: Frame) -> RenderedRow:
        """The row of `item` on the page of `frame`."""
        name = (item.device.key, item.pod)
        inputs = row_inputs(item, frame.moment)
        found = self._kept.pop(name, None)
        if found is None or found.inputs != inputs:
            view = row(item, frame.moment)
            found = RenderedRow(inputs, view, Markup(self._render(view, frame)))  # noqa: S704 -- a template's
        self._kept[name] = found
        while len(self._kept) > self._limit:
            del self._kept[next(iter(self._kept))]
        return found


def wrapped(shown: str) -> Markup:
    """`shown` as HTML, with places for line breaks after / . and _ (browsers break after - by themselves).

    The style sheet decides where they take effect, which it cannot for a wbr.
    """
    return Markup(_BREAK.sub(r'\1<span class="br"></span>', str(escape(shown))))  # noqa: S704 -- escaped before


class Templates:
    """Renders pages as UTF-8, with placeholders for ages (exporter.web.pages.times)."""

    def __init__(self, asset: Callable[[str], str], version: str) -> None:
        """`asset` returns the address of a static file."""
        self._environment = Environment(
            loader=FileSystemLoader(_DIRECTORY),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        filters: Any = {one.__name__: one for one in (text, spelled, ranges, size, unbroken, wrapped)}
        self._environment.filters.update(filters)
        functions: Any = _FUNCTIONS | {"asset": asset, "version": spelled(version)}
        self._environment.globals.update(functions)
        render = self._environment.get_template("row.html").module.row  # type: ignore[attr-defined] # pyright: ignore -- a macro
        self.rows = RowCache(render)

    def render(self, name: str, **values: object) -> bytes:
        """The template `name` with `values`."""
        template = self._environment.get_template(name)
        context = template.new_context(values)
        try:
            return "".join(template.root_render_func(context)).encode(errors="replace")
        finally:
            # The template's own macros refer to the context that has them: this cycle would keep the view
            # and its state until the garbage collector comes.
            context.vars.clear()


class _KeptPage(Struct, frozen=True):
    """A status page with placeholders for ages, and filled for one second. `key` identifies its content."""

    key: tuple[str, float | None, int]
    template: bytes
    second: int
    plain: bytes
    gzipped: bytes


class Pages:
    """The pages. Equal history queries at the same time share one query."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.assets = Assets()
        self._templates = Templates(self.assets.address, site.version)
        self._kept: dict[str, _KeptPage] = {}
        self._queries: dict[HistoryQuery, asyncio.Task[HistoryAnswer]] = {}
        self._turns = asyncio.Semaphore(_QUERIES)
        self._threads = asyncio.Semaphore(_THREADS)
        self._status_turn = asyncio.Lock()
        """One status page at a time: rows are cached, and others are answered meanwhile."""

    async def status(self, request: web.Request) -> web.Response:
        """`/`: who holds what. 400 for an invalid query."""
        try:
            query = parse_page(request.query.items())
        except QueryError as error:
            return await self.message(400, "This address cannot be read", str(error))
        moment = self._site.moment()
        tag = self._site.tag(moment)
        # Browsers get no ETag, so that a reload has the right ages; only the page's module sends one.
        if is_current(request, tag):
            return not_modified(tag)
        async with self._status_turn:
            transport = request.transport
            if transport is None or transport.is_closing():
                raise ConnectionAbortedError("the client left")
            kept = await self._made(lambda: self._kept_page(moment, tag, query))
        if wants_gzip(request):
            return answer(kept.gzipped, _HTML, gzipped=True)
        return answer(kept.plain, _HTML)

    def _kept_page(self, moment: Moment, tag: str, query: PageQuery) -> _KeptPage:
        """The status page at this second, rendered anew only where the mapping, the freshness or the day
        changed.
        """
        key, second = (tag, moment.state.taken_at, day(moment.now)), int(moment.now)
        where = address(query)
        kept = self._kept.pop(where, None)
        if kept is None or (kept.key, kept.second) != (key, second):
            if kept is not None and kept.key == key:
                template = kept.template
            else:
                template = self._status_html(moment, tag, query)
            plain = filled(template, moment.now)
            kept = _KeptPage(key, template, second, plain, _compressed(plain))
        self._kept[where] = kept
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return kept

    def _status_html(self, moment: Moment, tag: str, query: PageQuery) -> bytes:
        """The status page at `moment`, with placeholders for ages."""
        page = status_page(moment, query, tag=tag, triggers=self._site.triggers())
        rendered = partial(self._templates.rows.rendered, frame=page.frame)
        return self._templates.render("status.html", page=page, rendered=rendered)

    async def message(self, status: int, headline: str, detail: str) -> web.Response:
        """A page with one message."""
        shown = {"headline": headline, "detail": text(detail, limit=600).shown}
        render = partial(self._templates.render, "message.html", node=spelled(self._site.node), **shown)
        return answer(await self._made(render), _HTML, status=status)

    async def device(self, request: web.Request) -> web.Response:
        """`/devices/{resource}/{id}`: one device, its holders, its health, and its past."""
        return await self._object(request, self._device, "device.html")

    async def pod(self, request: web.Request) -> web.Response:
        """`/pods/{namespace}/{name}`: what the pod holds and held."""
        return await self._object(request, self._pod, "pod.html")

    async def claim(self, request: web.Request) -> web.Response:
        """`/claims/{driver}/{pool}/{device}`: the page of a claimed device, by its names in DRA."""
        return await self._object(request, self._claim, "device.html")

    async def _object(self, request: web.Request, make: _MakePage, template: str) -> web.Response:
        """The page of one object. 404 for an invalid path or an unknown object, 400 for an invalid query; 503
        where a source that may have the object cannot answer now.
        """
        try:
            page, moment, found = await make(request)
        except (LinkError, QueryError) as error:
            status = 404 if isinstance(error, LinkError) else 400
            name, words = text(request.path, limit=200), text(str(error), limit=600).shown
            refused = NotFound("This address cannot be read", name, words)
            return await self._page(request, self._site.moment(), self._rendered(refused, ""), status=status)
        if not isinstance(page, NotFound):
            return await self._page(request, moment, partial(self._templates.render, template, page=page))
        problem = ""
        if found.found is None and self._site.history is not None:
            problem = f"History is not available: {found.trouble}. It may have more."
        status = 503 if problem or moment.state.taken_at is None else 404
        return await self._page(request, moment, self._rendered(page, problem), status=status)

    async def _device(self, request: web.Request) -> _MadePage:
        return await self._device_of(request, DeviceKey(*read_device(request.rel_url.raw_path)))

    async def _claim(self, request: web.Request) -> _MadePage:
        name = read_claim(request.rel_url.raw_path)
        return await self._device_of(request, claimed_key(self._site.moment(), name))

    async def _device_of(self, request: web.Request, key: DeviceKey) -> _MadePage:
        moment, span = self._range(request)
        every = HistoryQuery(device=bounded(key.device), limit=ROWS)
        found = await self._history(_within(every, span, moment))
        if _is_empty(found) and not any(d.key == key for d in moment.state.snapshot.devices):
            found = await self._history(every)  # a device that is gone: its latest holdings, however old
        tag, reader = self._site.tag(moment), self._site.reader
        make = partial(device_page, moment, key, span, found, tag=tag, reader=reader)
        return await self._made(make), moment, found

    async def _pod(self, request: web.Request) -> _MadePage:
        pod = read_pod(request.rel_url.raw_path)
        moment, span = self._range(request)
        namespace, name = map(bounded, pod)
        found = await self._history(HistoryQuery(namespace=namespace, pod=name, limit=_POD_ROWS))
        given = span if any(request.query.get(one, "").strip() for one in _SPAN) else None
        tag, cpu_nodes = self._site.tag(moment), self._site.cpu_nodes
        make = partial(pod_page, moment, pod, given, found, tag=tag, cpu_nodes=cpu_nodes)
        return await self._made(make), moment, found

    async def history(self, request: web.Request) -> web.Response:
        """`/history`: who held what, in a range or at a moment. A 400 keeps the input."""
        moment = self._site.moment()
        form = read_form(request.query.items(), moment.now)
        found = None if form.question is None else await self._history(form.question)
        tag = self._site.tag(moment)
        status = 400 if form.problems else 503 if found is not None and found.found is None else 200

        def render() -> bytes:
            return self._templates.render("history.html", page=history_page(moment, form, found, tag=tag))

        return await self._page(request, moment, render, status=status)

    def _range(self, request: web.Request) -> tuple[Moment, TimeRange]:
        """The present moment, and the time range of the address. Raises QueryError."""
        found = single(request.query.items(), _SPAN)
        moment = self._site.moment()
        return moment, time_range(found, moment.now)

    async def _history(self, query: HistoryQuery) -> HistoryAnswer:
        task = self._queries.get(query)
        if task is None:
            task = asyncio.create_task(self._query_history(query))
            self._queries[query] = task
            task.add_done_callback(lambda _: self._queries.pop(query, None))
        return await asyncio.shield(task)

    async def _query_history(self, query: HistoryQuery) -> HistoryAnswer:
        source = self._site.history
        if source is None:
            return HistoryAnswer(None, "this exporter keeps no history")
        try:
            async with asyncio.timeout(_HISTORY_TIMEOUT), self._turns:
                answer = HistoryAnswer(await source.find(query))
                since = answer.whole_from
                if since is None or query.since == query.until:
                    return answer
                at = math.nextafter(since, math.inf)  # also those that began at this very time
                lasted = replace(query, since=at, until=at, limit=MAX_LIMIT, after=None)
                return replace(answer, before=tuple((await source.find(lasted)).rows))
        except TimeoutError:
            return HistoryAnswer(None, f"no answer within {_HISTORY_TIMEOUT:g} s")
        except HistoryUnavailable as error:
            return HistoryAnswer(None, spelled(str(error)))

    def _rendered(self, page: NotFound, problem: str) -> Callable[[], bytes]:
        node = spelled(self._site.node)
        return partial(self._templates.render, "nowhere.html", node=node, page=page, problem=problem)

    async def _made(self, make: Callable[[], T]) -> T:
        """What `make` returns, made in a thread: the view of 8000 devices or a thousand rows takes long."""
        async with self._threads:
            return await asyncio.to_thread(make)

    async def _page(
        self, request: web.Request, moment: Moment, render: Callable[[], bytes], *, status: int = 200
    ) -> web.Response:
        """The rendered page."""
        gzipped = wants_gzip(request)

        def make() -> bytes:
            page = filled(render(), moment.now)
            return _compressed(page) if gzipped else page

        response = answer(await self._made(make), _HTML, gzipped=gzipped, status=status)
        if status >= 400:
            response.headers[hdrs.CACHE_CONTROL] = "no-store"
        if status == 503:
            response.headers[hdrs.RETRY_AFTER] = "2"
        return response


def _compressed(page: bytes) -> bytes:
    return gzip.compress(page, 1, mtime=0)


def _within(query: HistoryQuery, span: TimeRange, moment: Moment) -> HistoryQuery:
    """`query` within `span`, from a whole second, so that equal pages share a query.

    A range up to now has no end, so that it includes what begins during the query.
    """
    until = None if span.until == moment.now else span.until
    return replace(query, since=float(math.floor(span.since)), until=until)


def _is_empty(found: HistoryAnswer) -> bool:
    return found.found is not None and not found.found.rows
