"""The files by which plugins let the exporter in, read again when they change: certificates are renewed."""

import ssl
from base64 import b64encode
from pathlib import Path
from typing import Final

from daemon.text import visible
from exporter.core.plugin_access import PluginAccess

_PASSWORD_BYTES: Final = 1024

_Seen = tuple[tuple[int, int, int], ...]


class AccessError(Exception):
    """A file that cannot be used; the message names its flag, and says why."""


class Access:
    """What `files` say at a moment."""

    def __init__(self, files: PluginAccess) -> None:
        self._files = files
        self._context: tuple[_Seen, ssl.SSLContext] | None = None

    def authorization(self) -> str:
        """The header for the name and the password; "" without them. Raises AccessError."""
        path = self._files.password_file
        if path is None:
            return ""
        try:
            with path.open("rb") as file:
                content = file.read(_PASSWORD_BYTES + 1)
        except OSError as error:
            raise _refused("--plugin.password-file", path, error.strerror or str(error)) from None
        pair = content.strip(b"\r\n")
        if b":" not in pair or b"\n" in pair or len(content) > _PASSWORD_BYTES:
            raise _refused("--plugin.password-file", path, "expected one line USER:PASSWORD")
        return f"Basic {b64encode(pair).decode()}"

    def tls(self) -> ssl.SSLContext:
        """How https is spoken. Raises AccessError."""
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
            raise _refused("--plugin.ca-file", files.ca_file, _why(error)) from None
        if files.cert_file is not None:
            try:
                # An encrypted key would be asked about on the terminal.
                made.load_cert_chain(files.cert_file, files.key_file, password="")
            except (OSError, ValueError) as error:
                raise _refused("--plugin.cert-file", files.cert_file, _why(error)) from None
        return made


def _state(path: Path) -> tuple[int, int, int]:
    """What tells a file from itself before; a missing one is told of when it is read."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size


def _refused(flag: str, path: Path | None, why: str) -> AccessError:
    return AccessError(f"{flag} {visible(str(path))}: {why}")


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is another certificate's"
        return f"it is no PEM that can be used ({error.reason or 'nothing found'})"
    return visible(getattr(error, "strerror", None) or str(error), limit=200)
