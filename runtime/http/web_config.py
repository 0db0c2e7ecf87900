"""`--web.config.file`: TLS, client certificates, users and headers, in the format of Prometheus exporters.

`load` checks the file, `WebFiles` holds it with the certificates that it names, and `WebConfigReloader` makes
the access policy of them and keeps it up to date. A key of the format that
this server does not support is refused by its name (docs/web-configuration.md).
"""

import asyncio
import os
import re
import ssl
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from runtime import config_file
from runtime.clock import wait_within
from runtime.config_file import MAX_BYTES, ConfigError, Document, parse
from runtime.http.access import OPEN, AccessPolicy, UserGate
from runtime.http.client import accept_what_kubectl_accepts
from runtime.log import Episode, Log
from runtime.process import Fatal
from runtime.text import advice, quoted

HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""Headers that may be set, with the values that exporter-toolkit allows; none: any value."""

MAX_COST: Final = 14
"""bcrypt's cost: 2^14 rounds take a second of a core, each further step twice as long."""
READ_INTERVAL: Final = 5.0
"""Seconds between two reads."""
SETTLE: Final = 0.1
"""Seconds between two reads that must be the same, so that a half-written file is not used."""
ATTEMPTS: Final = 5
"""Reads in a row that must fail before the file is refused: a certificate and its key are two files."""

