"""The command `devicelens healthy`: whether the container's process answers; for HEALTHCHECK and exec probes.

It reads the address and the web configuration from the command line and the environment of process 1. Probes
run it every few seconds, so it imports no HTTP client, and TLS only where it is used.
"""

import base64
import re
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from runtime.flags import DURATION, FILE, LISTEN_ADDRESS, ListenAddress, flag
from runtime.text import visible

_PORTS: Final = {"exporter": 10190, "plugin": 10191}
_ANY: Final = frozenset({None, "0.0.0.0", "::"})
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")
_ANSWER_LIMIT: Final = 4096
_LOGIN_LIMIT: Final = 1024
_COMMAND_LIMIT: Final = 65536


class Unhealthy(Exception):  # noqa: N818 -- it is an answer
    """Why the process is not healthy, or not ready, in one line."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """Where a process serves. `configured`: it has a web configuration, so it may serve TLS."""

    address: ListenAddress
    configured: bool = False


def target_of(command_line: Sequence[str]) -> ProbeTarget | None:
    """What a process with this command line serves, by flags and environment; None for other programs.

    Raises click's errors for flags that the process itself would refuse.
    """
    names = [Path(part).name for part in command_line]
    after = list(command_line[names.index("devicelens") + 1 :]) if "devicelens" in names else []
    name = next((part for part in after if part in _PORTS), None)
    if name is None:
        return None
    lenient = {"ignore_unknown_options": True, "allow_extra_args": True}
    command = click.Command(name, context_settings=lenient)
    flag("--web.listen-address", type=LISTEN_ADDRESS, default=None)(command)
    flag("--web.config.file", default=None)(command)
    values = command.make_context(name, after[after.index(name) + 1 :]).params
    return ProbeTarget(
        values["web_listen_address"] or ListenAddress(port=_PORTS[name]),
        configured=values["web_config_file"] is not None,
    )


def command_line_of_process_1(proc: Path = Path("/proc")) -> list[str]:
    """Its command line; empty where it cannot be read."""
    try:
        with (proc / "1/cmdline").open("rb") as file:
            return file.read(_COMMAND_LIMIT).decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return []


def probe(target: ProbeTarget, *, ready: bool, login: str | None = None, timeout: float = 5.0) -> None:
    """Request /-/healthy, or /-/ready. `login` is USER:PASSWORD. Raises Unhealthy."""
    path = "/-/ready" if ready else "/-/healthy"
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", "User-Agent: devicelens-healthy"]
    if login is not None:
        lines.append(f"Authorization: Basic {base64.b64encode(login.encode()).decode()}")
    request = "\r\n".join((*lines, "", "")).encode()
    try:
        line = _first_line(target, request, timeout)
    except OSError as error:
        raise Unhealthy(f"{target.address}: {error.strerror or error}") from error
    match = _STATUS.match(line) if line is not None else None
    if line is not None and match is None:
        raise Unhealthy(f"{target.address}: what answers there is no HTTP")
    status = None if match is None else int(match[1])
    if status is None and ready:
        raise Unhealthy(f"{path}: it wants a client's certificate, which this command does not have")
    # A process that requires a password is alive; whether it is ready is not known.
    if status is None or status < 400 or (status == 401 and not ready):
        return
    why = "it wants a password: say --login-file" if status == 401 else f"it answers {status}"
    raise Unhealthy(f"{path}: {why}")


def _first_line(target: ProbeTarget, request: bytes, timeout: float) -> bytes | None:
    """The start of the answer; None where the server wants a client certificate. Raises OSError."""
    with _connect(target.address, timeout) as connection:
        if not target.configured:
            return _exchange(connection, request)
        with _secured(connection) as secured:
            if secured is None:
                return _first_line(ProbeTarget(target.address), request, timeout)
            try:
                return _exchange(secured, request) or None
            except TimeoutError:
                raise
            except OSError:
                return None  # TLS 1.3 refuses a client without a certificate after the handshake


def _exchange(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    answer = b""
    while b"\r\n" not in answer and len(answer) < _ANSWER_LIMIT and (part := connection.recv(_ANSWER_LIMIT)):
        answer += part
    return answer


def _connect(address: ListenAddress, timeout: float) -> socket.socket:
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


@contextmanager
def _secured(connection: socket.socket) -> Generator[socket.socket | None]:
    """The connection with TLS; None where the server does not speak it. Raises OSError."""
    import ssl  # noqa: PLC0415 -- half of this command's time, where it is needed

    context = ssl.create_default_context()
    # The command probes its own container over loopback: there is no other server to be mistaken for.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        secured = context.wrap_socket(connection)
    except ssl.SSLError as error:
        if error.reason not in _NOT_TLS:
            raise
        yield None
        return
    with secured:
        yield secured


@click.command()
@click.option("--ready", is_flag=True, help="Ask whether it is ready, not whether it is alive.")
@click.option(
    "--web.listen-address",
    "address",
    type=LISTEN_ADDRESS,
    default=None,
    show_default="that of process 1",
    help="Where to ask.",
)
@click.option("--tls", is_flag=True, help="It serves HTTPS at that address.")
@click.option(
    "--login-file",
    type=FILE,
    help="A file with one line USER:PASSWORD, where a password is asked for.",
)
@click.option("--timeout", type=DURATION, default="5s", show_default=True)
def healthy(
    *, ready: bool, address: ListenAddress | None, tls: bool, login_file: Path | None, timeout: float
) -> None:
    """Whether the process of this container answers: exit status 0 or 1, with one line."""
    target = ProbeTarget(address, configured=tls) if address else target_of(command_line_of_process_1())
    if target is None:
        raise click.UsageError(
            "process 1 is neither `devicelens exporter` nor `devicelens plugin`: say --web.listen-address"
        )
    try:
        probe(target, ready=ready, login=None if login_file is None else _login(login_file), timeout=timeout)
    except Unhealthy as error:
        click.echo(visible(str(error)), err=True)
        sys.exit(1)
    click.echo("ready" if ready else "healthy")


def _login(path: Path) -> str:
    """Raises Unhealthy."""
    try:
        with path.open("rb") as file:
            text = file.read(_LOGIN_LIMIT).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unhealthy(
            f"--login-file {path}: {getattr(error, 'strerror', None) or 'it is no text'}"
        ) from error
    if ":" not in text or "\n" in text:
        raise Unhealthy(f"--login-file {path}: expected one line USER:PASSWORD")
    return text
