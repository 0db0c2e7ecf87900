"""Access to the API server: by the pod's service account, or by a kubeconfig.

Files are read again for each connection: tokens and certificates are replaced while the process runs.
"""

import base64
import binascii
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from exporter.apiserver import ACCOUNT
from runtime.http.client import CredentialError, client_context, read_credential

_FILE_LIMIT: Final = 1024 * 1024
"""Bytes of a kubeconfig, a token or a certificate."""


class ApiServerAccessError(Exception):
    """The API server cannot be reached with this configuration: the file, what was found and expected."""


class ApiServerAccess(Struct, frozen=True):
    """Address and credentials of an API server. Paths are read at each use."""

    server: str
    ca: Path | str | None = None
    server_name: str | None = None
    insecure: bool = False
    token: Path | str | None = None
    certificate: Path | str | None = None
    key: Path | str | None = None

    def authorization(self) -> str | None:
        """The Authorization header with the present token. Raises ApiServerAccessError."""
        token = None if self.token is None else _text(self.token).strip()
        return f"Bearer {token}" if token else None

    def tls(self) -> ssl.SSLContext:
        """A TLS context with the present certificates. Raises ApiServerAccessError."""
        try:
            context = client_context(None if self.ca is None else _text(self.ca))
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certificate is not None and self.key is not None:
                _load_pair(context, _text(self.certificate), _text(self.key))
        except ssl.SSLError as error:
            raise ApiServerAccessError(f"a certificate for {self.server} cannot be used: {error}") from error
        return context


def api_server_access(
    kubeconfig: Path | None, environment: Mapping[str, str], *, account: Path = ACCOUNT
) -> ApiServerAccess:
    """Access by `kubeconfig`, or by the pod's service account without one. Raises ApiServerAccessError."""
    if kubeconfig is not None:
        return _of_kubeconfig(kubeconfig)
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ApiServerAccessError(
            "this is no pod (KUBERNETES_SERVICE_HOST is not set): expected --kubeconfig"
        )
    for name in ("token", "ca.crt"):
        if not (account / name).exists():
            raise ApiServerAccessError(
                f"there is no {account / name}: expected automountServiceAccountToken, or --kubeconfig"
            )
    where = f"[{host}]" if ":" in host else host
    return ApiServerAccess(f"https://{where}:{port}", ca=account / "ca.crt", token=account / "token")


class _Cluster(Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    proxy_url: str = ""


class _User(Struct):
    token: str = ""
    token_file: str = field(default="", name="tokenFile")
    client_certificate: str = field(default="", name="client-certificate")
    client_certificate_data: str = field(default="", name="client-certificate-data")
    client_key: str = field(default="", name="client-key")
    client_key_data: str = field(default="", name="client-key-data")
    exec: dict[str, object] | None = None
    auth_provider: dict[str, object] | None = field(default=None, name="auth-provider")
    username: str = ""


class _Context(Struct):
    cluster: str = ""
    user: str = ""


class _NamedCluster(Struct):
    name: str
    cluster: _Cluster


class _NamedUser(Struct):
    name: str
    user: _User = field(default_factory=_User)


class _NamedContext(Struct):
    name: str
    context: _Context


class _Config(Struct):
    current_context: str = field(default="", name="current-context")
    clusters: list[_NamedCluster] = field(default_factory=list[_NamedCluster])
    users: list[_NamedUser] = field(default_factory=list[_NamedUser])
    contexts: list[_NamedContext] = field(default_factory=list[_NamedContext])


def _of_kubeconfig(path: Path) -> ApiServerAccess:
    import yaml  # noqa: PLC0415 -- a pod does not need it

    try:
        config = msgspec.convert(yaml.safe_load(_read(path)), _Config)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ApiServerAccessError(f"{path}: expected a kubeconfig: {error}") from error
    context = next((c.context for c in config.contexts if c.name == config.current_context), None)
    if context is None:
        raise ApiServerAccessError(
            f"{path}: current-context: found {config.current_context!r}, which is no context"
        )
    cluster = next((c.cluster for c in config.clusters if c.name == context.cluster), None)
    user = next((u.user for u in config.users if u.name == context.user), None)
    if cluster is None or user is None:
        raise ApiServerAccessError(
            f"{path}: context {config.current_context!r}: its cluster or user is not there"
        )
    url = urlsplit(cluster.server)
    if url.scheme not in {"https", "http"} or not url.hostname:
        raise ApiServerAccessError(f"{path}: server: found {cluster.server!r}, expected https://HOST:PORT")
    _refuse_unsupported(path, cluster, user)

    def file(name: str) -> Path | None:
        return path.parent / name if name else None

    def data(name: str, encoded: str) -> str | None:
        try:
            return base64.b64decode(encoded, validate=True).decode("ascii") if encoded else None
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ApiServerAccessError(f"{path}: {name}: expected base64 of PEM: {error}") from error

    return ApiServerAccess(
        cluster.server.rstrip("/"),
        ca=data("certificate-authority-data", cluster.certificate_authority_data)
        or file(cluster.certificate_authority),
        server_name=cluster.tls_server_name or None,
        insecure=cluster.insecure_skip_tls_verify,
        token=file(user.token_file) or user.token or None,
        certificate=data("client-certificate-data", user.client_certificate_data)
        or file(user.client_certificate),
        key=data("client-key-data", user.client_key_data) or file(user.client_key),
    )


def _refuse_unsupported(path: Path, cluster: _Cluster, user: _User) -> None:
    for name, found in (
        ("exec", user.exec),
        ("auth-provider", user.auth_provider),
        ("username", user.username),
        ("proxy-url", cluster.proxy_url),
    ):
        if found:
            raise ApiServerAccessError(
                f"{path}: {name} is not served; expected a token or a client certificate"
            )
    if bool(user.client_certificate or user.client_certificate_data) != bool(
        user.client_key or user.client_key_data
    ):
        raise ApiServerAccessError(f"{path}: found a client certificate or a key alone, expected both")


def _text(source: Path | str) -> str:
    return source if isinstance(source, str) else _read(source)


def _read(path: Path) -> str:
    try:
        return read_credential(path, _FILE_LIMIT).decode()
    except CredentialError as error:
        raise ApiServerAccessError(str(error)) from error
    except UnicodeDecodeError as error:
        raise ApiServerAccessError(f"{path}: found something that is no text") from error


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a client certificate: the ssl module reads it from files only."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:
        pair.write(f"{certificate}\n{key}\n")
        pair.flush()
        context.load_cert_chain(pair.name)