_HEADER_BYTES: Final = 4096
_HASH: Final = re.compile(r"\$2[aby]\$(?P<cost>[0-9]{2})\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
_TLS: Final = "tls_server_config"
_PEM_KEYS: Final = ("cert", "key", "client_ca")
_SUITES: Final = "is not supported: TLS 1.3 and the AEAD suites of TLS 1.2 are offered"
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2 the suites with forward secrecy and authenticated encryption alone."""
_REASONS: Final = {
    "KEY_VALUES_MISMATCH": ("key", "is not the key of the certificate"),
    "EE_KEY_TOO_SMALL": ("cert", "its key is too short for OpenSSL's security level"),
    "CA_KEY_TOO_SMALL": ("cert", "an authority's key is too short for OpenSSL's security level"),
    "CA_MD_TOO_WEAK": ("cert", "its signature is too weak for OpenSSL's security level"),
}

Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Names = Annotated[list[Name], Meta(min_length=1, max_length=256)]
Pem = Annotated[str, Meta(min_length=1)]

_log = Log("protection")


class TlsServerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """HTTPS, and which clients may connect. `cert`, `key` and `client_ca` are PEM in the file itself."""

    cert: Pem = ""
    key: Pem = ""
    client_ca: Pem = ""
    cert_file: Name = ""
    key_file: Name = ""
    client_ca_file: Name = ""
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = (
        "NoClientCert"
    )
    client_allowed_sans: Names | UnsetType = UNSET
    min_version: Literal["TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS12", "TLS13"] = "TLS13"
    cipher_suites: Any = UNSET
    prefer_server_cipher_suites: Any = UNSET
    curve_preferences: Any = UNSET

    @property
    def verify_mode(self) -> ssl.VerifyMode:
        """What is required of clients' certificates; a higher value requires more."""
        return _VERIFY_MODES[self.client_auth_type]

    @property
    def allowed_names(self) -> frozenset[str] | None:
        """The names of which a client's certificate must have one; None: any certificate."""
        names = self.client_allowed_sans
        return None if isinstance(names, UnsetType) else frozenset(names)


class HttpServerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How HTTP is answered."""

    http2: bool = False
    headers: Annotated[dict[str, str], Meta(max_length=16)] = {}


class WebConfigDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file."""

    tls_server_config: TlsServerConfig | UnsetType = UNSET
    http_server_config: HttpServerConfig = msgspec.field(default_factory=HttpServerConfig)
    basic_auth_users: Annotated[dict[str, str], Meta(max_length=256)] | UnsetType = UNSET
    rate_limit: Any = UNSET


KEYS: Final = WebConfigDocument.__struct_fields__
"""The keys of a whole file."""

_VERIFY_MODES: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_REFUSED: Final = {
    (_TLS, "cipher_suites"): _SUITES,
    (_TLS, "prefer_server_cipher_suites"): _SUITES,
    (_TLS, "curve_preferences"): _SUITES,
    ("rate_limit",): "is not supported: put a reverse proxy in front of this server for it",
}
"""Keys of the format that this server does not support."""


@dataclass(frozen=True, slots=True)
class WebConfig:
    """A checked file. A header with an empty value is not to be sent. `users` have bcrypt hashes.

    `directory` is where relative paths of files start.
    """

    document: Document = field(repr=False, compare=False)
    directory: Path
    tls: TlsServerConfig | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    users: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def words(self) -> str:
        """What the file configures, for people."""
        mode = ssl.CERT_NONE if self.tls is None else self.tls.verify_mode
        users = len(self.users)
        parts = (
            "plain HTTP" if self.tls is None else "TLS",
            "client certificates" if mode is ssl.CERT_REQUIRED else "",
            "client certificates if there are any" if mode is ssl.CERT_OPTIONAL else "",
            f"{users} user{'s' if users > 1 else ''}" if users else "",
            f"headers: {', '.join(self.headers)}" if self.headers else "",
        )
        return ", ".join(filter(None, parts))

    @property
    def pem(self) -> Mapping[str, str | Path]:
        """PEM by key of tls_server_config: the text itself, or for a key that ends in _file its path."""
        found: dict[str, str | Path] = {}
        for key in _PEM_KEYS if self.tls is not None else ():
            if text := getattr(self.tls, key):
                found[key] = text
            elif file := getattr(self.tls, f"{key}_file"):
                found[f"{key}_file"] = self.directory / file
        return found

    def tls_error(self, key: str, problem: str) -> ConfigError:
        """The error `problem` at `key` of tls_server_config."""
        return self.document.error((_TLS, key), problem)


def load(content: bytes, source: str, directory: Path) -> WebConfig:
    """The configuration in `content`; `source` names it in errors, relative paths start in `directory`.

    No file that it names is read. Raises ConfigError for the first thing that is wrong or not supported.
    """
    document = parse(content, source)
    if document.root.value is None:
        raise document.error((), "found an empty file, expected a web configuration")
    model = config_file.convert(document, WebConfigDocument)
    if model.http_server_config.http2:
        raise document.error(
            ("http_server_config", "http2"),
            "only HTTP/1.1 is supported: leave the key out or set it to false",
        )
    tls = None if isinstance(model.tls_server_config, UnsetType) else model.tls_server_config
    for place, problem in _REFUSED.items():
        if getattr(model if len(place) == 1 else tls, place[-1], UNSET) is not UNSET:
            raise document.error(place, problem)
    for key, problem in _tls_problems(tls) if tls is not None else ():
        raise document.error((_TLS, key) if key else (_TLS,), problem)
    return WebConfig(
        document,
        directory,
        tls,
        headers=_headers(document, model.http_server_config.headers),
        users=_users(document, model.basic_auth_users),
    )


def _tls_problems(tls: TlsServerConfig) -> Iterator[tuple[str, str]]:
    """What is wrong with it: the key, "" for the section as a whole, and the problem."""
    if tls.min_version > tls.max_version:
        yield "min_version", f"found {tls.min_version}, expected at most max_version, {tls.max_version}"
    for key in _PEM_KEYS:
        text, file = getattr(tls, key), getattr(tls, f"{key}_file")
        if text and file:
            yield key, f"found beside {key}_file, expected one of them"
        if "\0" in file:
            yield f"{key}_file", f"found {quoted(file)}, expected the path of a file"
        if not text and not file and key != "client_ca":
            yield "", f"expected the key '{key}_file' (or '{key}'), which is missing"
    yield from _client_problems(tls, "client_ca" if tls.client_ca else "client_ca_file")


def _client_problems(tls: TlsServerConfig, client_ca: str) -> Iterator[tuple[str, str]]:
    """What is wrong with the keys about clients' certificates, of which `client_ca` names the authorities."""
    kind = tls.client_auth_type
    verified = kind != "NoClientCert"
    if not verified and getattr(tls, client_ca):
        expected = "a client_auth_type that verifies clients, such as RequireAndVerifyClientCert"
        yield client_ca, f"found without {expected}"
    if verified and not getattr(tls, client_ca):
        yield "client_auth_type", f"found {kind} without client_ca_file: nothing says whom to trust"
    if tls.allowed_names is not None and kind != "RequireAndVerifyClientCert":
        problem = "found without client_auth_type: RequireAndVerifyClientCert: no certificate, no name"
        yield "client_allowed_sans", problem


def _headers(document: Document, headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        place: config_file.Path = ("http_server_config", "headers", name)
        if name not in HEADERS:
            hint = advice(name, tuple(HEADERS)) or f", expected one of {', '.join(HEADERS)}"
            raise document.error(place, f"the header {quoted(name)} cannot be set{hint}")
        if HEADERS[name] and value not in HEADERS[name]:
            raise document.error(place, f"found {quoted(value)}, expected {' or '.join(HEADERS[name])}")
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
        raise document.error((key,), "found no users: leave the key out to require no password")
    for name, hashed in users.items():
        # RFC 7617: a colon ends the name. Control characters cannot be sent.
        if not name or ":" in name or not name.isprintable():
            raise document.error((key, name), f"found the name {quoted(name)}, expected one without ':'")
        match = _HASH.fullmatch(hashed)
        if match is None:
            # The value is not shown: people write the password itself there.
            found = "something else" if hashed else "nothing"
            raise document.error(
                (key, name), f"found {found}, expected a bcrypt hash ($2y$…, as htpasswd -nBC 10 makes it)"
            )
        if not 4 <= int(match["cost"]) <= MAX_COST:
            problem = (
                f"found a hash of cost {int(match['cost'])}, expected 4 to {MAX_COST}: it takes too long"
            )
            raise document.error((key, name), problem)
    return dict(users)


@dataclass(frozen=True, slots=True)
class WebFiles:
    """A configuration with the PEM that it names, by key; equal to another if the files have not changed."""

    config: WebConfig = field(compare=False)
    content: bytes = field(repr=False)
    pem: Mapping[str, bytes] = field(repr=False)

    def tls_context(self) -> ssl.SSLContext | None:
        """TLS with these certificates; None without TLS. Raises ConfigError where they cannot be used."""
        tls = self.config.tls
        if tls is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[tls.min_version]
        context.maximum_version = _VERSIONS[tls.max_version]
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.set_ciphers(_CIPHERS)
        context.set_alpn_protocols(["http/1.1"])
        self._load_certificate(context)
        if tls.verify_mode is not ssl.CERT_NONE:
            key, pem = self._checked_pem("client_ca", b"-----BEGIN CERTIFICATE-----", "certificate")
            try:
                context.load_verify_locations(cadata=pem.decode("ascii", "replace"))
            except (ssl.SSLError, ValueError) as error:
                problem = f"cannot be used: {getattr(error, 'reason', None) or 'not PEM'}"
                raise self._pem_error(key, problem) from None
            accept_what_kubectl_accepts(context)
            # A session ticket would let a client in again whose certificate is no longer valid.
            context.num_tickets = 0
            context.options |= ssl.OP_NO_TICKET
        context.verify_mode = tls.verify_mode
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        cert_key, cert = self._checked_pem("cert", b"-----BEGIN CERTIFICATE-----", "certificate")
        key_key, key = self._checked_pem("key", b"PRIVATE KEY-----", "private key")
        encrypted = self._pem_error(key_key, "found an encrypted key, expected one without a password")
        if b"ENCRYPTED" in key:
            raise encrypted

        def no_password() -> bytes:
            raise encrypted

        with _memory_file(cert) as cert_path, _memory_file(key) as key_path:
            try:
                context.load_cert_chain(cert_path, key_path, password=no_password)
            except ssl.SSLError as error:
                where, problem = _REASONS.get(error.reason or "", ("", ""))
                problem = problem or f"it and its key cannot be used: {error.reason or 'not PEM'}"
                raise self._pem_error(key_key if where == "key" else cert_key, problem) from None

    def _checked_pem(self, name: str, mark: bytes, what: str) -> tuple[str, bytes]:
        """The key under which the PEM of `name` is configured, and its content."""
        key = name if name in self.pem else f"{name}_file"
        if mark not in self.pem[key]:
            raise self._pem_error(key, f"found no {what}, expected PEM with BEGIN {what.upper()}")
        return key, self.pem[key]

    def _pem_error(self, key: str, problem: str) -> ConfigError:
        source = self.config.pem[key]
        return self.config.tls_error(key, f"{source} {problem}" if isinstance(source, Path) else problem)


def read_files(file: Path) -> WebFiles:
    """The configuration file and the files that it names. Blocking. Raises ConfigError."""
    try:
        content = _read(file)
    except OSError as error:
        raise ConfigError(str(file), None, (), f"cannot be read: {error.strerror or error}") from None
    return read_named_files(content, str(file), file.parent)


def read_named_files(content: bytes, source: str, directory: Path) -> WebFiles:
    """The configuration in `content` with the files that it names. Blocking. Raises ConfigError."""
    config = load(content, source, directory)
    pem: dict[str, bytes] = {}
    for key, wanted in config.pem.items():
        try:
            pem[key] = _read(wanted) if isinstance(wanted, Path) else wanted.encode(errors="surrogatepass")
        except OSError as error:
            raise config.tls_error(key, f"{wanted} cannot be read: {error.strerror or error}") from None
    return WebFiles(config, content, pem)


def _read(path: Path) -> bytes:
    """A regular file's content, at most MAX_BYTES. Raises OSError for other files: a pipe may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(f"it has more than {MAX_BYTES >> 10} KiB")
    return content


@contextmanager
def _memory_file(content: bytes) -> Generator[str]:
    """The path of a file in memory: ssl loads a certificate and its key from files alone."""
    descriptor = os.memfd_create("devicelens", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def weakened(old: WebConfig, new: WebConfig) -> str:
    """The protection of `old` that `new` lacks, "" for none.

    A running process does not give it up: a file that is being written can look like one without it.
    """
    if (old.tls is None) is not (new.tls is None):
        return "it switches TLS off" if new.tls is None else "it switches TLS on"
    if old.users and not new.users:
        return "it requires no password any more"
    if old.tls is not None and new.tls is not None:
        if new.tls.verify_mode < old.tls.verify_mode:
            return "it requires less of clients' certificates"
        if old.tls.allowed_names is not None and new.tls.allowed_names is None:
            return "it admits clients' certificates with any name"
    return ""


class WebConfigReloader:
    """The access policy of a configuration file, reloaded when the files change.

    Call `start` before anything is served, then run `run` as an actor. A file that cannot be used changes
    nothing: the previous policy stays in force.
    """

    def __init__(self, file: Path, *, interval: float = READ_INTERVAL, settle: float = SETTLE) -> None:
        """`interval` and `settle`: seconds between two reads, and between two that must be the same."""
        self._file = file
        self._interval = interval
        self._settle = settle
        self._policy = OPEN
        self._files: WebFiles | None = None
        self._reload = asyncio.Event()
        self._refused = Episode(_log, "web configuration refused, the last one stays in force")

    @property
    def policy(self) -> AccessPolicy:
        """The policy in force."""
        return self._policy

    @property
    def problem(self) -> str:
        """Why the files were refused when they were last read; "" if they were not."""
        return self._refused.reason or ""

    def ask(self) -> None:
        """Reload soon (SIGHUP)."""
        self._reload.set()

    async def start(self) -> None:
        """Read the files for the first time. Raises Fatal: nothing is served without its protection."""
        try:
            self._accept(await self._stable_files())
        except ConfigError as error:
            raise Fatal(f"--web.config.file: {error}") from error

    async def run(self) -> None:
        """Reload when the files change, until cancelled."""
        while True:
            await wait_within(self._reload, self._interval)
            self._reload.clear()
            await self.reload()

    async def reload(self) -> None:
        """Reload now."""
        try:
            files = await self._stable_files()
            if files != self._files:
                self._accept(files)
                _log.info("web configuration read", asks_for=files.config.words())
        except ConfigError as error:
            self._refused.failed(str(error), level="error")
        else:
            self._refused.recovered()

    async def _stable_files(self) -> WebFiles:
        """The files, once two reads in a row are the same and their certificate and key match.

        Raises ConfigError after ATTEMPTS reads that failed, or four times as many that differed.
        """
        last: WebFiles | None = None
        failures = 0
        for _ in range(4 * ATTEMPTS):
            try:
                files = await asyncio.to_thread(read_files, self._file)
                if files == self._files:
                    return files
                files.tls_context()
                if files == last:
                    return files
                last, failures = files, 0
            except ConfigError:
                failures += 1
                if failures == ATTEMPTS:
                    raise
            await asyncio.sleep(self._settle)
        raise ConfigError(str(self._file), None, (), "it changed each time that it was read")

    def _accept(self, files: WebFiles) -> None:
        """Put the files in force. Raises ConfigError."""
        config, old = files.config, self._files.config if self._files is not None else None
        lost = "" if old is None else weakened(old, config)
        if lost:
            problem = f"{lost}, which a running process does not do: restart it for that"
            raise ConfigError(str(self._file), None, (), problem)
        # The same users keep what their gate has cached.
        kept = self._policy.users if old is not None and old.users == config.users else None
        self._policy = AccessPolicy(
            tls=files.tls_context(),
            allowed_names=None if config.tls is None else config.tls.allowed_names,
            users=kept or (UserGate(config.users) if config.users else None),
            headers=config.headers,
        )
        self._files = files
