"""Client of one plugin's /api/v1/devices, over HTTP or a unix socket, with limits of time and size.

Credential files are read again when they change. In a document, unknown keys are ignored and missing keys
have defaults. A value of the wrong type or another version makes the whole document invalid.
"""

import asyncio
import math
import ssl
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Final

import aiohttp
import msgspec
from aiohttp import hdrs
from msgspec import Struct

from exporter.mapping.model import AdvertisedDevice, AdvertisedResource
from runtime.flags import Address
from runtime.http.client import (
    CredentialError,
    TooLargeError,
    connection_problem,
    read_body,
    read_credential,
    tls_context,
)
from runtime.text import visible


class PluginAccess(Struct, frozen=True):
    """Credential files by flag: trusted CAs, client certificate and key, USER:PASSWORD; None if not given."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    password_file: Path | None = None


NO_ACCESS = PluginAccess()
"""No credentials; certificates are verified with public CAs."""


_PASSWORD_BYTES: Final = 1024

_Seen = tuple[tuple[int, int, int], ...]


class PluginError(Exception):
    """A plugin's report cannot be fetched; the message says why, in one line."""


class PluginCredentials:
    """The present content of credential files."""

    def __init__(self, files: PluginAccess) -> None:
        self._files = files
        self._context: tuple[_Seen, ssl.SSLContext] | None = None

    def authorization(self) -> str:
        """The Authorization header, "" without a password file. Raises PluginError."""
        path = self._files.password_file
        if path is None:
            return ""
        try:
            content = read_credential(path, _PASSWORD_BYTES)
        except CredentialError as error:
            raise PluginError(f"--plugin.password-file {error}") from error
        pair = content.strip(b"\r\n")
        if b":" not in pair or b"\n" in pair:
            raise PluginError(f"--plugin.password-file {visible(str(path))}: expected one line USER:PASSWORD")
        return f"Basic {b64encode(pair).decode()}"

    def tls(self) -> ssl.SSLContext:
        """The TLS context, built again when a file changes. Raises PluginError."""
        files = self._files
        named = [path for path in (files.ca_file, files.cert_file, files.key_file) if path is not None]
        seen = tuple(map(_state, named))
        if self._context is None or self._context[0] != seen:
            try:
                self._context = seen, tls_context(files.ca_file, files.cert_file, files.key_file)
            except CredentialError as error:
                raise PluginError(f"--plugin.{error.part}-file {error}") from error
        return self._context[1]


def _state(path: Path) -> tuple[int, int, int]:
    """A file's version. A missing file fails when it is read."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size


VERSION: Final = 1
MAX_DEVICES: Final = 100_000
"""Devices of one document; the kubelet's own answers are limited to 16 MiB."""
_MAX_ATTRIBUTES: Final = 64
"""Attributes of a device that are kept, by name."""
_MAX_TEXT: Final = 1024
"""Characters of a reason, of an attribute's name and of its value that are kept."""
_MAX_NODES: Final = 1024
_LATEST: Final = 32_503_680_000.0
"""Unix time of the year 3000; later times are ignored."""
_HEALTHY: Final = "Healthy"


class DocumentError(ValueError):
    """An invalid document; the message says what was found and expected."""


class _Version(msgspec.Struct):
    version: int


class _Device(msgspec.Struct):
    id: str
    health: str = ""
    reason: str = ""
    since: str | None = None
    numa_nodes: list[int] = []
    attributes: dict[str, str] = {}
    last_allocated: str | None = None


class _Resource(msgspec.Struct):
    name: str
    registered: bool = False
    streams: int = 0
    devices: list[_Device] = []


class _Document(msgspec.Struct):
    resources: list[_Resource]


def parse(body: bytes) -> Mapping[str, AdvertisedResource]:
    """The resources of a document, by name. Raises DocumentError.

    Invalid times and negative NUMA nodes are left out; long texts are cut.
    """
    try:
        version = msgspec.json.decode(body, type=_Version).version
        if version != VERSION:
            raise DocumentError(f"found version {version}, expected {VERSION}")
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = visible(str(error), limit=200)
        raise DocumentError(f"expected the devices of a devicelens plugin: {why}") from None
    count = sum(len(resource.devices) for resource in document.resources)
    if count > MAX_DEVICES:
        raise DocumentError(f"found {count} devices, expected at most {MAX_DEVICES}")
    return MappingProxyType({resource.name: _resource(resource) for resource in document.resources})


def _resource(found: _Resource) -> AdvertisedResource:
    devices = {device.id: _device(device) for device in found.devices}
    return AdvertisedResource(found.registered, max(0, found.streams), MappingProxyType(devices))


def _device(device: _Device) -> AdvertisedDevice:
    attributes = sorted((_cut(name), _cut(value)) for name, value in device.attributes.items())
    healthy = device.health == _HEALTHY
    reason = _cut(device.reason)
    if not healthy and not reason and device.health != "Unhealthy":
        reason = f"its health is {visible(device.health, limit=80)!r}"
    return AdvertisedDevice(
        healthy=healthy,
        reason=reason,
        since=_time(device.since),
        numa_nodes=tuple(sorted({node for node in device.numa_nodes[:_MAX_NODES] if node >= 0})),
        attributes=tuple(attributes[:_MAX_ATTRIBUTES]),
        last_allocated=_time(device.last_allocated),
        parent=_parent(device),
    )


