"""The flags that choose the source: an exporter, a kubelet's socket, or Prometheus.

Flags on the command line take precedence over environment variables. Without any, the source is the exporter
on this machine.
"""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeVar

import click
from click.core import ParameterSource

from exporter.cli.common import DEFAULT_URL, say
from exporter.cli.completion import complete_node
from runtime.flags import DURATION, FILE, Address, flag, parse_address, setting, variable
from runtime.text import visible

F = TypeVar("F", bound=Callable[..., Any])
SourceKind = Literal["exporter", "kubelet", "prometheus"]

_FLAGS: Final[dict[SourceKind, str]] = {"exporter": "url", "kubelet": "socket", "prometheus": "prometheus"}
_PROMETHEUS_TIMEOUT: Final = 30.0
"""Seconds: a query over a whole fleet takes longer than one node's documents."""
_PATH: Final = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What authenticates the client to the server, and the server to the client.

    `insecure`: no server certificate is verified.
    """

    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    insecure: bool = False

    @property
    def tls_flag(self) -> str:
        """The first flag given that only https can use; "" for none."""
        given = {
            "--ca-file": self.ca_file,
            "--cert-file": self.cert_file,
            "--key-file": self.key_file,
            "--insecure-skip-verify": self.insecure,
        }
        return next((name for name, value in given.items() if value), "")


@dataclass(frozen=True, slots=True)
class ChosenSource:
    """The source of a command. `address` is an exporter's or a Prometheus'; `socket` is a kubelet's.

    `timeout` is in seconds, for the whole answer. `selector` (PromQL matchers) and `node` limit a fleet; ""
    does not.
    """

    kind: SourceKind
    address: Address = Address("http")  # noqa: RUF009 -- frozen
    socket: Path = Path()
    credentials: Credentials = Credentials()
    timeout: float = 5.0
    selector: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFlags:
    """The flags of the source, as the command line and the environment give them."""

    url: str = setting(
        "--url", default=DEFAULT_URL, metavar="URL", help="An exporter: http://…, https://… or unix:PATH."
    )
    socket: Path | None = setting(
        "--socket",
        type=_PATH,
        metavar="PATH",
        help="A kubelet's PodResources socket, instead of an exporter.",
    )
    prometheus: str | None = setting(
        "--prometheus",
        metavar="URL",
        help="A Prometheus (Thanos, Mimir) with the series of a whole fleet, instead of an exporter.",
    )
    node: str | None = setting(
        "--node", metavar="NAME", help="With --prometheus: only this node.", shell_complete=complete_node
    )
    selector: str | None = setting(
        "--selector",
        metavar="MATCHERS",
        help="""With --prometheus: only series with these labels, '{cluster="a"}'.""",
    )
    token_file: Path | None = setting(
        "--token-file",
        type=FILE,
        metavar="FILE",
        help="A file with a bearer token for --url or --prometheus.",
    )
    ca_file: Path | None = setting(
        "--ca-file",
        type=FILE,
        metavar="FILE",
        help="Certificate authorities for https (PEM), instead of the system's.",
    )
    cert_file: Path | None = setting(
        "--cert-file", type=FILE, metavar="FILE", help="A client certificate (PEM)."
    )
    key_file: Path | None = setting(
        "--key-file",
        type=FILE,
        metavar="FILE",
        help="Its private key, if the certificate's file does not contain it.",
    )
    insecure_skip_verify: bool = setting(
        "--insecure-skip-verify",
        is_flag=True,
        default=False,
        help="Accept any server certificate: others can read and forge the answer.",
    )
    timeout: float = setting(
        "--timeout",
        type=DURATION,
        default="5s",
        metavar="DURATION",
        help="Limit for the whole answer; 30s with --prometheus.",
    )


def source_flags(*, fleet: bool = False) -> Callable[[F], F]:
    """The options of SourceFlags; the command passes their values to `choose_source`.

    `fleet`: the command can query Prometheus. Other commands refuse --prometheus with the alternatives.
    """

    def decorate(command: F) -> F:
        for field in reversed(dataclasses.fields(SourceFlags)):
            hidden = not fleet and field.name in {"prometheus", "node", "selector"}
            command = flag(field.metadata["flag"], hidden=hidden, **field.metadata["options"])(command)
        return command

    return decorate


def choose_source(ctx: click.Context, flags: SourceFlags) -> ChosenSource:
    """The source that the flags and the environment name. Raises UsageError and BadParameter."""
    timeout = flags.timeout
    if timeout <= 0:
        raise click.BadParameter("found 0, expected a duration above 0", param_hint="--timeout")
    kind = _kind(ctx)
    if kind != "prometheus":
        for name in ("node", "selector"):
            if _on_command_line(ctx, name):
                raise click.UsageError(f"--{name}: expected --prometheus, {kind}s have one node each")
    credentials = Credentials(
        flags.token_file, flags.ca_file, flags.cert_file, flags.key_file, flags.insecure_skip_verify
    )
    if kind == "kubelet":
        given = "--token-file" if flags.token_file is not None else credentials.tls_flag
        if given and _on_command_line(ctx, given):
            raise click.UsageError(f"{given} and --socket: a kubelet's socket uses neither tokens nor TLS")
        return ChosenSource(kind, socket=flags.socket or Path(), timeout=timeout)
    url = flags.prometheus if kind == "prometheus" else flags.url
    try:
        address = parse_address(url or "")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"--{_FLAGS[kind]}") from error
    credentials = _usable(ctx, credentials, address)
    if kind == "exporter":
        return ChosenSource(kind, address, credentials=credentials, timeout=timeout)
    if ctx.get_parameter_source("timeout") is ParameterSource.DEFAULT:
        timeout = _PROMETHEUS_TIMEOUT
    selector = _parse_selector(flags.selector or "")
    return ChosenSource(kind, address, Path(), credentials, timeout, selector, flags.node or "")


def refuse_prometheus(ctx: click.Context, instead: str) -> NoReturn:
    """Refuse --prometheus in a command that needs an exporter. Raises UsageError."""
    name = "--prometheus" if _on_command_line(ctx, "prometheus") else variable("--prometheus")
    raise click.UsageError(f"{name}: {ctx.info_name} queries exporters: {instead}")


_SELECTOR_LIMIT: Final = 4096
_MATCHER: Final = (
    r"""\s*(?P<label>[a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)\s*(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')\s*"""
)


def _parse_selector(text: str) -> str:
    """The matchers of `{a="b", c=~"d"}`, without braces; "" for none.

    The text becomes part of a query, so nothing but matchers is accepted. Raises BadParameter.
    """
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1]
    inner = inner.strip().removesuffix(",")
    labels = {match["label"] for match in re.finditer(_MATCHER, inner, re.ASCII)}
    plain = _MATCHER.replace("?P<label>", "?:")
    valid = re.fullmatch(f"{plain}(?:,{plain})*", inner, re.ASCII) is not None
    if text and (not valid or "__name__" in labels or len(inner) > _SELECTOR_LIMIT):
        raise click.BadParameter(
            f"""found {visible(text, 80)!r}, expected matchers such as '{{cluster="a", node=~"gpu-.*"}}'""",
            param_hint="--selector",
        )
    return inner


