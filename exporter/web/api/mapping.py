"""/api/v1/…: the mapping as JSON."""

from collections.abc import Callable

from aiohttp import web

from exporter.core.state import Freshness
from exporter.web.api import documents, filters
from exporter.web.api.documents import Moment
from exporter.web.api.schema import Envelope
from exporter.web.api.serving import no_mapping, tell
from exporter.web.query import no_parameters, parse_filters
from exporter.web.site import Site


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
        asked = filters.parse_claims(request.query.items())
        return await self._tell(request, lambda moment: documents.claims(moment, asked))

    async def resources(self, request: web.Request) -> web.Response:
        """Counts of the resources that the query's filters keep."""
        asked = filters.parse_resources(request.query.items())
        return await self._tell(request, lambda moment: documents.resources(moment, asked))

    async def anomalies(self, request: web.Request) -> web.Response:
        """What is wrong, of that what the query's filters keep."""
        asked = filters.parse_anomalies(request.query.items())
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
