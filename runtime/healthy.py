"""The command `devicelens healthy`: whether a container's process answers; for HEALTHCHECK and exec probes.

It is told nothing that the process was not told already: the address and the web configuration are those of
process 1, from its own command line and environment. Cheap, for it is run again and again: no event loop, no
HTTP client, TLS only where it is spoken.
"""

import base64
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from runtime.flags import DURATION, LISTEN_ADDRESS, ListenAddress, flag
from runtime.text import visible

if TYPE_CHECKING:
    import ssl

_PORTS: Final = {"exporter": 10190, "plugin": 10191}
_ANY: Final = frozenset({None, "0.0.0.0", "::"})
_LINE: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")
_ANSWER_LIMIT: Final = 4096
_LOGIN_LIMIT: Final = 1024
_COMMAND_LIMIT: Final = 65536


class Ill(Exception):  # noqa: N818 -- it is an answer
    """Why it is not healthy, or not ready, in one line."""


@dataclass(frozen=True, slots=True)
class Served:
    """Where a process serves, and whether it was given a web configuration: then it may speak TLS."""

    address: ListenAddress
    configured: bool = False


def served(command_line: Sequence[str]) -> Served | None:
    """What a process of this command line serves, by its flags and the environment; None if not ours.

    Raises click's errors for flags that the process itself cannot have taken.
    """
    places = [index for index, part in enumerate(command_line) if Path(part).name == "devicelens"]
    after = list(command_line[places[0] + 1 :]) if places else []
    name = next((part for part in after if part in _PORTS), None)
    if name is None:
        return None
    options = [
        flag("--web.listen-address", type=LISTEN_ADDRESS, default=None),
        flag("--web.config.file", default=None),
    ]
    command = click.Command(
        name, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, params=[]
    )
    for option in options:
        command = option(command)
    parsed = command.make_context(name, after[after.index(name) + 1 :]).params
    return Served(
        parsed["web_listen_address"] or ListenAddress(port=_PORTS[name]),
        configured=parsed["web_config_file"] is not None,
    )


def process_1(proc: Path = Path("/proc")) -> list[str]:
    """Its command line; empty where it cannot be read."""
    try:
        with (proc / "1/cmdline").open("rb") as file:
            return file.read(_COMMAND_LIMIT).decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return []


def judge(status: int, path: str, *, ready: bool) -> None:
    """Raises Ill where an answer with this status means that the process is not well.

    That it wants a password is an answer of a living process, and tells nothing of whether it is ready.
    """
    if status < 400 or (status == 401 and not ready):
        return
    why = "it wants a password: say --login-file" if status == 401 else f"it answers {status}"
    raise Ill(f"{path}: {why}")


def ask(served_: Served, *, ready: bool, login: str | None = None, timeout: float = 5.0) -> None:
    """Ask for /-/healthy, or /-/ready, and judge the answer. `login` is USER:PASSWORD. Raises Ill."""
    path = "/-/ready" if ready else "/-/healthy"
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", "User-Agent: devicelens-healthy"]
    if login is not None:
        lines.append(f"Authorization: Basic {base64.b64encode(login.encode()).decode()}")
    request = ("\r\n".join(lines) + "\r\n\r\n").encode()
    try:
        if served_.configured:
            answer = _by_tls(served_.address, request, timeout)
        else:
            answer = _plain(served_.address, request, timeout)
    except OSError as error:
        raise Ill(f"{served_.address}: {error.strerror or error}") from error
    if answer is None:
        if ready:
            raise Ill(f"{path}: it wants a client's certificate, which this command does not have")
        return
    match = _LINE.match(answer)
    if match is None:
        raise Ill(f"{served_.address}: what answers there is no HTTP")
    judge(int(match[1]), path, ready=ready)


def _connected(address: ListenAddress, timeout: float) -> socket.socket:
    """Raises OSError."""
    if address.path is not None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        try:
            connection.connect(str(address.path))
        except BaseException:
            connection.close()
            raise
        return connection
    if address.host not in _ANY:
        return socket.create_connection((address.host, address.port), timeout)
    try:
        return socket.create_connection(("127.0.0.1", address.port), timeout)
    except ConnectionRefusedError:
        return socket.create_connection(("::1", address.port), timeout)


def _plain(address: ListenAddress, request: bytes, timeout: float) -> bytes:
    with _connected(address, timeout) as connection:
        connection.sendall(request)
        return _first_line(connection)


def _by_tls(address: ListenAddress, request: bytes, timeout: float) -> bytes | None:
    """The answer; None where the server ended what it had agreed to, for want of a client's certificate."""
    import ssl  # noqa: PLC0415 -- half of this command's time, where it is needed

    context = ssl.create_default_context()
    # It asks itself, over loopback, and gives nothing away but what the server is given anyway.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with _connected(address, timeout) as connection:
        try:
            secured = context.wrap_socket(connection)
        except ssl.SSLError as error:
            if error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}:
                return _plain(address, request, timeout)  # a web configuration without TLS
            raise
        with secured:
            return _answer(secured, request)


def _answer(secured: "ssl.SSLSocket", request: bytes) -> bytes | None:
    """Over TLS a server that did not like the client says so when all is agreed: it lives, at least."""
    try:
        secured.sendall(request)
        return _first_line(secured) or None
    except TimeoutError:
        raise
    except OSError:
        return None


def _first_line(connection: socket.socket) -> bytes:
    answer = b""
    while b"\r\n" not in answer and len(answer) < _ANSWER_LIMIT:
        part = connection.recv(_ANSWER_LIMIT)
        if not part:
            break
        answer += part
    return answer


@click.command()
@click.option("--ready", is_flag=True, help="Ask whether it is ready, not whether it lives.")
@click.option(
    "--web.listen-address",
    "address",
    type=LISTEN_ADDRESS,
    default=None,
    metavar="ADDRESS",
    show_default="that of process 1",
    help="Where to ask.",
)
@click.option("--tls", is_flag=True, help="It serves HTTPS at that address.")
@click.option(
    "--login-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A file with one line USER:PASSWORD, where a password is asked for.",
)
@click.option("--timeout", type=DURATION, default="5s", show_default=True, metavar="DURATION")
def healthy(
    *, ready: bool, address: ListenAddress | None, tls: bool, login_file: Path | None, timeout: float
) -> None:
    """Whether the process of this container answers: exit status 0 or 1, with one line."""
    if address is not None:
        place = Served(address, configured=tls)
    else:
        found = served(process_1())
        if found is None:
            raise click.UsageError(
                "process 1 is neither `devicelens exporter` nor `devicelens plugin`: say --web.listen-address"
            )
        place = found
    try:
        ask(place, ready=ready, login=None if login_file is None else _login(login_file), timeout=timeout)
    except Ill as error:
        click.echo(visible(str(error)), err=True)
        sys.exit(1)
    click.echo("ready" if ready else "healthy")


def _login(path: Path) -> str:
    """Raises Ill."""
    try:
        with path.open("rb") as file:
            text = file.read(_LOGIN_LIMIT).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Ill(f"--login-file {path}: {getattr(error, 'strerror', None) or 'it is no text'}") from error
    if ":" not in text or "\n" in text:
        raise Ill(f"--login-file {path}: expected one line USER:PASSWORD")
    return text
