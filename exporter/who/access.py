"""How to be let in: a token, TLS with certificates of one's own. Reads the files that flags name."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from daemon.text import visible

_TOKEN_BYTES: Final = 64 * 1024


class AccessError(ValueError):
    """A file that cannot be used; `flag` named it."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(message)
        self.flag = flag


@dataclass(frozen=True, slots=True)
class Access:
    """What servers may want to see, and whom to believe. `insecure`: no certificate is checked."""

    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    insecure: bool = False

    @property
    def of_tls(self) -> str:
        """The first flag that only https can honour, "" for none."""
        given = {
            "--ca-file": self.ca_file,
            "--cert-file": self.cert_file,
            "--key-file": self.key_file,
            "--insecure-skip-verify": self.insecure,
        }
        return next((flag for flag, value in given.items() if value), "")

    def bearer(self) -> str:
        """The header for the token, "" without one. Read anew each time: tokens are rotated.

        Raises AccessError.
        """
        if self.token_file is None:
            return ""
        try:
            with self.token_file.open("rb") as file:
                raw = file.read(_TOKEN_BYTES + 1)
        except OSError as error:
            raise AccessError("--token-file", _unreadable(self.token_file, error)) from error
        token = raw.strip()
        if not token or len(raw) > _TOKEN_BYTES or not all(0x21 <= byte < 0x7F for byte in token):
            found = "nothing" if not token else "something else"
            raise AccessError(
                "--token-file", f"{visible(str(self.token_file))}: found {found}, expected one line, a token"
            )
        return f"Bearer {token.decode('ascii')}"

    def context(self) -> ssl.SSLContext:
        """How https is spoken. Raises AccessError."""
        context = ssl.create_default_context()
        if self.ca_file is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            try:
                context.load_verify_locations(self.ca_file)
            except (OSError, ValueError) as error:
                raise AccessError("--ca-file", _unreadable(self.ca_file, error)) from error
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.key_file is not None and self.cert_file is None:
            raise AccessError("--key-file", "expected the certificate, --cert-file, beside it")
        if self.cert_file is not None:
            try:
                # An encrypted key would be asked about on the terminal.
                context.load_cert_chain(self.cert_file, self.key_file, password="")
            except (OSError, ValueError) as error:
                flag = "--cert-file" if self.key_file is None else "--cert-file and --key-file"
                raise AccessError(flag, _unreadable(self.cert_file, error)) from error
        return context


NO_ACCESS: Final = Access()
"""Of a server that lets everybody in."""


def _unreadable(path: Path, error: OSError | ValueError) -> str:
    shown = visible(str(path))
    if isinstance(error, ssl.SSLError):
        words = {
            "KEY_VALUES_MISMATCH": "the key is another certificate's",
            "NO_CERTIFICATE_OR_CRL_FOUND": "found no certificate in it, expected PEM",
        }
        other = f"found no PEM that can be used ({error.reason or error})"
        return f"{shown}: {words.get(error.reason or '', other)}"
    return f"{shown}: {getattr(error, 'strerror', None) or error}"
