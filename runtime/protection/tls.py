"""An SSLContext of what was read. It never touches a disk, and asks nobody for a password."""

import os
import ssl
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final

from runtime.protection.language import Clients, Tls

_REASONS: Final = {
    "KEY_VALUES_MISMATCH": ("key", "is not the key of the certificate"),
    "EE_KEY_TOO_SMALL": ("cert", "its key is too short for OpenSSL's security level"),
    "CA_KEY_TOO_SMALL": ("cert", "an authority's key is too short for OpenSSL's security level"),
    "CA_MD_TOO_WEAK": ("cert", "is signed in a way that is too weak for OpenSSL's security level"),
}
_MODES: Final = {
    Clients.ANYBODY: ssl.CERT_NONE,
    Clients.VERIFIED_IF_GIVEN: ssl.CERT_OPTIONAL,
    Clients.VERIFIED: ssl.CERT_REQUIRED,
}


class PemError(Exception):
    """What was read cannot be used: the key of tls_server_config that named it, and why."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


def context(tls: Tls, read: Mapping[str, bytes]) -> ssl.SSLContext:
    """A context for connections from now on; `read` has the bytes of each of `tls.sources` by its key.

    Raises PemError.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = tls.oldest
    made.maximum_version = tls.newest
    made.options |= ssl.OP_NO_RENEGOTIATION
    if tls.server_decides:
        made.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    made.set_alpn_protocols(["http/1.1"])
    if tls.suites:
        _choose(made, tls.suites)
    if tls.curve:
        made.set_ecdh_curve(tls.curve)
    _load(made, tls, read[tls.cert.key], read[tls.key.key])
    if tls.client_ca is not None:
        _trust(made, tls.client_ca.key, read[tls.client_ca.key])
        # A ticket would let a client in again whose certificate is no longer good.
        made.num_tickets = 0
        made.options |= ssl.OP_NO_TICKET
    made.verify_mode = _MODES[tls.clients]
    return made


def _choose(made: ssl.SSLContext, suites: tuple[str, ...]) -> None:
    try:
        made.set_ciphers(":".join(suites))
    except ssl.SSLError:
        raise PemError("cipher_suites", "this OpenSSL has none of them") from None
    missing = set(suites) - {suite["name"] for suite in made.get_ciphers()}
    if missing:
        raise PemError("cipher_suites", f"this OpenSSL has no {', '.join(sorted(missing))}")


def _load(made: ssl.SSLContext, tls: Tls, cert: bytes, key: bytes) -> None:
    if b"-----BEGIN CERTIFICATE-----" not in cert:
        raise PemError(tls.cert.key, "found no certificate, expected PEM with BEGIN CERTIFICATE")
    if b"PRIVATE KEY-----" not in key:
        raise PemError(tls.key.key, "found no private key, expected PEM with BEGIN PRIVATE KEY")
    if b"ENCRYPTED" in key:
        raise PemError(tls.key.key, "found an encrypted key, and there is nobody to ask for its password")
    with _as_file(cert) as cert_path, _as_file(key) as key_path:
        try:
            made.load_cert_chain(cert_path, key_path, password=_nobody)
        except ssl.SSLError as error:
            where, words = _REASONS.get(error.reason or "", ("", ""))
            if not where:
                raise PemError(
                    tls.cert.key, f"it and its key cannot be used: {error.reason or 'not PEM'}"
                ) from None
            raise PemError((tls.key if where == "key" else tls.cert).key, words) from None


def _nobody() -> bytes:
    raise PemError("key", "found an encrypted key")


def _trust(made: ssl.SSLContext, key: str, read: bytes) -> None:
    if b"-----BEGIN CERTIFICATE-----" not in read:
        raise PemError(key, "found no certificate, expected PEM with BEGIN CERTIFICATE")
    try:
        made.load_verify_locations(cadata=read.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise PemError(key, f"cannot be used: {getattr(error, 'reason', None) or 'not PEM'}") from None


@contextmanager
def _as_file(content: bytes) -> Generator[str]:
    """The path of a file in memory: OpenSSL takes a certificate and its key from nowhere else."""
    descriptor = os.memfd_create("devicelens", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
