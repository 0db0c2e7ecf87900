"""/api/v1/history: who held what, when, and which times nobody looked at."""

from aiohttp import hdrs, web

from daemon.http import problem
from exporter.services.historian import Unavailable
from exporter.web.api.history_documents import history, tag
from exporter.web.api.history_query import parse_history
from exporter.web.api.serving import tell
from exporter.web.site import Site


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
        except Unavailable as error:
            response = problem(503, f"history cannot be asked: {error}", node=site.node)
            response.headers[hdrs.RETRY_AFTER] = "1"
            return response
        moment = site.moment()
        document = history(moment, asked, found)
        return await tell(request, moment, tag(document, asked, found), lambda: document)
