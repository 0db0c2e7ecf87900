"""/api/v1: what the API has."""

from typing import Final

from aiohttp import web

from exporter.web.answers import fitting
from exporter.web.api.about_schema import EndpointEntry, IndexDocument
from exporter.web.api.operations import OPERATIONS
from exporter.web.api.serving import JSON, encode
from exporter.web.query import no_parameters
from exporter.web.site import Site

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
