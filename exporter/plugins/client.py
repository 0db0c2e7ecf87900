"""One plugin, asked for its document over HTTP or a unix socket, within bounds of time and size.

The files by which plugins let the exporter in, read again when they change: certificates are renewed.

How the exporter is let in by plugins that are protected: which files say so.

A plugin's document (its /api/v1/devices), checked and bounded. Pure.

Keys that are not known are ignored, keys that may be missing are missed. What is of the wrong kind, or of
another version, is refused as a whole, with the place in it.
"""

import asyncio
import math
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Final

import aiohttp
import msgspec
from aiohttp import hdrs

from exporter.mapping.model import AdvertisedDevice, AdvertisedResource
from runtime.flags import Address
from runtime.text import visible


@dataclass(frozen=True, slots=True)
class PluginAccess:
    """The files of flags, None where there are none: whom to trust, what to show, USER:PASSWORD."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    password_file: Path | None = None


NO_ACCESS = PluginAccess()
"""Plugins ask for nothing, and certificates are those of public authorities."""


_PASSWORD_BYTES: Final = 1024

_Seen = tuple[tuple[int, int, int], ...]


class PluginAccessError(Exception):
    """A file that cannot be used; the message names its flag, and says why."""


class PluginCredentials:
    """What `files` say at a moment."""

    def __init__(self, files: PluginAccess) -> None:
        self._files = files
        self._context: tuple[_Seen, ssl.SSLContext] | None = None

    def authorization(self) -> str:
        """The header for the name and the password; "" without them. Raises PluginAccessError."""
        path = self._files.password_file
        if path is None:
            return ""
        try:
            with path.open("rb") as file:
                content = file.read(_PASSWORD_BYTES + 1)
        except OSError as error:
            raise _refused_access("--plugin.password-file", path, error.strerror or str(error)) from None
        pair = content.strip(b"\r\n")
        if b":" not in pair or b"\n" in pair or len(content) > _PASSWORD_BYTES:
            raise _refused_access("--plugin.password-file", path, "expected one line USER:PASSWORD")
        return f"Basic {b64encode(pair).decode()}"

    def tls(self) -> ssl.SSLContext:
        """How https is spoken. Raises PluginAccessError."""
        files = self._files
        named = [path for path in (files.ca_file, files.cert_file, files.key_file) if path is not None]
        seen = tuple(map(_state, named))
        if self._context is None or self._context[0] != seen:
            self._context = seen, self._made()
        return self._context[1]

    def _made(self) -> ssl.SSLContext:
        files = self._files
        try:
            made = ssl.create_default_context(cafile=files.ca_file)
        except (OSError, ValueError) as error:
            raise _refused_access("--plugin.ca-file", files.ca_file, _why(error)) from None
        if files.cert_file is not None:
            try:
                # An encrypted key would be asked about on the terminal.
                made.load_cert_chain(files.cert_file, files.key_file, password="")
            except (OSError, ValueError) as error:
                raise _refused_access("--plugin.cert-file", files.cert_file, _why(error)) from None
        return made


def _state(path: Path) -> tuple[int, int, int]:
    """What tells a file from itself before; a missing one is told of when it is read."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size


def _refused_access(flag: str, path: Path | None, why: str) -> PluginAccessError:
    return PluginAccessError(f"{flag} {visible(str(path))}: {why}")


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is another certificate's"
        return f"it is no PEM that can be used ({error.reason or 'nothing found'})"
    return visible(getattr(error, "strerror", None) or str(error), limit=200)


VERSION: Final = 1
MAX_DEVICES: Final = 100_000
"""Devices of one document; the kubelet's own answers end at 16 MiB."""
_MAX_ATTRIBUTES: Final = 64
"""Attributes of a device that are kept, by name."""
_MAX_TEXT: Final = 1024
"""Characters of a reason, of an attribute's name and of its value that are kept."""
_MAX_NODES: Final = 1024
_LATEST: Final = 32_503_680_000.0
"""Unix time of the year 3000: what is later cannot be shown, and is none."""
_HEALTHY: Final = "Healthy"


class DocumentError(ValueError):
    """It is not a plugin's document; the message says what was found and what was expected."""


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
    """The resources in a document, by name. Raises DocumentError.

    A time that is none counts as not told, a negative NUMA node as no node; texts are cut.
    """
    try:
        version = msgspec.json.decode(body, type=_Version).version
        if version != VERSION:
            raise DocumentError(f"found version {version}, expected {VERSION}")
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        told = visible(str(error), limit=200)
        raise DocumentError(f"expected the devices of a devicelens plugin: {told}") from None
    count = sum(len(resource.devices) for resource in document.resources)
    if count > MAX_DEVICES:
        raise DocumentError(f"found {count} devices, expected at most {MAX_DEVICES}")
    return MappingProxyType({resource.name: _resource(resource) for resource in document.resources})


def _resource(told: _Resource) -> AdvertisedResource:
    devices = {device.id: _device(device) for device in told.devices}
    return AdvertisedResource(told.registered, max(0, told.streams), MappingProxyType(devices))


def _device(told: _Device) -> AdvertisedDevice:
    attributes = sorted((_cut(name), _cut(value)) for name, value in told.attributes.items())
    healthy = told.health == _HEALTHY
    reason = _cut(told.reason)
    if not healthy and not reason and told.health != "Unhealthy":
        reason = f"its health is {visible(told.health, limit=80)!r}"
    return AdvertisedDevice(
        healthy=healthy,
        reason=reason,
        since=_time(told.since),
        numa_nodes=tuple(sorted({node for node in told.numa_nodes[:_MAX_NODES] if node >= 0})),
        attributes=tuple(attributes[:_MAX_ATTRIBUTES]),
        last_allocated=_time(told.last_allocated),
        parent=_parent(told),
    )


def _parent(told: _Device) -> str:
    parent = told.attributes.get("parent", "")
    return parent if parent != told.id and len(parent) <= _MAX_TEXT else ""


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
"""Bytes of a document: as many as the kubelet's own answers may have."""
WITHIN: Final = 3.0
"""Seconds in which the whole document must have come."""
_WHERE: Final = "/api/v1/devices"
_IN_THREAD: Final = 64 * 1024
"""Bytes of a document from which reading it would hold up the event loop for milliseconds."""


class PluginError(Exception):
    """A plugin did not tell what it should; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class PluginDocument:
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
        self._access = PluginCredentials(access)
        self._within = within
        self._limit = limit
        self._tag = ""

    @property
    def source(self) -> str:
        """The plugin's address, without what is secret in it."""
        return str(self._address)

    async def fetch(self, known: bytes = b"") -> PluginDocument | None:
        """What the plugin tells; None if it is the document of the digest `known`. Raises PluginError."""
        try:
            async with asyncio.timeout(self._within):
                body, tag = await self._body(known)
        except TimeoutError:
            raise PluginError(f"no answer within {self._within:g} s") from None
        except PluginAccessError as error:
            raise PluginError(str(error)) from error
        except aiohttp.ClientConnectorCertificateError as error:
            why = visible(str(error.certificate_error), limit=200)
            raise PluginError(f"its certificate is not trusted: {why}") from error
        except aiohttp.ClientConnectorError as error:
            raise PluginError(_refused(error.os_error)) from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            hint = "; does it speak TLS (https://)?" if self._address.scheme == "http" else ""
            raise PluginError(f"it does not answer as it should: it closed the connection{hint}") from error
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
        return said


def _read(body: bytes, known: bytes) -> PluginDocument | None:
    digest = blake2b(body, digest_size=16).digest()
    return None if digest == known else PluginDocument(parse(body), digest)


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
