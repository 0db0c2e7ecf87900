"""Why a server could not be asked, or would not answer, in words to act upon. Pure."""

import http.client
import socket
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from daemon.text import visible
from exporter.core.address import Address


class AskError(Exception):
    """It could not be asked; the message says what of, and why, in one line."""


class NobodyError(AskError):
    """It was asked, and knows nothing at all of what was asked for."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whatever its status. `media` is its content type without parameters."""

    status: int
    reason: str
    media: str
    location: str
    body: bytes


def refusal(address: Address, path: str, reply: Reply, *, what: str) -> str:
    """Why an answer that is none was given, in words to act upon. `what` is expected at the address."""
    said = visible(f"{reply.status} {reply.reason}", limit=100)
    match reply.status:
        case 400 if b"HTTPS server" in reply.body[:1000]:
            hint = f": it serves https, ask {visible(str(address).replace('http://', 'https://', 1))}"
        case 401 if address.authorization:
            hint = ": it does not take this name and password"
        case 401:
            hint = ": it wants a name and a password, https://NAME:PASSWORD@HOST:PORT, or --token-file"
        case 403:
            hint = ": who asks is known, and may not"
        case 404 | 405:
            hint = f": this is not {what}, or there is another path before {path}"
        case 301 | 302 | 303 | 307 | 308:
            hint = f": it sends on to {reply.location}"
        case 502 | 504:
            hint = ": something before it answers, and does not reach it"
        case _:
            hint = ""
    return f"{address}: {said}{hint}"


_PLAIN: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ConnectionRefusedError, "connection refused: nothing listens there"),
    (FileNotFoundError, "there is no such socket"),
    (PermissionError, "no permission to connect to this socket"),
    (http.client.IncompleteRead, "it broke off in the middle of its answer"),
    (zlib.error, "its answer is not gzip, though it says so"),
)
_CLOSED: Final[Mapping[str, str]] = {
    "http": ": does it serve https?",
    "https": ": does it want a client's certificate (--cert-file)?",
}
_TLS: Final[Mapping[str, str]] = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client's certificate: --cert-file and --key-file",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the certificate of --cert-file",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it wants another client's certificate: --cert-file and --key-file",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it wants a client's certificate, or another version of TLS",
}


def why(address: Address, error: BaseException, timeout: float) -> str:  # noqa: PLR0911 -- a reason each
    """Why asking failed, in words to act upon."""
    for kind, words in _PLAIN:
        if isinstance(error, kind):
            return words
    match error:
        case TimeoutError():
            return f"no answer within {timeout:g} s"
        case socket.gaierror():
            return f"the host's name is not known: {error.strerror}"
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate is not trusted: {visible(error.verify_message)} (--ca-file: whom to trust)"
            )
        case ssl.SSLError():
            known = _TLS.get(error.reason or "")
            if known is not None:
                return known
            return f"TLS fails ({visible(error.reason or str(error))}): does it serve https at all?"
        case ConnectionResetError() | BrokenPipeError():
            # With TLS 1.3 a server may turn a client away after the handshake, and be gone at once.
            hint = _CLOSED.get(address.scheme, "")
            return f"it closed the connection without an answer{hint}"
        case http.client.HTTPException():
            return f"it does not speak HTTP: {visible(repr(error), limit=200)}"
        case _:
            return visible(getattr(error, "strerror", None) or repr(error), limit=200)
