"""What HTTP clients share: credential files, TLS, answers of limited size, and why a connection fails."""

import os
import ssl
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from runtime.text import visible

if TYPE_CHECKING:  # the commands use this module without aiohttp
    import aiohttp

_CHUNK: Final = 256 * 1024
_PEM_PROBLEMS: Final[Mapping[str, str]] = {
    "KEY_VALUES_MISMATCH": "the key belongs to another certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "found no certificate in it, expected PEM",
}
"""By OpenSSL's names of errors."""


class CredentialError(Exception):
    """A credential file cannot be used: the path and the reason. `part` is the one of several files."""

    def __init__(self, path: Path, reason: str, part: Literal["ca", "cert"] = "ca") -> None:
        super().__init__(f"{visible(str(path))}: {reason}")
        self.part = part


class TooLargeError(Exception):
    """An answer has more bytes than allowed."""


def read_credential(path: Path, limit: int) -> bytes:
    """The content of a credential file of at most `limit` bytes. Raises CredentialError."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise CredentialError(path, error.strerror or str(error)) from error
    if len(content) > limit:
        raise CredentialError(path, f"larger than {limit} bytes")
    return content


def accept_what_kubectl_accepts(context: ssl.SSLContext) -> None:
    """Verify certificates as kubectl does, in every version of Python.

    Python 3.13 checks RFC 5280 strictly: it refuses an authority without keyUsage, such as one of plain
    `openssl req -x509`. Before 3.13, Python refuses an intermediate authority without its root.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


@contextmanager
def without_system_authorities() -> Generator[None]:
    """Let contexts that are made within trust nobody. It is for the import of aiohttp, with a single thread.

    aiohttp reads the system's authorities twice when it is imported: a seventh of a process's start, and
    2 MiB. Each request of the processes has a context of its own, by `client_context`.
    https://docs.openssl.org/master/man3/SSL_CTX_load_verify_locations/
    """
    nowhere = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
    before = {name: os.environ.get(name) for name in nowhere}
    os.environ.update(nowhere)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def client_context(ca: Path | str | None) -> ssl.SSLContext:
    """A client's context that trusts the authorities of `ca`, a file or PEM; None: the system's.

    Raises OSError, ssl.SSLError and ValueError.
    """
    text = ca if isinstance(ca, str) else None
    context = ssl.create_default_context(cafile=ca if text is None else None, cadata=text)
    accept_what_kubectl_accepts(context)
    return context


def tls_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """A context that trusts the authorities of `ca` (None: the system's) and shows the certificate `cert`.

    `key` is None if the certificate's file contains it. Raises CredentialError.
    """
    try:
        context = client_context(ca)
    except (OSError, ValueError) as error:
        raise CredentialError(ca or Path(), _pem_problem(error)) from error
    if cert is not None:
        try:
            # An empty password: OpenSSL would ask for an encrypted key's password on the terminal.
            context.load_cert_chain(cert, key, password="")
        except (OSError, ValueError) as error:
            raise CredentialError(cert, _pem_problem(error), "cert") from error
    return context


def _pem_problem(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return _PEM_PROBLEMS.get(reason, f"found no PEM that can be used ({reason})")
    return visible(getattr(error, "strerror", None) or str(error), limit=200)


def connection_problem(error: BaseException) -> str:
    """Why a connection to an address or a socket fails."""
    match error:
        case ConnectionRefusedError():
            return "connection refused: nothing listens there"
        case FileNotFoundError():
            return "there is no such socket"
        case PermissionError():
            return "no permission to connect to this socket"
        case _:
            return visible(getattr(error, "strerror", None) or repr(error), limit=200)


async def read_body(response: "aiohttp.ClientResponse", limit: int) -> bytes:
    """A response's body of at most `limit` bytes. Raises TooLargeError and aiohttp's errors."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK):
        body += chunk
        if len(body) > limit:
            raise TooLargeError
    return bytes(body)
