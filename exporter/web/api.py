"""/api/v1/… and /api/openapi.json: the JSON API."""

import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from hashlib import blake2s
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import hdrs, web

from exporter.history.recorder import HistoryUnavailable
from exporter.mapping.model import DeviceKey
from exporter.mapping.state import Freshness, Moment
from exporter.views import documents
from exporter.views.bodies import ListBodies, WholeList
from exporter.views.encoding import encode, pieces
from exporter.views.explain import AmbiguousDevice, UnknownDevice
from exporter.views.query import (
    ANOMALY_FILTERS,
    CLAIM_FILTERS,
    DEVICE_FILTERS,
    RESOURCE_FILTERS,
    WHOLE,
    ListQuery,
    QueryError,
    no_parameters,
    parse_explain,
    parse_history,
    parse_list,
)
from exporter.views.schema import (
    EndpointEntry,
    ExplainDocument,
    IndexDocument,
    ListEnvelope,
    StatusDocument,
)
from exporter.views.wording import rfc3339
from exporter.web.answers import (
    GZIP_FROM,
    Handler,
    accepts,
    answer,
    header_list,
    is_current,
    negotiated,
    not_modified,
    tagged,
    wants_gzip,
)
from exporter.web.events import Events
from exporter.web.site import Site, judge
from runtime.blocks import LEVEL
from runtime.http.app import problem
from runtime.http.bodies import ANSWER_WORKER, Body
from runtime.text import visible

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TAKEN_AT: Final = "Devicelens-Taken-At"
"""Header: when the exporter requested the mapping from the kubelet. A 304 has it too."""
LARGE_FROM: Final = 200
"""Devices or rows from which making a document would block the event loop for milliseconds."""

T = TypeVar("T")

_OPENAPI: Final = Path(__file__).parent / "openapi.json"
"""Made by docs/make_openapi.py."""

PAGES: Final = {
    "status": "/{?q,resource,namespace,pod,device,state,driver,pool,claim}",
    "device": "/devices/{+resource}/{device}",
    "pod": "/pods/{namespace}/{name}",
    "claim": "/claims/{driver}/{pool}/{device}",
    "history": "/history{?resource,device,namespace,pod,from,to,at}",
}
"""The pages' addresses, as URI templates."""

_LISTS: Final[dict[str, tuple[Callable[[Moment, ListQuery], ListEnvelope], tuple[str, ...]]]] = {
    "devices": (documents.devices, DEVICE_FILTERS),
    "pods": (documents.pods, DEVICE_FILTERS),
    "claims": (documents.claims, CLAIM_FILTERS),
    "resources": (documents.resources, RESOURCE_FILTERS),
    "anomalies": (documents.anomalies, ANOMALY_FILTERS),
}
"""The lists below /api/v1: the function that makes the document, and its filters."""


class Api:
    """The JSON API. Answers about the mapping are 503 until the first mapping; then they are the last good
    one with its age.
    """

    def __init__(self, site: Site, events: Events) -> None:
        self._site = site
        self._events = events
        self._bodies = ListBodies()
        site.preparers.append(self._bodies)
        self.handlers: Final[Mapping[str, Handler]] = {
            **{f"/api/v1/{name}": endpoint(self._list(name)) for name in _LISTS},
            "/api/v1/status": endpoint(self.status),
            "/api/v1/explain": endpoint(self.explain),
            "/api/v1/history": endpoint(self.history),
            "/api/v1/events": endpoint(self.events, EVENTS),
            "/api/v1": endpoint(self.index),
            "/api/v1/": endpoint(self.index),
            "/api/openapi.json": endpoint(self.openapi),
        }
        """The handler of each address."""

    def _list(self, name: str) -> Handler:
        document, known = _LISTS[name]

        async def listed(request: web.Request) -> web.Response:
            query = parse_list(request.query.items(), known)
            site = self._site
            moment = site.moment()
            if moment.freshness is Freshness.UNKNOWN:
                return self._no_mapping(moment)
            tag, whole = site.tag(moment), self._bodies.find(name) if query == WHOLE else None
            if is_current(request, tag):
                return mapping_answer(moment, tag, None)
            if whole is not None:
                return mapping_answer(moment, tag, await _whole_list(request, moment, whole))
            body = await made_body(request, tag, _size(moment), lambda: document(moment, query))
            return mapping_answer(moment, tag, body)

        return listed

    async def status(self, request: web.Request) -> web.Response:
        """The exporter itself; also answered before the first mapping."""
        no_parameters(request.query.items())
        site = self._site
        moment = site.moment()
        tag, triggers = site.tag(moment), site.triggers()
        if is_current(request, tag):
            return mapping_answer(moment, tag, None)

        def document() -> StatusDocument:
            return documents.status(
                moment, triggers=triggers, poll_interval=site.poll_interval, version=site.version
            )

        return mapping_answer(moment, tag, await made_body(request, tag, _size(moment), document))

    async def explain(self, request: web.Request) -> web.Response:
        """One device; 404 where it is unknown, 400 where the id is ambiguous."""
        site = self._site
        query = parse_explain(request.query.items())
        moment = site.moment()
        if moment.state.taken_at is None:
            return self._no_mapping(moment)
        tag = site.tag(moment)

        def document() -> ExplainDocument:
            return documents.explained(moment, query.device, query.resource, reader=site.reader)

        try:
            body = await made_body(request, tag, _size(moment), document)
        except UnknownDevice as error:
            return problem(404, str(error), nearest=_names(error.nearest), node=site.node)
        except AmbiguousDevice as error:
            return problem(400, str(error), parameter="device", devices=_names(error.devices))
        return mapping_answer(moment, tag, None if is_current(request, tag) else body)

    async def history(self, request: web.Request) -> web.Response:
        """Holdings of the past; also answered before the first mapping."""
        site = self._site
        query = parse_history(request.query.items(), site.clock())
        if site.history is None:
            return problem(503, "this exporter keeps no history", node=site.node)
        try:
            found = await site.history.find(query.question)
        except HistoryUnavailable as error:
            response = problem(503, f"history cannot be asked: {error}", node=site.node)
            response.headers[hdrs.RETRY_AFTER] = "1"
            return response
        moment, gzipped = site.moment(), wants_gzip(request)

        def written() -> tuple[str, Body]:
            document = documents.history(moment, query, found)
            tag = documents.history_tag(document, query, found)
            return tag, body_of(pieces(document), gzipped=gzipped)

        tag, body = await made(request, len(found.rows) + len(found.devices), written)
        return mapping_answer(moment, tag, None if is_current(request, tag) else body)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """A stream of changes (exporter.web.events)."""
        no_parameters(request.query.items())
        return await self._events.stream(request)

    async def index(self, request: web.Request) -> web.Response:
        """Every address with its parameters."""
        no_parameters(request.query.items())
        site = self._site
        index = IndexDocument(site.node, site.version, "/api/openapi.json", _endpoints(), PAGES)
        return await negotiated(request, encode(index), JSON)

    async def openapi(self, request: web.Request) -> web.Response:
        """The OpenAPI document, which is part of the package."""
        no_parameters(request.query.items())
        body, tag = _openapi()
        if is_current(request, tag):
            return not_modified(tag)
        return tagged(await negotiated(request, body, JSON), tag)

    def _no_mapping(self, moment: Moment) -> web.Response:
        """503: the kubelet has not answered yet, and why."""
        standing = judge(moment.state, moment.now, moment.stale_after)
        response = problem(503, standing.line, freshness=standing.freshness.value, node=moment.node)
        response.headers[hdrs.RETRY_AFTER] = str(max(1, round(self._site.poll_interval)))
        return response


