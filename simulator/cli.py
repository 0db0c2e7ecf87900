"""The command `devicelens kubelet`: run a simulated kubelet, and control one that runs."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import click
import msgspec

from runtime.flags import DURATION, F, flag, log_flags, variable
from runtime.log import configure
from runtime.process import run
from runtime.text import parse_duration, visible
from simulator.cgroups import Driver
from simulator.control import ControlClient, ControlError, State
from simulator.faults import NO_FAULTS, Faults, RegistrationFaults
from simulator.kubelet import SYNC_DELAY
from simulator.main import ALLOCATABLE, LISTED, main
from simulator.model import AdmissionError, ContainerError, ContainerSpec, PodSpec
from simulator.node import Older
from simulator.topology import POLICIES


def parse_faults(words: tuple[str, ...]) -> Faults:
    """The faults that words like `slow=3s` and `hang` stand for. Raises ValueError."""
    faults = NO_FAULTS
    for word in words:
        name, _, text = word.partition("=")
        part, _, registration = name.rpartition(".")
        if part == "registration":
            changed = replace(faults.registration, **_fault(word, registration, text, RegistrationFaults))
            faults = replace(faults, registration=changed)
        elif name != "none":
            faults = replace(faults, **_fault(word, name, text, Faults))
    return faults


def _fault(word: str, name: str, text: str, kind: type[Faults | RegistrationFaults]) -> dict[str, Any]:
    value: Any
    match name.replace("-", "_"), text:
        case "slow" as field, _:
            value = parse_duration(text)
        case ("hang" | "garbage" | "oversized" | "twice" | "gone") as field, "":
            value = True
        case "rate_limited" as field, _ if (text or "1").isascii() and (text or "1").isdigit():
            value = int(text or 1)
        case "error" as field, _ if text:
            value = text.upper()
        case ("methods" | "forgets") as field, _:
            value = tuple(one for one in text.split(",") if one)
        case _:
            raise ValueError(f"found {word!r}, expected a fault such as slow=3s, hang, garbage, gone or none")
    if field not in kind.__dataclass_fields__:
        raise ValueError(f"found {word!r}, which Registration cannot do")
    return {field: value}


def root_flag() -> Callable[[F], F]:
    """--kubelet.root, without a default, so that it never names a real kubelet by accident."""
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


@click.group(invoke_without_command=True)
@root_flag()
@flag("--node-name", default="sim-node", help="The node's name.")
@flag("--numa-nodes", type=click.IntRange(1, 8), default=2, help="NUMA nodes that the node has.")
@flag("--cpus", type=click.IntRange(0, 4096), default=8, help="CPUs of the node; the first is reserved.")
@flag("--topology-policy", type=click.Choice(POLICIES), default="best-effort", help="The topology manager's.")
@flag(
    "--sync-delay",
    type=DURATION,
    default=f"{SYNC_DELAY:g}s",
    help="After a restart no pod is listed for this long: the kubelet has not heard from the API server.",
)
@flag("--grace-period", type=DURATION, default="5m", help="After it a resource without plugin is forgotten.")
@flag("--pods-api", is_flag=True, help="Serve the Pods API too.")
@flag(
    "--cgroup-driver",
    type=click.Choice(get_args(Driver)),
    default=None,
    help="Make a directory for each pod below ROOT/cgroup, named as this driver names cgroups.",
)
@flag(
    "--api-server",
    type=click.IntRange(0, 65535),
    default=None,
    metavar="PORT",
    help="Serve the pods of this node and the objects of DRA as an API server, on loopback (0: any port); a "
    "kubeconfig that leads there is written below the root.",
)
@flag("--older", type=click.Choice(get_args(Older)), default=None, help="Be an older one, that lacks this.")
@flag(
    "--replay",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    default=None,
    metavar="FILE",
    help=f"Answer List with a recording; a sibling *{ALLOCATABLE} of *{LISTED} is served as well.",
)
@flag("--seed", type=int, default=0, help="Decides what a kubelet leaves to chance.")
@flag("--slow", type=DURATION, default="0", help="Let each PodResources answer take this long.")
@flag("--hang", is_flag=True, help="Take PodResources calls and never answer.")
@flag(
    "--rate-limited",
    type=click.IntRange(0),
    is_flag=False,
    flag_value=1,
    default=0,
    metavar="[N]",
    help="Refuse every n-th PodResources call as over the rate limit; without N, all of them.",
)
@flag("--garbage", is_flag=True, help="Answer PodResources calls with what does not decode.")
@flag("--gone", is_flag=True, help="Have no PodResources socket.")
@flag("--error", default="", metavar="CODE", help="Fail PodResources calls with this gRPC code.")
@click.pass_context
def kubelet(ctx: click.Context, /, kubelet_root: Path | None, **settings: Any) -> None:
    """A simulated kubelet, for people who write device plugins or monitors.

    Without a sub-command it runs one; the sub-commands talk to one that runs.
    """
    ctx.obj = kubelet_root
    if ctx.invoked_subcommand is not None:
        return
    configure(settings.pop("log_level"), settings.pop("log_format"))
    sys.exit(run(lambda stop: main(chosen_root(ctx, None), settings, stop)))


for _option in log_flags():
    kubelet = _option(kubelet)
for _subcommand in SUBCOMMANDS:
    kubelet.add_command(_subcommand)
