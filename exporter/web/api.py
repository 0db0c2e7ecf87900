"""/api/v1/…: the mapping as JSON.

/api/v1/explain: one device, in sentences and in facts.

/api/v1/history: who held what, when, and which times nobody looked at.

/api/v1: what the API has.

/api/openapi.json.
"""

from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2s
from typing import Final

import msgspec
from aiohttp import hdrs, web

from exporter.history.recorder import HistoryUnavailable
from exporter.mapping.model import DeviceKey
from exporter.mapping.state import Freshness
from exporter.views import documents, matching
from exporter.views.documents import Moment, explained, history, tag
from exporter.views.explain import AmbiguousDevice, UnknownDevice
from exporter.views.query import no_parameters, parse_explain, parse_filters, parse_history
from exporter.views.schema import EndpointEntry, Envelope, IndexDocument
from exporter.web.answers import fitting, is_known, not_modified, tagged
from exporter.web.endpoints import JSON, encode, no_mapping, tell
from exporter.web.openapi import OPERATIONS
from exporter.web.openapi import document as document_openapi_serving
from exporter.web.site import Site
from runtime.http import problem
from runtime.version import __version__


class Api:
    """The documents. An answer about the mapping is 503 until there is one; from then on it is the last good
    one, and says how old it is. Raises QueryError, which `serving.endpoint` answers.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    async def devices(self, request: web.Request) -> web.Response:
        """The devices that the query's filters keep."""
        asked = parse_filters(request.query.items())
        return await self._tell(request, lambda moment: documents.devices(moment, asked))

    async def pods(self, request: web.Request) -> web.Response:
        """The pods that the query's filters keep."""
        asked = parse_filters(request.query.items())
        return await self._tell(request, lambda moment: documents.pods(moment, asked))

    async def claims(self, request: web.Request) -> web.Response:
        """The claimed devices (DRA) that the query's filters keep."""
        asked = matching.parse_claims(request.query.items())
        return await self._tell(request, lambda moment: documents.claims(moment, asked))

    async def resources(self, request: web.Request) -> web.Response:
        """Counts of the resources that the query's filters keep."""
        asked = matching.parse_resources(request.query.items())
        return await self._tell(request, lambda moment: documents.resources(moment, asked))

    async def anomalies(self, request: web.Request) -> web.Response:
        """What is wrong, of that what the query's filters keep."""
        asked = matching.parse_anomalies(request.query.items())
        return await self._tell(request, lambda moment: documents.anomalies(moment, asked))

    async def status(self, request: web.Request) -> web.Response:
        """The exporter itself; answered before there is a mapping too."""
        no_parameters(request.query.items())
        site = self._site

        def document(moment: Moment) -> Envelope:
            return documents.status(
                moment,
                triggers=site.triggers(),
                poll_interval=site.poll_interval,
                version=site.version,
            )

        return await self._tell(request, document, always=True)

    async def _tell(
        self, request: web.Request, document: Callable[[Moment], Envelope], *, always: bool = False
    ) -> web.Response:
        moment = self._site.moment()
        if moment.freshness is Freshness.UNKNOWN and not always:
            return no_mapping(self._site, moment)
        return await tell(request, moment, self._site.tag(moment), lambda: document(moment))


class ExplainApi:
    """The document; 503 until there is a mapping, 404 for a device that is not known, 400 where several are
    meant.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    async def explain(self, request: web.Request) -> web.Response:
        """The device that the query asks for. Raises QueryError."""
        site = self._site
        asked = parse_explain(request.query.items())
        moment = site.moment()
        if moment.state.taken_at is None:
            return no_mapping(site, moment)
        try:
            document = explained(moment, asked.device, asked.resource, reader=site.reader)
        except UnknownDevice as error:
            return problem(404, str(error), nearest=_keys(error.nearest), node=site.node)
        except AmbiguousDevice as error:
            return problem(400, str(error), parameter="device", devices=_keys(error.devices))
        return await tell(request, moment, site.tag(moment), lambda: document)


def _keys(keys: Iterable[DeviceKey]) -> list[dict[str, str]]:
    return [{"resource": key.resource, "device": key.device} for key in keys]


class HistoryApi:
    """The document. It is answered before there is a mapping, too: the past does not wait for the kubelet."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def history(self, request: web.Request) -> web.Response:
        """The holdings that the query asks for. Raises QueryError."""
        site = self._site
        asked = parse_history(request.query.items(), site.clock())
        if site.history is None:
            return problem(503, "this exporter keeps no history", node=site.node)
        try:
            found = await site.history.find(asked.question)
        except HistoryUnavailable as error:
            response = problem(503, f"history cannot be asked: {error}", node=site.node)
            response.headers[hdrs.RETRY_AFTER] = "1"
            return response
        moment = site.moment()
        document = history(moment, asked, found)
        return await tell(request, moment, tag(document, asked, found), lambda: document)


_PAGES: Final = {
    "status": "/{?q,resource,namespace,pod,device,state}",
    "device": "/devices/{+resource}/{device}",
    "pod": "/pods/{namespace}/{name}",
    "claim": "/claims/{driver}/{pool}/{device}",
    "history": "/history{?resource,device,namespace,pod,from,to,at}",
}


async def index(request: web.Request, site: Site) -> web.Response:
    """Every address with its parameters. Raises QueryError."""
    no_parameters(request.query.items())
    return await fitting(request, encode(document(site.node, site.version)), JSON)


def document(node: str, version: str) -> IndexDocument:
    """The index of the exporter on `node`."""
    endpoints = tuple(
        EndpointEntry(o.path, o.summary, tuple(p.name for p in o.parameters)) for o in OPERATIONS
    )
    return IndexDocument(node, version, "/api/openapi.json", endpoints, _PAGES)


async def openapi(request: web.Request) -> web.Response:
    """The document, which is the same as long as the process lives. Raises QueryError."""
    no_parameters(request.query.items())
    body, tag = _made()
    if is_known(request, tag):
        return not_modified(tag)
    return tagged(await fitting(request, body, JSON), tag)


@cache
def _made() -> tuple[bytes, str]:
    body = msgspec.json.encode(document_openapi_serving(__version__))
    return body, blake2s(body, digest_size=9).hexdigest()
