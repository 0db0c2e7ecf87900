"""A web configuration read and checked: what is asked for. Pure; no file that it names is looked at here."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

from msgspec import UNSET, UnsetType

from runtime import config_file
from runtime.config_file import ConfigError, Document, advice, parse, quoted
from runtime.config_file import Path as Place
from runtime.flags import parse_duration
from runtime.protection.model import Document as Model
from runtime.protection.model import TlsServerConfig
from runtime.protection.suites import openssl_curve, openssl_suites

KEYS: Final = tuple(Model.__struct_fields__)
"""The keys of a whole file."""

HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""Headers that may be set, with all values that they may have where not any (exporter-toolkit)."""

MAX_COST: Final = 14
"""bcrypt's cost: 2^14 rounds take a second of a core; each further step takes twice the one before."""

_HEADER_BYTES: Final = 4096
_MAX_INTERVAL: Final = 86400.0
_HASH: Final = re.compile(r"\$2[aby]\$(?P<cost>[0-9]{2})\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_TLS: Final = "tls_server_config"


class Clients(IntEnum):
    """What is asked of clients, the more the higher."""

    ANYBODY = 0
    VERIFIED_IF_GIVEN = 1
    VERIFIED = 2


@dataclass(frozen=True, slots=True)
class Source:
    """Where PEM comes from: the file at `path`, or `text`, written at `key` in the configuration."""

    key: str
    path: Path | None = None
    text: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """HTTPS as it is asked for. Suites and curves have OpenSSL's names; empty: its own choice."""

    cert: Source
    key: Source
    client_ca: Source | None = None
    clients: Clients = Clients.ANYBODY
    allowed_sans: frozenset[str] | None = None
    oldest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    suites: tuple[str, ...] = ()
    server_decides: bool = True
    curve: str = ""

    @property
    def sources(self) -> tuple[Source, ...]:
        """All that is to be read."""
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


@dataclass(frozen=True, slots=True)
class Rate:
    """`burst` requests at once, and one more each `interval` seconds."""

    interval: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What a file asks for. An empty header is one that is not to be sent. `users` have bcrypt hashes."""

    document: Document = field(repr=False, compare=False)
    tls: Tls | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    users: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    rate: Rate | None = None

    def words(self) -> str:
        """What it asks for, in words."""
        clients = Clients.ANYBODY if self.tls is None else self.tls.clients
        users = len(self.users)
        parts = (
            "plain HTTP" if self.tls is None else "TLS",
            *(("client certificates",) if clients is Clients.VERIFIED else ()),
            *(("client certificates if there are any",) if clients is Clients.VERIFIED_IF_GIVEN else ()),
            *((f"{users} user{'s' if users > 1 else ''}",) if users else ()),
            *(("a rate limit",) if self.rate is not None else ()),
            *((f"headers: {', '.join(self.headers)}",) if self.headers else ()),
        )
        return ", ".join(parts)

    def error(self, key: str, problem: str) -> ConfigError:
        """The error `problem` at `key` of tls_server_config."""
        return self.document.error((_TLS, key), problem)


def load(content: bytes, source: str, directory: Path) -> WebConfig:
    """What the file `content` asks for; `source` names it, its relative paths begin in `directory`.

    Raises ConfigError for the first thing in it that is wrong, or that cannot be honoured.
    """
    document = parse(content, source)
    if document.root.value is None:
        raise document.error((), "found an empty file, expected a web configuration")
    model = config_file.convert(document, Model)
    http = model.http_server_config
    if http.http2:
        raise document.error(
            ("http_server_config", "http2"),
            "HTTP/2 is not spoken here, only HTTP/1.1: leave it out or say false",
        )
    tls = None if isinstance(model.tls_server_config, UnsetType) else model.tls_server_config
    return WebConfig(
        document,
        tls=None if tls is None else _Tls(document, tls, directory).checked(),
        headers=_headers(document, http.headers),
        users=_users(document, model.basic_auth_users),
        rate=_rate(document, model.rate_limit.interval, model.rate_limit.burst),
    )


class _Tls:
    """Checks tls_server_config, key by key."""

    def __init__(self, document: Document, found: TlsServerConfig, directory: Path) -> None:
        self._document = document
        self._found = found
        self._directory = directory

    def checked(self) -> Tls:
        """Raises ConfigError."""
        found = self._found
        clients = self._clients()
        client_ca = self._source("client_ca", found.client_ca, found.client_ca_file)
        self._agree(clients, client_ca)
        oldest, newest = self._version("min_version"), self._version("max_version")
        if oldest > newest:
            raise self._error(
                "min_version", f"found {found.min_version}, expected at most max_version, {found.max_version}"
            )
        sans = found.client_allowed_sans
        return Tls(
            cert=self._needed("cert", found.cert, found.cert_file),
            key=self._needed("key", found.key, found.key_file),
            client_ca=client_ca,
            clients=clients,
            allowed_sans=None if isinstance(sans, UnsetType) else frozenset(sans),
            oldest=oldest,
            newest=newest,
            suites=self._suites(),
            server_decides=found.prefer_server_cipher_suites,
            curve=self._curve(),
        )

    def _error(self, key: str, problem: str, *index: int) -> ConfigError:
        return self._document.error((_TLS, key, *index), problem)

    def _source(self, key: str, text: str | UnsetType, file: str | UnsetType) -> Source | None:
        if not isinstance(text, UnsetType) and not isinstance(file, UnsetType):
            raise self._error(key, f"found beside {key}_file, expected one of them")
        if not isinstance(text, UnsetType):
            return Source(key, text=text.encode(errors="surrogatepass"))
        if isinstance(file, UnsetType):
            return None
        if "\0" in file:
            raise self._error(f"{key}_file", f"found {quoted(file)}, expected the path of a file")
        return Source(f"{key}_file", self._directory / file)

    def _needed(self, key: str, text: str | UnsetType, file: str | UnsetType) -> Source:
        source = self._source(key, text, file)
        if source is None:
            raise self._document.error(
                (_TLS,), f"expected the key '{key}_file' (or '{key}'), which is missing"
            )
        return source

    def _clients(self) -> Clients:
        match self._found.client_auth_type:
            case "NoClientCert":
                return Clients.ANYBODY
            case "VerifyClientCertIfGiven":
                return Clients.VERIFIED_IF_GIVEN
            case "RequireAndVerifyClientCert":
                return Clients.VERIFIED
            case other:
                raise self._error(
                    "client_auth_type",
                    f"found {other}, which believes any certificate that a client shows: Python's ssl cannot "
                    "do that; expected RequireAndVerifyClientCert, VerifyClientCertIfGiven or NoClientCert",
                )

    def _agree(self, clients: Clients, client_ca: Source | None) -> None:
        """That what is asked of clients can be asked."""
        found = self._found
        if clients is Clients.ANYBODY and client_ca is not None:
            raise self._error(
                client_ca.key,
                "found without a client_auth_type that verifies clients, such as RequireAndVerifyClientCert",
            )
        if clients is not Clients.ANYBODY and client_ca is None:
            raise self._error(
                "client_auth_type",
                f"found {found.client_auth_type} without client_ca_file: nothing says whom to trust",
            )
        if found.client_allowed_sans is UNSET:
            return
        if clients is not Clients.VERIFIED:
            raise self._error(
                "client_allowed_sans",
                "found without client_auth_type: RequireAndVerifyClientCert: no certificate, no name",
            )
        if not found.client_allowed_sans:
            raise self._error("client_allowed_sans", "found an empty list, which no client could match")

    def _version(self, key: str) -> ssl.TLSVersion:
        name: str = getattr(self._found, key)
        if name not in _VERSIONS:
            raise self._error(key, f"found {name}, expected TLS12 or TLS13: what is older is not safe")
        return _VERSIONS[name]

    def _suites(self) -> tuple[str, ...]:
        names = self._found.cipher_suites
        # An empty list leaves the choice to the library, as Go has it.
        if isinstance(names, UnsetType) or not names:
            return ()
        try:
            return openssl_suites(names)
        except ValueError as error:
            raise self._error("cipher_suites", str(error)) from None

    def _curve(self) -> str:
        names = self._found.curve_preferences
        if isinstance(names, UnsetType) or not names:
            return ""
        try:
            return openssl_curve(names)
        except ValueError as error:
            raise self._error("curve_preferences", str(error)) from None


def _headers(document: Document, headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        place: Place = ("http_server_config", "headers", name)
        if name not in HEADERS:
            hint = advice(name, tuple(HEADERS)) or f", expected one of {', '.join(HEADERS)}"
            raise document.error(place, f"the header {quoted(name)} cannot be set{hint}")
        values = HEADERS[name]
        if values and value not in values:
            raise document.error(place, f"found {quoted(value)}, expected {' or '.join(values)}")
        if len(value) > _HEADER_BYTES or not value.isascii() or not value.isprintable():
            raise document.error(
                place, f"found {quoted(value)}, expected one line of at most {_HEADER_BYTES} ASCII characters"
            )
    return dict(headers)


def _users(document: Document, users: Mapping[str, str] | UnsetType) -> Mapping[str, str]:
    if isinstance(users, UnsetType):
        return {}
    key = "basic_auth_users"
    if not users:
        raise document.error((key,), "found no users: leave the key out to ask nobody for a password")
    for name, hashed in users.items():
        # RFC 7617: a colon ends the name. Control characters cannot be sent.
        if not name or ":" in name or not name.isprintable():
            raise document.error((key, name), f"found the name {quoted(name)}, expected one without ':'")
        match = _HASH.fullmatch(hashed)
        if match is None:
            # Never told: people write the password itself there.
            found = "nothing" if not hashed else "something else"
            raise document.error(
                (key, name), f"found {found}, expected a bcrypt hash ($2y$…, as htpasswd -nBC 10 makes it)"
            )
        if not 4 <= int(match["cost"]) <= MAX_COST:
            raise document.error(
                (key, name),
                f"found a hash of cost {int(match['cost'])}, expected 4 to {MAX_COST}: it takes too long",
            )
    return dict(users)


def _rate(document: Document, interval: str | int, burst: int) -> Rate | None:
    place: Place = ("rate_limit", "interval")
    try:
        seconds = parse_duration(str(interval))
    except ValueError as error:
        raise document.error(place, str(error)) from None
    if seconds == 0:
        return None
    if seconds > _MAX_INTERVAL:
        raise document.error(place, f"found {quoted(interval)}, expected at most a day")
    if burst < 1:
        raise document.error(
            ("rate_limit", "burst"), "found 0, expected 1 or more: nothing would ever be answered"
        )
    return Rate(seconds, burst)
