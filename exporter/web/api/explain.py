"""/api/v1/explain: one device, in sentences and in facts."""

from collections.abc import Iterable

from aiohttp import web

from daemon.http import problem
from exporter.core.explain import AmbiguousDevice, UnknownDevice
from exporter.core.model import DeviceKey
from exporter.web.api.explain_documents import explained
from exporter.web.api.serving import no_mapping, tell
from exporter.web.query import parse_explain
from exporter.web.site import Site


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
