"""Whom to ask: an exporter, a kubelet's socket, or Prometheus. The flags, and the one that counts.

An exporter as a source: its devices, claims and exclusive CPUs, all of one generation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click
from click.core import ParameterSource

from exporter.cli.common import DEFAULT_URL, F, say, timeout_flag
from exporter.cli.completion import complete_node
from exporter.cli.http import NO_ACCESS, Access, AccessError, Deadline, Door, MissingError, fetch
from exporter.cli.prometheus.promql import Matcher, parse_matchers
from exporter.cli.select import Answer, CpusEntry, MappingDocument, Told
from exporter.views.schema import ClaimsDocument, DevicesDocument, PodEntry, PodsDocument
from runtime.flags import Address, flag, parse_address, variable

Kind = Literal["exporter", "kubelet", "prometheus"]

_FLAGS: Final[dict[Kind, str]] = {"exporter": "url", "kubelet": "socket", "prometheus": "prometheus"}
_FLEET_TIMEOUT: Final = 30.0
"""Seconds for Prometheus, which has more to look through."""
_FILE: Final = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True, slots=True)
class Source:
    """Whom to ask. `url` is an exporter's or a Prometheus'; `socket` a kubelet's.

    `matchers` and `node` say which part of the fleet ("" and none: all).
    """

    kind: Kind
    url: str = ""
    socket: Path | None = None
    access: Access = NO_ACCESS
    timeout: float = 5.0
    matchers: tuple[Matcher, ...] = ()
    node: str = ""

    def door(self) -> Door:
        """The way to it by HTTP. Raises BadParameter and CouldNot."""
        return door_to(self.url, f"--{_FLAGS[self.kind]}", self.access)

    def kubelet(self) -> Path:
        """The kubelet's socket. Raises TypeError for another source."""
        if self.socket is None:
            raise TypeError(f"{self.kind} has no socket")
        return self.socket


def address_of(url: str, name: str) -> Address:
    """The address of the flag `name`. Raises BadParameter."""
    try:
        return parse_address(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=name) from error


def door_to(url: str, name: str, access: Access) -> Door:
    """The way to the server of the flag `name`. Raises BadParameter."""
    address = address_of(url, name)
    try:
        return Door(address, access)
    except AccessError as error:
        raise click.BadParameter(str(error), param_hint=error.flag) from error


def source_flags() -> Callable[[F], F]:
    """Everything that says whom to ask: the command gets it as keyword arguments, for `chosen`."""

    def decorate(command: F) -> F:
        for option in reversed(_options()):
            command = option(command)
        return command

    return decorate


def _options() -> tuple[Callable[[Any], Any], ...]:
    return (
        flag(
            "--url", default=DEFAULT_URL, metavar="URL", help="An exporter: http://…, https://… or unix:PATH."
        ),
        flag(
            "--socket",
            type=click.Path(path_type=Path),
            default=None,
            metavar="PATH",
            help="A kubelet's PodResources socket, asked instead of an exporter.",
        ),
        flag(
            "--prometheus",
            default=None,
            metavar="URL",
            help="A Prometheus (Thanos, Mimir), asked for the whole fleet instead of an exporter.",
        ),
        flag(
            "--node",
            default=None,
            metavar="NAME",
            help="With --prometheus: this node alone.",
            shell_complete=complete_node,
        ),
        flag(
            "--selector",
            default=None,
            metavar="MATCHERS",
            help="""With --prometheus: only series that these keep, '{cluster="a"}'.""",
        ),
        flag(
            "--token-file",
            type=_FILE,
            default=None,
            metavar="FILE",
            help="A bearer token, to be let in by --url or --prometheus.",
        ),
        flag("--ca-file", type=_FILE, default=None, metavar="FILE", help="Who is trusted for https (PEM)."),
        flag("--cert-file", type=_FILE, default=None, metavar="FILE", help="A client's certificate (PEM)."),
        flag(
            "--key-file", type=_FILE, default=None, metavar="FILE", help="Its key, where that is not in it."
        ),
        flag(
            "--insecure-skip-verify",
            is_flag=True,
            default=False,
            help="Believe any certificate: whoever is in between can read and answer.",
        ),
        timeout_flag(),
    )