def _parent(device: _Device) -> str:
    parent = device.attributes.get("parent", "")
    return parent if parent != device.id and len(parent) <= _MAX_TEXT else ""


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _time(text: str | None) -> float | None:
    """Unix time of an RFC 3339 time with its offset from UTC; None for anything else."""
    if not text or len(text) > 64:
        return None
    try:
        moment = datetime.fromisoformat(text)
        at = moment.timestamp() if moment.tzinfo is not None else math.nan
    except (ValueError, OverflowError):
        return None
    return at if 0 <= at <= _LATEST else None


MAX_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a document, as many as the kubelet's own answers may have."""
WITHIN: Final = 3.0
"""Seconds within which the whole document must arrive."""
_WHERE: Final = "/api/v1/devices"
_IN_THREAD: Final = 64 * 1024
"""Bytes of a document above which decoding would block the event loop for milliseconds."""


class PluginDocument(Struct, frozen=True):
    """A document and its digest."""

    resources: Mapping[str, AdvertisedResource]
    digest: bytes


class PluginClient:
    """Fetches the report of the plugin at `address`."""

    def __init__(
        self,
        address: Address,
        access: PluginAccess = NO_ACCESS,
        *,
        within: float = WITHIN,
        limit: int = MAX_BYTES,
    ) -> None:
        self._address = address
        self._access = PluginCredentials(access)
        self._within = within
        self._limit = limit
        self._tag = ""

    @property
    def source(self) -> str:
        """The plugin's address, without credentials."""
        return str(self._address)

    async def fetch(self, known: bytes = b"") -> PluginDocument | None:
        """Fetch the report; None if its digest is `known`. Raises PluginError."""
        try:
            async with asyncio.timeout(self._within):
                body, tag = await self._body(known)
        except TimeoutError:
            raise PluginError(f"no answer within {self._within:g} s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            why = visible(str(error.certificate_error), limit=200)
            raise PluginError(f"its certificate is not trusted: {why}") from error
        except aiohttp.ClientConnectorError as error:
            raise PluginError(connection_problem(error.os_error)) from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            hint = "; does it speak TLS (https://)?" if self._address.scheme == "http" else ""
            raise PluginError(f"its answer is invalid: it closed the connection{hint}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = visible(str(error) or type(error).__name__, limit=200)
            raise PluginError(f"its answer is invalid: {why}") from error
        if body is None:
            return None
        try:
            large = len(body) >= _IN_THREAD
            document = await asyncio.to_thread(_read, body, known) if large else _read(body, known)
        except DocumentError as error:
            raise PluginError(f"{_WHERE}: {error}") from error
        self._tag = tag
        return document

    async def _body(self, known: bytes) -> tuple[bytes | None, str]:
        """The answer's body and its ETag; no body for 304 Not Modified."""
        address = self._address
        # Nothing is decompressed: a small answer could become huge.
        headers = {hdrs.ACCEPT: "application/json", hdrs.ACCEPT_ENCODING: "identity"}
        authorization = address.authorization or self._access.authorization()
        if authorization:
            headers[hdrs.AUTHORIZATION] = authorization
        if known and self._tag:
            headers[hdrs.IF_NONE_MATCH] = self._tag
        # A connection for each poll: another process may serve the address by the next one.
        connector: aiohttp.BaseConnector
        if address.scheme == "unix":
            connector = aiohttp.UnixConnector(address.path, force_close=True)
        else:
            tls = self._access.tls() if address.scheme == "https" else True
            connector = aiohttp.TCPConnector(force_close=True, ssl=tls)
        async with (
            aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
            session.get(address.url + _WHERE, headers=headers, allow_redirects=False) as answer,
        ):
            if answer.status == 304 and known:
                return None, self._tag
            if answer.status != 200:
                raise PluginError(await self._refusal(answer))
            try:
                body = await read_body(answer, self._limit)
            except TooLargeError:
                raise PluginError(f"{_WHERE}: found more than {self._limit >> 20} MiB") from None
            return body, answer.headers.get(hdrs.ETAG, "")[:256]

    async def _refusal(self, answer: aiohttp.ClientResponse) -> str:
        """The message for a status other than 200."""
        said = f"{_WHERE}: {answer.status} {visible(answer.reason or '', limit=80)}".rstrip()
        if answer.status == 401:
            given = self._address.authorization or self._access.authorization()
            wants = "refuses this name and password" if given else "requires a name and a password"
            return f"{said}: it {wants} (--plugin.password-file)"
        return said


def _read(body: bytes, known: bytes) -> PluginDocument | None:
    digest = blake2b(body, digest_size=16).digest()
    return None if digest == known else PluginDocument(parse(body), digest)
