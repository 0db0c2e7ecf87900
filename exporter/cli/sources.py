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
from runtime.flags import DURATION, FILE, Address, flag, parse_address, setting, variable
from runtime.text import visible

F = TypeVar("F", bound=Callable[..., Any])
SourceKind = Literal["exporter", "kubelet", "prometheus"]

_FLAGS: Final[dict[SourceKind, str]] = {"exporter": "url", "kubelet": "socket", "prometheus": "prometheus"}
_PROMETHEUS_TIMEOUT: Final = 30.0
"""Seconds: a query over a whole fleet takes longer than one node's documents."""
_PATH: Final = click.Path(path_type=Path)


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
    node: str | None = setting("--node", metavar="NAME", help="With --prometheus: only this node.")
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

    @property
    def tls_flag(self) -> str:
        """The first flag given that only https can use; "" for none."""
        given = {
            "--ca-file": self.ca_file,
            "--cert-file": self.cert_file,
            "--key-file": self.key_file,
            "--insecure-skip-verify": self.insecure_skip_verify,
        }
        return next((name for name, value in given.items() if value), "")


@dataclass(frozen=True, slots=True)
class ChosenSource:
    """The source of a command. `address` is an exporter's or a Prometheus'; `socket` is a kubelet's.

    `flags` are those that apply to the source: the others, and variables that do not fit the address, have
    their defaults. `timeout` is in seconds, for the whole answer. `selector` (PromQL matchers) and `node`
    limit a fleet; "" does not.
    """

    kind: SourceKind
    address: Address = Address("http")  # noqa: RUF009 -- frozen
    socket: Path = Path()
    flags: SourceFlags = SourceFlags()
    timeout: float = 5.0
    selector: str = ""
    node: str = ""


def source_flags(complete_node: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """The options of SourceFlags; the command passes their values to `choose_source`.

    A command that can query Prometheus gives `complete_node`, the completion of --node. Other commands refuse
    --prometheus with the alternatives.
    """

    def decorate(command: F) -> F:
        for field in reversed(dataclasses.fields(SourceFlags)):
            options = dict(field.metadata["options"])
            if complete_node is None:
                options["hidden"] = field.name in {"prometheus", "node", "selector"}
            elif field.name == "node":
                options["shell_complete"] = complete_node
            command = flag(field.metadata["flag"], **options)(command)
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
    if kind == "kubelet":
        given = "--token-file" if flags.token_file is not None else flags.tls_flag
        if given and _on_command_line(ctx, given):
            raise click.UsageError(f"{given} and --socket: a kubelet's socket uses neither tokens nor TLS")
        return ChosenSource(kind, socket=flags.socket or Path(), timeout=timeout)
    url = flags.prometheus if kind == "prometheus" else flags.url
    try:
        address = parse_address(url or "")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"--{_FLAGS[kind]}") from error
    flags = _usable(ctx, flags, address)
    if kind == "exporter":
        return ChosenSource(kind, address, flags=flags, timeout=timeout)
    if ctx.get_parameter_source("timeout") is ParameterSource.DEFAULT:
        timeout = _PROMETHEUS_TIMEOUT
    selector = _parse_selector(flags.selector or "")
    return ChosenSource(kind, address, Path(), flags, timeout, selector, flags.node or "")


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


def _usable(ctx: click.Context, flags: SourceFlags, address: Address) -> SourceFlags:
    """The flags without credentials from the environment that do not fit the address.

    Credentials from the command line stay, so that the client refuses them with a message. A token from the
    environment is not sent unencrypted to another machine.
    """
    if address.scheme == "https":
        return flags
    local = address.scheme == "unix" or address.host in {"localhost", "::1"}
    unfit = ["ca_file", "cert_file", "key_file", "insecure_skip_verify"]
    if not local and not address.host.startswith("127."):
        unfit.append("token_file")
    unused: dict[str, Any] = {
        name: None for name in unfit if ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT
    }
    if flags.token_file is not None and "token_file" in unused:
        say(f"{variable('--token-file')} is not sent unencrypted to {address}; --token-file would be")
    return dataclasses.replace(flags, **unused)


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