def _usable(ctx: click.Context, credentials: Credentials, address: Address) -> Credentials:
    """The credentials without those from the environment that do not fit the address.

    Credentials from the command line stay, so that the client refuses them with a message. A token from the
    environment is not sent unencrypted to another machine.
    """

    def given(parameter: str) -> bool:
        return ctx.get_parameter_source(parameter) is not ParameterSource.ENVIRONMENT

    if address.scheme == "https":
        return credentials
    token_file = credentials.token_file
    local = address.host in {"localhost", "::1"} or address.host.startswith("127.")
    if token_file and not given("token_file") and address.scheme == "http" and not local:
        say(f"{variable('--token-file')} is not sent unencrypted to {address}; --token-file would be")
        token_file = None
    return Credentials(
        token_file,
        ca_file=credentials.ca_file if given("ca_file") else None,
        cert_file=credentials.cert_file if given("cert_file") else None,
        key_file=credentials.key_file if given("key_file") else None,
        insecure=credentials.insecure and given("insecure_skip_verify"),
    )


def _kind(ctx: click.Context) -> SourceKind:
    for source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        given: list[SourceKind] = [
            kind for kind, name in _FLAGS.items() if ctx.get_parameter_source(name) is source
        ]
        if len(given) == 1:
            return given[0]
        if given:
            names = [f"--{_FLAGS[kind]}" for kind in given]
            if source is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{' and '.join(names)}: expected one of them")
            variables = " and ".join(map(variable, names))
            raise click.UsageError(f"{variables} are both set: say which with {' or '.join(names)}")
    return "exporter"


def _on_command_line(ctx: click.Context, name: str) -> bool:
    parameter = name.removeprefix("--").replace("-", "_")
    return ctx.get_parameter_source(parameter) is ParameterSource.COMMANDLINE
