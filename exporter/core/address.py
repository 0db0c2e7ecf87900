"""Where an exporter or a plugin is: http://HOST:PORT, https://HOST:PORT or unix:PATH. Pure."""

from base64 import b64encode
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from daemon.paths import UNIX_PATH_BYTES
from daemon.text import visible

_EXPECTED: Final = "expected http://HOST:PORT, https://HOST:PORT or unix:PATH"
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """`scheme` is http, https or unix. `path` is the socket's for unix, else what all paths begin with.

    `authorization` is the header's value, "" for none; it is never shown.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    authorization: str = ""

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{visible(self.path)}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return visible(f"{self.scheme}://{host}:{self.port}{self.path}")


def parse_address(text: str) -> Address:
    """The address that `text` says. Raises ValueError: what was found, what was expected."""
    if text.startswith("unix:"):
        return _unix(text)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"found {visible(text)!r}, {_EXPECTED}: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"found {visible(text)!r}, {_EXPECTED}")
    if not (parts.hostname + parts.path).isprintable() or " " in parts.hostname + parts.path:
        raise ValueError(f"found {visible(text)!r}, {_EXPECTED}")
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {b64encode(pair.encode()).decode()}"
    return Address(
        scheme=parts.scheme,
        host=parts.hostname,
        port=_PORTS[parts.scheme] if port is None else port,
        path=parts.path.rstrip("/"),
        authorization=authorization,
    )


def _unix(text: str) -> Address:
    path = text.removeprefix("unix:")
    if path.startswith("//"):
        path = path.removeprefix("//")
    if not path or "\0" in path:
        raise ValueError(f"found {visible(text)!r}, expected a path after unix:")
    if len(path.encode(errors="surrogateescape")) > UNIX_PATH_BYTES:
        raise ValueError(f"found {visible(text)!r}: a socket's path is at most {UNIX_PATH_BYTES} bytes long")
    return Address("unix", path=path)
