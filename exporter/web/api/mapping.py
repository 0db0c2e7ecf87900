"""/api/v1/…: the mapping as JSON. Errors are application/problem+json (RFC 9457)."""

from collections.abc import Callable

import msgspec
from aiohttp import hdrs, web

from daemon.http import problem
from exporter.core.state import Freshness
from exporter.web.answers import fitting, is_known, not_modified, tagged
from exporter.web.api import documents
from exporter.web.api.documents import Moment
from exporter.web.api.schema import Envelope
from exporter.web.query import Filters, QueryError, no_parameters, parse_filters
from exporter.web.site import Site
from exporter.web.standing import judge

_JSON = "application/json"


class Api:
    """The documents. An answer about the mapping is 503 until there is one; from then on it is the last good
    one, and says how old it is.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    async def devices(self, request: web.Request) -> web.Response:
        """The devices that the query's filters keep."""
        return await self._filtered(request, documents.devices)

    async def pods(self, request: web.Request) -> web.Response:
        """The pods that the query's filters keep."""
        return await self._filtered(request, documents.pods)

    async def claims(self, request: web.Request) -> web.Response:
        """Every claimed device (DRA)."""
        return await self._whole(request, documents.claims)

    async def resources(self, request: web.Request) -> web.Response:
        """Counts of every resource."""
        return await self._whole(request, documents.resources)

    async def anomalies(self, request: web.Request) -> web.Response:
        """What is wrong."""
        return await self._whole(request, documents.anomalies)

    async def status(self, request: web.Request) -> web.Response:
        """The exporter itself; answered before there is a mapping too."""
        site = self._site

        def document(moment: Moment) -> Envelope:
            return documents.status(
                moment,
                triggers=site.triggers(),
                poll_interval=site.poll_interval,
                version=site.version,
            )

        return await self._whole(request, document, always=True)

    async def _filtered(
        self, request: web.Request, document: Callable[[Moment, Filters], Envelope]
    ) -> web.Response:
        try:
            filters = parse_filters(request.query.items())
        except QueryError as error:
            return refusal(error)
        return await self._tell(request, lambda moment: document(moment, filters))

    async def _whole(
        self, request: web.Request, document: Callable[[Moment], Envelope], *, always: bool = False
    ) -> web.Response:
        try:
            no_parameters(request.query.items())
        except QueryError as error:
            return refusal(error)
        return await self._tell(request, document, always=always)

    async def _tell(
        self, request: web.Request, document: Callable[[Moment], Envelope], *, always: bool = False
    ) -> web.Response:
        moment = self._site.moment()
        if moment.freshness is Freshness.UNKNOWN and not always:
            return no_mapping(self._site, moment)
        tag = self._site.tag(moment)
        if is_known(request, tag):
            return not_modified(tag)
        body = msgspec.json.encode(document(moment))
        return tagged(await fitting(request, body, _JSON), tag)


def no_mapping(site: Site, moment: Moment) -> web.Response:
    """503: the kubelet has not answered yet, and why."""
    standing = judge(moment.state, moment.now, moment.stale_after)
    response = problem(503, standing.line, freshness=standing.freshness.value, node=moment.node)
    response.headers[hdrs.RETRY_AFTER] = str(max(1, round(site.poll_interval)))
    return response


def refusal(error: QueryError) -> web.Response:
    """400: which parameter, what was found, what was expected."""
    return problem(400, str(error), parameter=error.parameter, found=error.found, expected=error.expected)
