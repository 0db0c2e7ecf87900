"""/api/openapi.json."""

from functools import cache
from hashlib import blake2s

import msgspec
from aiohttp import web

from daemon.version import __version__
from exporter.web.answers import fitting, is_known, not_modified, tagged
from exporter.web.api.openapi import document
from exporter.web.api.serving import JSON
from exporter.web.query import no_parameters


async def openapi(request: web.Request) -> web.Response:
    """The document, which is the same as long as the process lives. Raises QueryError."""
    no_parameters(request.query.items())
    body, tag = _made()
    if is_known(request, tag):
        return not_modified(tag)
    return tagged(await fitting(request, body, JSON), tag)


@cache
def _made() -> tuple[bytes, str]:
    body = msgspec.json.encode(document(__version__))
    return body, blake2s(body, digest_size=9).hexdigest()
