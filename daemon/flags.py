"""Command-line flags in the Prometheus style, each with an environment variable.

`--web.listen-address` is also `DEVICELENS_WEB_LISTEN_ADDRESS`: the flag wins.
"""

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from daemon.durations import parse_duration
from daemon.log import FORMATS, LEVELS
from daemon.sizes import parse_size

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