def chosen(
    ctx: click.Context,
    *,
    url: str,
    socket: Path | None,
    prometheus: str | None,
    node: str | None,
    selector: str | None,
    token_file: Path | None,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    insecure_skip_verify: bool,
    timeout: float,
) -> Source:
    """The one source that is meant: what the command line names goes before the environment.

    Raises UsageError and BadParameter.
    """
    if timeout <= 0:
        raise click.BadParameter("found 0, expected a duration above 0", param_hint="--timeout")
    kind = _kind(ctx)
    access = Access(token_file, ca_file, cert_file, key_file, insecure_skip_verify)
    if kind == "kubelet":
        given = "--token-file" if token_file is not None else access.of_tls
        if given and _on_command_line(ctx, given):
            raise click.UsageError(f"{given} and --socket: a kubelet's socket knows neither tokens nor TLS")
        access = NO_ACCESS
    access = _fitting(ctx, access, prometheus if kind == "prometheus" else url)
    if kind == "prometheus" and ctx.get_parameter_source("timeout") is ParameterSource.DEFAULT:
        timeout = _FLEET_TIMEOUT
    if kind != "prometheus":
        for name in ("node", "selector"):
            if _on_command_line(ctx, name):
                raise click.UsageError(f"--{name}: expected --prometheus, for {_ALONE[kind]}")
        return Source(kind, url if kind == "exporter" else "", socket, access, timeout)
    if not prometheus:
        raise click.BadParameter("found nothing, expected http://HOST:PORT", param_hint="--prometheus")
    try:
        matchers = parse_matchers(selector) if selector else ()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--selector") from error
    return Source(kind, prometheus, None, access, timeout, matchers, node or "")


def _fitting(ctx: click.Context, access: Access, url: str | None) -> Access:
    """Of what the environment gives, only what fits the address; what the command line gives stays, to be
    refused in words. No token from the environment goes to another machine in clear.
    """
    try:
        address = parse_address(url or "")
    except ValueError:
        return access
    if address.scheme == "https":
        return access
    given = {
        field: getattr(access, field)
        for field, name in _OF_TLS.items()
        if ctx.get_parameter_source(name) is not ParameterSource.ENVIRONMENT
    }
    by_environment = ctx.get_parameter_source("token_file") is ParameterSource.ENVIRONMENT
    if access.token_file is not None and by_environment and address.scheme == "http" and not _here(address):
        say(f"{variable('--token-file')} is not sent to {address} in clear; one of --token-file would be")
        return Access(**given)
    return Access(access.token_file, **given)


_OF_TLS: Final = {
    "ca_file": "ca_file",
    "cert_file": "cert_file",
    "key_file": "key_file",
    "insecure": "insecure_skip_verify",
}
"""Fields of Access, and the parameters of their flags."""


def _here(address: Address) -> bool:
    return address.host in {"localhost", "::1"} or address.host.startswith("127.")


_ALONE: Final = {
    "exporter": "an exporter knows its own node alone",
    "kubelet": "a kubelet knows its own node alone",
}


def _kind(ctx: click.Context) -> Kind:
    for source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        given: list[Kind] = [
            kind for kind, name in _FLAGS.items() if ctx.get_parameter_source(name) is source
        ]
        if len(given) == 1:
            return given[0]
        if given:
            by_flags = source is ParameterSource.COMMANDLINE
            names = [f"--{_FLAGS[kind]}" for kind in given]
            if by_flags:
                raise click.UsageError(f"{' and '.join(names)}: expected one of them")
            variables = " and ".join(map(variable, names))
            raise click.UsageError(f"{variables} are both set: say which with {' or '.join(names)}")
    return "exporter"


def _on_command_line(ctx: click.Context, name: str) -> bool:
    parameter = name.removeprefix("--").replace("-", "_")
    return ctx.get_parameter_source(parameter) is ParameterSource.COMMANDLINE


_TRIES = 5
"""Of asking anew where something changed between two questions."""


def present(door: Door, *, timeout: float) -> Answer:
    """Who holds what, within `timeout` seconds. Raises AskError."""
    deadline = Deadline(timeout)
    attempt = 0
    while True:
        attempt += 1
        devices = fetch(door, "/api/v1/devices", DevicesDocument, deadline)
        claims, pods, notes = _further(door, deadline)
        generations = frozenset(one.generation for one in (devices, claims, pods) if one is not None)
        if len(generations) == 1 or attempt == _TRIES:
            break
    if len(generations) > 1:
        # It changes quicker than it can be asked: each part is true, of moments that are close.
        notes = (*notes, "devices and claims are of moments a little apart, for they change all the time")
    document = MappingDocument(
        **{name: getattr(devices, name) for name in devices.__struct_fields__},
        claims=() if claims is None else claims.claims,
        cpus=() if pods is None else tuple(cpus_of(pods.pods)),
    )
    return Answer((Told(document),), f"the exporter at {door.address}", notes=notes)


def _further(
    door: Door, deadline: Deadline
) -> tuple[ClaimsDocument | None, PodsDocument | None, tuple[str, ...]]:
    """What an older exporter may not know of."""
    try:
        claims = fetch(door, "/api/v1/claims", ClaimsDocument, deadline)
        pods = fetch(door, "/api/v1/pods", PodsDocument, deadline)
    except MissingError:
        return None, None, ("this exporter is older: it tells neither claimed devices nor exclusive CPUs",)
    return claims, pods, ()


def cpus_of(pods: tuple[PodEntry, ...]) -> list[CpusEntry]:
    """The containers with CPUs of their own."""
    return [
        CpusEntry(
            *(pod.namespace, pod.name, container.name, pod.uid),
            *(len(container.cpu_ids), container.cpu_ids, container.numa_nodes),
        )
        for pod in pods
        for container in pod.containers
        if container.cpu_ids
    ]
