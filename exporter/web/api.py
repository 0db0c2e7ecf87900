"""/api/v1/… and /api/openapi.json: the JSON API."""

from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2s
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import hdrs, web

from exporter.history.recorder import HistoryUnavailable
from exporter.mapping.model import DeviceKey
from exporter.mapping.state import Freshness, Moment
from exporter.views import documents
from exporter.views.bodies import WholeList
from exporter.views.encoding import encode, pieces
from exporter.views.explain import AmbiguousDevice, UnknownDevice
from exporter.views.query import (
    ANOMALY_FILTERS,
    CLAIM_FILTERS,
    DEVICE_FILTERS,
    RESOURCE_FILTERS,
    WHOLE,
    ListQuery,
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
from exporter.web.answers import (
    GZIP_FROM,
    JSON,
    Handler,
    body_of,
    endpoint,
    is_current,
    made,
    made_body,
    mapping_answer,
    negotiated,
    not_modified,
    tagged,
    wants_gzip,
)
from exporter.web.site import Site, judge
from runtime.http.app import problem
from runtime.http.bodies import Body

_OPENAPI: Final = Path(__file__).parent / "openapi.json"
"""Made by docs/make_openapi.py."""

PAGES: Final = {
    "status": "/{?q,resource,namespace,pod,device,state}",
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

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> list[web.RouteDef]:
        """Every address except /api/v1/events."""
        lists = [web.get(f"/api/v1/{name}", endpoint(self._list(name))) for name in _LISTS]
        return [
            *lists,
            web.get("/api/v1/status", endpoint(self.status)),
            web.get("/api/v1/explain", endpoint(self.explain)),
            web.get("/api/v1/history", endpoint(self.history)),
            web.get("/api/v1", endpoint(self.index)),
            web.get("/api/v1/", endpoint(self.index)),
            web.get("/api/openapi.json", endpoint(self.openapi)),
        ]

    def _list(self, name: str) -> Handler:
        document, known = _LISTS[name]

        async def answer(request: web.Request) -> web.Response:
            query = parse_list(request.query.items(), known)
            site = self._site
            moment = site.moment()
            if moment.freshness is Freshness.UNKNOWN:
                return self._no_mapping(moment)
            tag, whole = site.tag(moment), site.bodies.find(name) if query == WHOLE else None
            if is_current(request, tag):
                return mapping_answer(moment, tag, None)
            if whole is not None:
                return mapping_answer(moment, tag, await _whole_list(request, moment, whole))
            body = await made_body(request, tag, _size(moment), lambda: document(moment, query))
            return mapping_answer(moment, tag, body)

        return answer

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
    return len(snapshot.devices) + len(snapshot.claims) + len(snapshot.containers)


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