def _size(moment: Moment) -> int:
    """How many items an answer about the mapping may be made of."""
    snapshot = moment.state.snapshot
    return len(snapshot.devices) + len(snapshot.containers)


async def _whole_list(request: web.Request, moment: Moment, whole: WholeList[Any]) -> Body:
    """The list without filters: as the refresh has made it, or made now for the first time in a while."""
    state = moment.state
    found = whole.ready(state)
    if found is None:
        found = await made(request, _size(moment), lambda: whole.made(state))
    if found.deflated.size >= GZIP_FROM and wants_gzip(request):
        return Body(found.gzipped(moment), gzipped=True)
    return Body(found.text(moment))


def _names(keys: Iterable[DeviceKey]) -> list[dict[str, str]]:
    return [{"resource": key.resource, "device": key.device} for key in keys]


@cache
def _openapi() -> tuple[bytes, str]:
    """The document and its tag."""
    body = _OPENAPI.read_bytes()
    return body, blake2s(body, digest_size=9).hexdigest()


@cache
def _endpoints() -> tuple[EndpointEntry, ...]:
    paths = msgspec.json.decode(_openapi()[0])["paths"]
    return tuple(
        EndpointEntry(
            path,
            methods["get"]["summary"],
            tuple(p["name"] for p in methods["get"].get("parameters", ()) if "name" in p),
        )
        for path, methods in paths.items()
    )


def endpoint(handler: Handler, media: str = JSON) -> Handler:
    """An API handler that answers with `media`: 406 where Accept refuses that, 400 for a QueryError."""

    @wraps(handler)
    async def answered(request: web.Request) -> web.StreamResponse:
        accept = header_list(request, hdrs.ACCEPT)
        if not accepts(accept, media):
            found = visible(accept or "", limit=80)
            return problem(406, f"Accept: found {found!r}, expected {media} among it", available=[media])
        try:
            return await handler(request)
        except QueryError as error:
            return problem(
                400, str(error), parameter=error.parameter, found=error.found, expected=error.expected
            )

    return answered


async def made(request: web.Request, size: int, make: Callable[[], T]) -> T:
    """What `make` returns; made in a thread where `size`, a number of devices or rows, is large."""
    if size < LARGE_FROM:
        return make()
    return await request.config_dict[ANSWER_WORKER].made(request, make)


async def made_body(request: web.Request, tag: str, size: int, make: Callable[[], msgspec.Struct]) -> Body:
    """The document of `make` as JSON, compressed where the client accepts gzip; where it is large made in a
    thread, and shared with clients that are being sent the same.
    """
    gzipped = wants_gzip(request)

    def written() -> Body:
        return body_of(pieces(make()), gzipped=gzipped)

    if size < LARGE_FROM:
        return written()
    return await request.config_dict[ANSWER_WORKER].body(request, (request.path_qs, tag, gzipped), written)


def body_of(texts: list[bytes], *, gzipped: bool) -> Body:
    """A text, compressed if `gzipped` and the size is worth it."""
    if not gzipped or sum(map(len, texts)) < GZIP_FROM:
        return Body(tuple(texts))
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return Body((b"".join([*map(compressor.compress, texts), compressor.flush()]),), gzipped=True)


def mapping_answer(moment: Moment, tag: str, body: Body | None) -> web.Response:
    """The JSON `body` about the mapping; 304 for None."""
    response = not_modified(tag) if body is None else tagged(answer(body, JSON), tag)
    if moment.state.taken_at is not None:
        response.headers[TAKEN_AT] = rfc3339(moment.state.taken_at)
    return response
