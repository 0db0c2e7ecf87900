"""Command-line flags in the Prometheus style, each with an environment variable, and the values they take.

`--web.listen-address` is also `DEVICELENS_WEB_LISTEN_ADDRESS`; the flag wins. A long-running process declares
each of its flags once, as a field of a frozen dataclass (`setting`): name, default, type, help, least value.
`settings_command` makes the click command from that dataclass.
"""

import dataclasses
import functools
import re
import socket
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import click

from runtime.log import FORMATS, LEVELS
from runtime.text import parse_duration, parse_size, quoted, visible

UNIX_PATH_BYTES: Final = 107
"""The longest path a unix socket can have on Linux: sun_path is 108 bytes with its NUL."""

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound="ProcessSettings")

_TCP = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]*:[^\[\]\s/]*)\]|(?P<name>[^\[\]:/\s]*)):(?P<port>[0-9]{1,5})")
_NODE_NAME_LIMIT = 253
_HOST = re.compile(r"\.?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_HOST_LIMIT = 254


class ListenAddress(NamedTuple):
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


def parse_hosts(text: str) -> frozenset[str]:
    """Host names with commas, in lower case: `a.example,.example.com`, or `*`. Raises ValueError."""
    names = frozenset(filter(None, (part.strip().lower().rstrip(".") for part in text.split(","))))
    for name in sorted(names - {"*"}):
        if len(name) > _HOST_LIMIT or _HOST.fullmatch(name) is None:
            raise ValueError(
                f"found {quoted(name)}, expected names without ports such as devicelens.example.com, "
                ".example.com for all names below it, or *"
            )
    return names


class Parsed(click.ParamType[Any]):
    """A click type around a function that raises ValueError. `show` writes a value of it for an error."""

    def __init__(
        self, name: str, parse: Callable[[str], object], show: Callable[[Any], str] = "{:g}".format
    ) -> None:
        self.name = name
        self.parse = parse
        self.show = show

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The parsed value; a default that is no text is taken as it is."""
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _show_size(size: int) -> str:
    return f"{size >> 20}MiB" if size % (1 << 20) == 0 else f"{size} bytes"


DURATION: Final = Parsed("duration", parse_duration, "{:g}s".format)
SIZE: Final = Parsed("size", parse_size, _show_size)
LISTEN_ADDRESS: Final = Parsed("address", parse_listen_address)
HOSTS: Final = Parsed("names", parse_hosts)
NODE_NAME: Final = Parsed("name", parse_node_name)
FILE: Final = click.Path(path_type=Path, dir_okay=False)
DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)


def variable(flag: str) -> str:
    """The environment variable of a flag: `--poll.interval` → `DEVICELENS_POLL_INTERVAL`."""
    return "DEVICELENS_" + re.sub(r"[.-]", "_", flag.removeprefix("--")).upper()


def flag(name: str, **options: Any) -> Callable[[F], F]:
    """A click option called `name`, its parameter spelled with underscores, with its variable shown.

    `options` are click's.
    """
    destination = re.sub(r"[.-]", "_", name.removeprefix("--"))
    options.setdefault("envvar", variable(name))
    options.setdefault("show_envvar", True)
    options.setdefault("show_default", True)
    return click.option(name, destination, **options)


def setting(name: str, *, default: Any = None, at_least: Any = None, **options: Any) -> Any:
    """A field of a settings dataclass that the flag `name` sets.

    `default` is a value, the text of one as a user writes it, or a function that makes one. `at_least` is the
    least value, or the name of another field that has it. `options` are click's.
    """
    kind, several = options.get("type"), options.get("multiple", False)
    shown = None if several else default
    metadata = {"flag": name, "options": {"default": shown, **options}, "at_least": at_least}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    if several:
        default = ()
    elif isinstance(kind, Parsed) and isinstance(default, str):
        default = kind.parse(default)
    return dataclasses.field(default=default, metadata=metadata)


def settings_flag(settings: "type[ProcessSettings]", field: str) -> Callable[[F], F]:
    """The click option that the field `field` of the dataclass `settings` declares."""
    return _option(next(found for found in dataclasses.fields(settings) if found.name == field))


def settings_command(settings: "type[S]") -> Callable[[Callable[[S], None]], click.Command]:
    """Makes a click command of a function that takes an instance of `settings`, a dataclass of `setting`s."""
    fields = dataclasses.fields(settings)

    def decorate(function: Callable[[S], None]) -> click.Command:
        @functools.wraps(function)
        def invoke(**values: Any) -> None:
            for field in fields:
                _check_least(field, values)
            function(settings(**values))

        command = click.command(invoke)
        for field in fields:
            command = _option(field)(command)
        return command

    return decorate


def _option(field: "dataclasses.Field[Any]") -> Callable[[F], F]:
    return flag(field.metadata["flag"], **field.metadata["options"])


def _check_least(field: "dataclasses.Field[Any]", values: Mapping[str, Any]) -> None:
    least, value = field.metadata["at_least"], values[field.name]
    if isinstance(least, str):
        least = values[least]
    if least is not None and value < least:
        show = field.metadata["options"]["type"].show
        problem = f"found {show(value)}, expected at least {show(least)}"
        raise click.BadParameter(problem, param_hint=field.metadata["flag"])


def default_node_name() -> str:
    """The host's name, as the kubelet takes it: lower case."""
    return socket.gethostname().lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The flags of both long-running processes: listening, the kubelet's root, the node, logging."""

    web_listen_address: ListenAddress
    web_config_file: Path | None = setting(
        "--web.config.file",
        type=FILE,
        help="TLS, client certificates, passwords and headers in the format of Prometheus exporters; "
        "reloaded when it changes.",
    )
    web_allowed_hosts: frozenset[str] = setting(
        "--web.allowed-hosts",
        type=HOSTS,
        default=frozenset(),
        show_default="localhost, addresses, the node's name",
        help="Further host names by which clients may call, with commas; .example.com: all names below it, "
        "*: any. Without this flag, TLS and passwords allow any.",
    )
    web_access_log: bool = setting(
        "--web.access-log", is_flag=True, default=False, help="Log each HTTP request at level info."
    )
    kubelet_root: Path = setting(
        "--kubelet.root",
        type=DIRECTORY,
        default=Path("/var/lib/kubelet"),
        help="The kubelet's root directory; its sockets are found below it.",
    )
    node_name: str = setting(
        "--node-name",
        type=NODE_NAME,
        envvar=[variable("--node-name"), "NODE_NAME"],
        default=default_node_name,
        show_default="the host's name",
        help="This node's name in Kubernetes.",
    )
    log_level: str = setting(
        "--log.level", type=click.Choice(LEVELS), default="info", help="Minimum level of events to log."
    )
    log_format: str = setting(
        "--log.format", type=click.Choice(FORMATS), default="logfmt", help="Format of events."
    )


def listen_address_setting(default: str) -> Any:
    """The field `web_listen_address` of a process that serves at `default`."""
    return setting(
        "--web.listen-address",
        type=LISTEN_ADDRESS,
        default=default,
        help="Where to serve HTTP: HOST:PORT, :PORT or unix:PATH.",
    )


def log_flags() -> tuple[Callable[[Any], Any], ...]:
    """--log.level and --log.format, for a command without settings."""
    return settings_flag(ProcessSettings, "log_level"), settings_flag(ProcessSettings, "log_format")


_EXPECTED: Final = "expected http://HOST:PORT, https://HOST:PORT or unix:PATH"
_PORTS: Final = {"http": 80, "https": 443}


class Address(NamedTuple):
    """Where an exporter or a plugin serves: `scheme` is http, https or unix.

    `path` is the socket's for unix, otherwise the prefix of all paths. `authorization` is the header's value,
    "" for none; it is never shown.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    authorization: str = ""

    @property
    def url(self) -> str:
        """The URL before a request's path."""
        if self.scheme == "unix":
            return "http://localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    def __str__(self) -> str:
        return f"unix:{visible(self.path)}" if self.scheme == "unix" else visible(self.url)


def parse_address(text: str) -> Address:
    """The address in `text`. Raises ValueError for anything else."""
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
