"""The keys of a web configuration, as prometheus/exporter-toolkit has them (docs/web-configuration.md).

What cannot be honoured is decoded too, to be refused with its reason rather than as unknown.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
ClientAuth = Literal[
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "RequireClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Names = Annotated[list[Name], Meta(max_length=256)]
Pem = Annotated[str, Meta(min_length=1)]


class TlsServerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """HTTPS, and which clients may connect."""

    cert: Pem | UnsetType = UNSET
    """The certificate, with those between it and its authority, as PEM in the file itself."""
    key: Pem | UnsetType = UNSET
    """Its private key, as PEM in the file itself."""
    client_ca: Pem | UnsetType = UNSET
    """Certificates of the authorities that clients' are issued by, as PEM in the file itself."""
    cert_file: Name | UnsetType = UNSET
    """The certificate's file, PEM; relative to the configuration's directory."""
    key_file: Name | UnsetType = UNSET
    """The private key's file, PEM, not encrypted."""
    client_auth_type: ClientAuth = "NoClientCert"
    """Whether clients need certificates."""
    client_ca_file: Name | UnsetType = UNSET
    """The file with the certificates of clients' authorities, PEM."""
    client_allowed_sans: Names | UnsetType = UNSET
    """Subject alternative names (DNS, IP, e-mail, URI): a client's certificate must have one, exactly."""
    min_version: Version = "TLS12"
    """The oldest version of TLS that is spoken."""
    max_version: Version = "TLS13"
    """The newest."""
    cipher_suites: Names | UnsetType = UNSET
    """Cipher suites for TLS 1.2, by the names that Go gives them."""
    prefer_server_cipher_suites: bool = True
    """Whether the server's order of suites decides, rather than the client's."""
    curve_preferences: Names | UnsetType = UNSET
    """The elliptic curve for the key exchange, by Go's name."""


class HttpServerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How HTTP is answered."""

    http2: bool = False
    """HTTP/2."""
    headers: Annotated[dict[str, str], Meta(max_length=16)] = {}
    """Headers of every answer, in place of those that are sent anyway."""


class RateLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """How many requests are answered, of all clients together."""

    interval: str | int = 0
    """Time in which one more request may come; 0: no limit."""
    burst: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Requests that may come at once."""


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file."""

    tls_server_config: TlsServerConfig | UnsetType = UNSET
    """HTTPS; plain HTTP without it."""
    http_server_config: HttpServerConfig = field(default_factory=HttpServerConfig)
    """How HTTP is answered."""
    basic_auth_users: Annotated[dict[str, str], Meta(max_length=256)] | UnsetType = UNSET
    """Users and the bcrypt hashes of their passwords; nobody is asked for one without it."""
    rate_limit: RateLimit = field(default_factory=RateLimit)
    """A limit of requests."""
