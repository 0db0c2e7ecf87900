"""Command-line flags in the Prometheus style, each with an environment variable.

`--web.listen-address` is also `DEVICELENS_WEB_LISTEN_ADDRESS`: the flag wins.

Durations as Prometheus writes them.

Sizes in bytes, as Prometheus writes them.

Where an exporter or a plugin is: http://HOST:PORT, https://HOST:PORT or unix:PATH. Pure.
"""

import re
import socket
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import click

from runtime.log import FORMATS, LEVELS
from runtime.text import visible

UNIX_PATH_BYTES: Final = 107
"""The longest path a unix socket can have on Linux: sun_path is 108 bytes with its NUL."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
# As in Prometheus, each unit once and the larger first.
_DURATION = re.compile(
    "".join(f"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in ("w", "d", "h", "m", "s", "ms"))
)


def parse_duration(text: str) -> float:
    """Seconds of a Prometheus duration: `250ms`, `5s`, `1h30m`, `30d`; `0` alone needs no unit.

    Raises ValueError for anything else.
    """
    text = text.strip()
    if text == "0":
        return 0.0
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"found {text!r}, expected a duration such as 250ms, 5s, 1h30m or 30d")
    return sum(float(number) * _UNITS[unit] for unit, number in match.groupdict(default="0").items())


_UNITS_SIZES: Final[dict[str, int]] = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
_SIZE: Final = re.compile(rf"([0-9]{{1,15}})({'|'.join(_UNITS_SIZES)})")


def parse_size(text: str) -> int:
    """Bytes of `64MiB`, `512MB`, `1GiB` or `1048576`; units are powers of 1024, with the i and without it.

    Raises ValueError for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"found {text!r}, expected a size such as 64MiB, 1GiB or 1048576")
    return int(match[1]) * _UNITS_SIZES[match[2]]


F = TypeVar("F", bound=Callable[..., Any])

_TCP = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]*:[^\[\]\s/]*)\]|(?P<name>[^\[\]:/\s]*)):(?P<port>[0-9]{1,5})")
_NODE_NAME_LIMIT = 253


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen: `path` of a unix socket, or `host` (None: all addresses) and `port` (0: any)."""

    host: str | None = None
    port: int = 0
    path: Path | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        host = self.host or ""
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """The address of `:10190`, `127.0.0.1:10190`, `[::1]:10190` or `unix:/run/x.sock`.

    Raises ValueError for anything else.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path:
            raise ValueError(f"found {text!r}, expected a path after unix:")
        return ListenAddress(path=Path(path))
    match = _TCP.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"found {text!r}, expected HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH")
    return ListenAddress(host=match["v6"] or match["name"] or None, port=int(match["port"]))


def parse_node_name(text: str) -> str:
    """A node's name as it may be: it is a label of every series, so nothing unprintable.

    Raises ValueError for anything else.
    """
    if not 0 < len(text) <= _NODE_NAME_LIMIT or not text.isprintable() or " " in text:
        raise ValueError(f"found {text!r}, expected a node's name of at most {_NODE_NAME_LIMIT} characters")
    return text


class _Parsed(click.ParamType[Any]):
    """A click type around a function that raises ValueError."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = _Parsed("duration", parse_duration)
SIZE = _Parsed("size", parse_size)
LISTEN_ADDRESS = _Parsed("address", parse_listen_address)
NODE_NAME = _Parsed("name", parse_node_name)


def variable(flag: str) -> str:
    """The environment variable of a flag: `--poll.interval` → `DEVICELENS_POLL_INTERVAL`."""
    return "DEVICELENS_" + re.sub(r"[.-]", "_", flag.removeprefix("--")).upper()


def flag(name: str, **settings: Any) -> Callable[[F], F]:
    """A click option called `name`, its parameter spelled with underscores, with its variable shown."""
    destination = re.sub(r"[.-]", "_", name.removeprefix("--"))
    settings.setdefault("envvar", variable(name))
    settings.setdefault("show_envvar", True)
    settings.setdefault("show_default", True)
    return click.option(name, destination, **settings)


def process_flags(default_listen_address: str) -> Callable[[F], F]:
    """The flags of both long-running processes: listening, the kubelet's root, the node, logging."""

    def decorate(command: F) -> F:
        for option in reversed(
            (
                flag(
                    "--web.listen-address",
                    type=LISTEN_ADDRESS,
                    default=default_listen_address,
                    metavar="ADDRESS",
                    help="Where to serve HTTP: HOST:PORT, :PORT or unix:PATH.",
                ),
                flag(
                    "--web.config.file",
                    type=click.Path(path_type=Path, dir_okay=False),
                    default=None,
                    metavar="FILE",
                    help="TLS, client certificates, passwords and headers, as Prometheus' exporters have "
                    "them; read again when it changes.",
                ),
                kubelet_root_flag(),
                flag(
                    "--node-name",
                    type=NODE_NAME,
                    envvar=[variable("--node-name"), "NODE_NAME"],
                    default=default_node_name,
                    show_default="the host's name",
                    help="This node's name in Kubernetes.",
                ),
                *log_flags(),
            )
        ):
            command = option(command)
        return command

    return decorate


def kubelet_root_flag() -> Callable[[F], F]:
    """--kubelet.root, from which every socket's path follows."""
    return flag(
        "--kubelet.root",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("/var/lib/kubelet"),
        metavar="DIRECTORY",
        help="The kubelet's root directory; its sockets are found below it.",
    )


def log_flags() -> tuple[Callable[[Any], Any], ...]:
    """--log.level and --log.format."""
    return (
        flag("--log.level", type=click.Choice(LEVELS), default="info", help="Least level of events shown."),
        flag("--log.format", type=click.Choice(FORMATS), default="logfmt", help="How events are written."),
    )


def default_node_name() -> str:
    """The host's name, as the kubelet takes it: lower case."""
    return socket.gethostname().lower()


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
