"""The sub-commands of `devicelens kubelet`: what a person may do to a simulated kubelet that runs."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from runtime.flags import DURATION, F, flag, variable
from runtime.text import visible
from simulator.control import ControlClient, ControlError, State
from simulator.fault_words import parse_faults
from simulator.model import AdmissionError, ContainerError, ContainerSpec, PodSpec


def root_flag() -> Callable[[F], F]:
    """--kubelet.root, which has no default here: nobody should meet a real kubelet by accident."""
    return flag(
        "--kubelet.root",
        type=click.Path(path_type=Path, file_okay=False),
        default=None,
        metavar="DIRECTORY",
        help="The directory that the simulated kubelet lives below.",
    )


def chosen_root(ctx: click.Context, own: Path | None) -> Path:
    """The directory given to this command or to the group above it. Raises UsageError."""
    root = own or ctx.find_object(Path)
    if root is None:
        raise click.UsageError(f"--kubelet.root is needed, or {variable('--kubelet.root')}", ctx)
    return root


def _command(group: click.Group | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """A sub-command whose coroutine function gets a ControlClient first."""

    def decorate(function: Callable[..., Coroutine[Any, Any, None]]) -> click.Command:
        @click.pass_context
        def invoke(ctx: click.Context, /, kubelet_root: Path | None, **arguments: Any) -> None:
            client = ControlClient(chosen_root(ctx, kubelet_root))
            try:
                asyncio.run(function(client, **arguments))
            except (ControlError, AdmissionError, ContainerError, ValueError) as error:
                raise click.ClickException(visible(str(error), 4096)) from error

        invoke.__doc__ = function.__doc__
        options = getattr(function, "__click_params__", [])
        command = click.command(function.__name__)(root_flag()(invoke))
        command.params[:0] = reversed(options)
        if group is not None:
            group.add_command(command)
        return command

    return decorate


@click.group()
def pod() -> None:
    """Add, delete or complete pods."""


class _Pair(click.ParamType[Any]):
    """NAME=AMOUNT or NAME=TEXT."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name, equals, amount = str(value).rpartition("=") if self._read is int else str(value).partition("=")
        try:
            if not name or not equals:
                raise ValueError  # noqa: TRY301 -- one message for both
            return name, self._read(amount)
        except ValueError:
            self.fail(f"found {value!r}, expected {self.name}", param, ctx)


_REQUEST: Final = _Pair("RESOURCE=N", int)
_LABEL: Final = _Pair("NAME=TEXT", str)
_namespace = click.option(
    "--namespace", "-n", default="default", show_default=True, help="The pod's namespace."
)


@_command(pod)
@click.argument("name")
@_namespace
@click.option("--request", type=_REQUEST, multiple=True, metavar="RESOURCE=N", help="Devices to ask for.")
@click.option("--container", default="main", show_default=True, help="The container's name.")
@click.option("--sidecar", type=_REQUEST, multiple=True, metavar="RESOURCE=N", help="Devices for a sidecar.")
@click.option("--init", type=_REQUEST, multiple=True, metavar="RESOURCE=N", help="Devices for an init one.")
@click.option("--cpus", type=click.IntRange(0), default=0, help="Exclusive CPUs.")
@click.option("--label", type=_LABEL, multiple=True, metavar="NAME=TEXT", help="A label.")
async def add(
    client: ControlClient,
    *,
    name: str,
    namespace: str,
    request: tuple[tuple[str, int], ...],
    container: str,
    sidecar: tuple[tuple[str, int], ...],
    init: tuple[tuple[str, int], ...],
    cpus: int,
    label: tuple[tuple[str, str], ...],
) -> None:
    """Bind a pod to the node and wait until it runs; prints its uid."""
    init_containers = (
        *((ContainerSpec("init", dict(init)),) if init else ()),
        *((ContainerSpec("sidecar", dict(sidecar), sidecar=True),) if sidecar else ()),
    )
    main_container = ContainerSpec(container, dict(request), exclusive_cpus=cpus)
    spec = PodSpec(name, namespace, (main_container,), init_containers, labels=dict(label))
    click.echo(await client.add_pod(spec))


@_command(pod)
@click.argument("name")
@_namespace
async def delete(client: ControlClient, name: str, namespace: str) -> None:
    """Delete a pod."""
    await client.delete_pod(namespace, name)


@_command(pod)
@click.argument("name")
@_namespace
@click.option("--failed", is_flag=True, help="As Failed rather than Succeeded.")
async def complete(client: ControlClient, name: str, namespace: str, *, failed: bool) -> None:
    """Let a pod's containers end."""
    await client.complete_pod(namespace, name, failed=failed)


@_command()
async def pods(client: ControlClient) -> None:
    """The pods bound to the node."""
    rows = [(p.namespace, p.name, p.phase.value, p.uid, p.reason) for p in await client.pods()]
    _table(("NAMESPACE", "NAME", "PHASE", "UID", "REASON"), rows)


@_command()
@click.option("--down-for", type=DURATION, default="0", show_default=True, help="How long it stays away.")
async def restart(client: ControlClient, down_for: float) -> None:
    """Restart the kubelet; returns when it is up again."""
    await client.restart(down_for)


@_command()
@click.argument("faults", nargs=-1, metavar="[FAULT]...")
async def fault(client: ControlClient, faults: tuple[str, ...]) -> None:
    """Let PodResources and Registration misbehave; without arguments, say how they do.

    \b
    slow=DURATION  hang  rate-limited[=N]  garbage  oversized  gone  error=CODE  methods=NAME,…
    twice  forgets=NAMESPACE/NAME,…
    registration.slow=DURATION  registration.hang  registration.gone  registration.error=CODE
    none           all is well again
    """  # noqa: D301 -- click's own mark for lines that are not to be folded
    if faults:
        try:
            wanted = parse_faults(faults)
        except ValueError as error:
            raise click.BadParameter(visible(str(error)), param_hint="FAULT") from error
        await client.set_faults(wanted)
    else:
        click.echo(msgspec.json.format(msgspec.json.encode(await client.faults())).decode())


@_command()
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", show_default=True)
async def show(client: ControlClient, output: str) -> None:
    """Capacity, allocatable, who holds what, and what plugins did wrong."""
    state = await client.state()
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(state)).decode())
    else:
        _show(state)


def _show(state: State) -> None:
    counts = [
        (name, str(c.capacity), str(c.allocatable), str(c.streams))
        for name, c in sorted(state.resources.items())
    ]
    _table(("RESOURCE", "CAPACITY", "ALLOCATABLE", "PLUGINS"), counts)
    click.echo()
    held = [(h.resource, h.device, h.namespace, h.pod, h.container) for h in sorted(state.holdings)]
    _table(("RESOURCE", "DEVICE", "NAMESPACE", "POD", "CONTAINER"), sorted(held))
    for violation in state.violations:
        click.echo(f"violation: {visible(violation)}")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    lines = [head, *(tuple(visible(cell, 256) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


SUBCOMMANDS: Final = (pod, pods, restart, fault, show)
