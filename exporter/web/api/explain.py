"""/api/v1/explain: one device, in sentences and in facts."""

from collections.abc import Iterable
from typing import Final

import msgspec
from aiohttp import web

from daemon.http import problem
from exporter.core.explain import AmbiguousDevice, UnknownDevice
from exporter.core.model import DeviceKey
from exporter.web.answers import fitting
from exporter.web.api.explain_documents import explained
from exporter.web.api.mapping import no_mapping, refusal
from exporter.web.query import QueryError, parse_explain
from exporter.web.site import Site

_JSON: Final = "application/json"


class ExplainApi:
    """The document; 503 until there is a mapping, 404 for a device that is not known, 400 where several are
    meant.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    async def explain(self, request: web.Request) -> web.Response:
        """The device that the query asks for."""
        site = self._site
        try:
            asked = parse_explain(request.query.items())
        except QueryError as error:
            return refusal(error)
        moment = site.moment()
        if moment.state.taken_at is None:
            return no_mapping(site, moment)
        try:
            document = explained(moment, asked.device, asked.resource, reader=site.reader)
        except UnknownDevice as error:
            return problem(404, str(error), nearest=_keys(error.nearest), node=site.node)
        except AmbiguousDevice as error:
            return problem(400, str(error), parameter="device", devices=_keys(error.devices))
        return await fitting(request, msgspec.json.encode(document), _JSON)


def _keys(keys: Iterable[DeviceKey]) -> list[dict[str, str]]:
    return [{"resource": key.resource, "device": key.device} for key in keys]
