"""One plugin, asked for its document over HTTP or a unix socket, within bounds of time and size."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import aiohttp
from aiohttp import hdrs

from daemon.text import visible
from exporter.core.address import Address
from exporter.core.advertised import AdvertisedResource
from exporter.core.plugin_access import NO_ACCESS, PluginAccess
from exporter.plugins.access import Access, AccessError
from exporter.plugins.document import DocumentError, parse

MAX_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a document: as many as the kubelet's own answers may have."""
WITHIN: Final = 3.0
"""Seconds in which the whole document must have come."""
_WHERE: Final = "/api/v1/devices"
_IN_THREAD: Final = 64 * 1024
"""Bytes of a document from which reading it would hold up the event loop for milliseconds."""


class PluginError(Exception):
    """A plugin did not tell what it should; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Told:
    """A document. `digest` tells it from another one."""

    resources: Mapping[str, AdvertisedResource]
    digest: bytes


class PluginClient:
    """Asks the plugin at `address`."""

    def __init__(
        self,
        address: Address,
        access: PluginAccess = NO_ACCESS,
        *,
        within: float = WITHIN,
        limit: int = MAX_BYTES,
    ) -> None:
        self._address = address
        self._access = Access(access)
        self._within = within
        self._limit = limit
        self._tag = ""

    @property
    def source(self) -> str:
        """The plugin's address, without what is secret in it."""
        return str(self._address)

    async def ask(self, known: bytes = b"") -> Told | None:
        """What the plugin tells; None if it is the document of the digest `known`. Raises PluginError."""
        try:
            async with asyncio.timeout(self._within):
                body, tag = await self._body(known)
        except TimeoutError:
            raise PluginError(f"no answer within {self._within:g} s") from None
        except AccessError as error:
            raise PluginError(str(error)) from error
        except aiohttp.ClientConnectorCertificateError as error:
            why = visible(str(error.certificate_error), limit=200)
            raise PluginError(f"its certificate is not trusted: {why}") from error
        except aiohttp.ClientConnectorError as error:
            raise PluginError(_refused(error.os_error)) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = visible(str(error) or type(error).__name__, limit=200)
            raise PluginError(f"it does not answer as it should: {why}") from error
        if body is None:
            return None
        try:
            large = len(body) >= _IN_THREAD
            told = await asyncio.to_thread(_read, body, known) if large else _read(body, known)
        except DocumentError as error:
            raise PluginError(f"{_WHERE}: {error}") from error
        self._tag = tag
        return told

    async def _body(self, known: bytes) -> tuple[bytes | None, str]:
        """The answer's body and its ETag; no body if the plugin says that it is the one before."""
        address = self._address
        # Nothing is decompressed, which could make much of little.
        headers = {hdrs.ACCEPT: "application/json", hdrs.ACCEPT_ENCODING: "identity"}
        authorization = address.authorization or self._access.authorization()
        if authorization:
            headers[hdrs.AUTHORIZATION] = authorization
        if known and self._tag:
            headers[hdrs.IF_NONE_MATCH] = self._tag
        # A connection for each question: what serves at an address may be another process by the next.
        connector: aiohttp.BaseConnector
        if address.scheme == "unix":
            connector, base = aiohttp.UnixConnector(address.path, force_close=True), "http://localhost"
        else:
            tls = self._access.tls() if address.scheme == "https" else True
            connector, base = aiohttp.TCPConnector(force_close=True, ssl=tls), _base(address)
        async with (
            aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
            session.get(base + _WHERE, headers=headers, allow_redirects=False) as answer,
        ):
            if answer.status == 304 and known:
                return None, self._tag
            if answer.status != 200:
                raise PluginError(await self._refusal(answer))
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > self._limit:
                    raise PluginError(f"{_WHERE}: found more than {self._limit >> 20} MiB")
            return bytes(body), answer.headers.get(hdrs.ETAG, "")[:256]

    async def _refusal(self, answer: aiohttp.ClientResponse) -> str:
        """What an answer that is none means, in words to act upon."""
        said = f"{_WHERE}: {answer.status} {visible(answer.reason or '', limit=80)}".rstrip()
        if answer.status == 401:
            given = self._address.authorization or self._access.authorization()
            wants = "takes another name or password" if given else "wants a name and a password"
            return f"{said}: it {wants} (--plugin.password-file)"
        if answer.status == 400 and b"HTTPS server" in await answer.content.read(1024):
            return f"{said}: it speaks TLS, ask it by https://"
        return said


def _read(body: bytes, known: bytes) -> Told | None:
    digest = blake2b(body, digest_size=16).digest()
    return None if digest == known else Told(parse(body), digest)


def _base(address: Address) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{address.scheme}://{host}:{address.port}{address.path}"


def _refused(error: OSError) -> str:
    match error:
        case ConnectionRefusedError():
            return "connection refused: nothing listens there"
        case FileNotFoundError():
            return "there is no such socket"
        case PermissionError():
            return "no permission to connect to this socket"
        case _:
            return visible(error.strerror or str(error), limit=200)
