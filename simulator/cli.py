"""The command `devicelens kubelet`: run a simulated kubelet, and talk to one that runs."""

import asyncio
import sys
from pathlib import Path
from typing import Any, Final, get_args

import click
from google.protobuf.message import DecodeError

from daemon.flags import DURATION, flag, log_flags
from daemon.log import Log, configure
from daemon.process import Fatal, run
from exporter.pb.podresources.v1 import api_pb2 as v1
from simulator.control_server import control_server
from simulator.faults import Faults
from simulator.kubelet import RootInUseError, SimulatedKubelet
from simulator.node import Older, Replay
from simulator.remote import SUBCOMMANDS, chosen_root, root_flag
from simulator.topology import POLICIES

_log = Log("kubelet")

LISTED: Final = ".list.binpb"
ALLOCATABLE: Final = ".allocatable.binpb"
LARGEST_RECORDING: Final = 64 * 1024 * 1024

_A_REAL_ONES: Final = ("config.yaml", "pki", "cpu_manager_state", "memory_manager_state", "kubeadm-flags.env")


@click.group(invoke_without_command=True)
@root_flag()
@flag("--node-name", default="sim-node", help="The node's name.")
@flag("--numa-nodes", type=click.IntRange(1, 8), default=2, help="NUMA nodes that the node has.")
@flag("--cpus", type=click.IntRange(0, 4096), default=8, help="CPUs of the node; the first is reserved.")
@flag("--topology-policy", type=click.Choice(POLICIES), default="best-effort", help="The topology manager's.")
@flag("--grace-period", type=DURATION, default="5m", help="After it a resource without plugin is forgotten.")
@flag("--pods-api", is_flag=True, help="Serve the Pods API too.")
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


async def main(root: Path, settings: dict[str, Any], stop: asyncio.Event) -> None:
    """Run one until `stop` is set. Raises Fatal."""
    try:
        faults = Faults(
            slow=settings["slow"],
            hang=settings["hang"],
            rate_limited=settings["rate_limited"],
            garbage=settings["garbage"],
            gone=settings["gone"],
            error=settings["error"],
        )
        _refuse_real(root)
        simulated = SimulatedKubelet(
            root,
            node_name=settings["node_name"],
            numa_nodes=settings["numa_nodes"],
            cpus=settings["cpus"],
            topology_policy=settings["topology_policy"],
            grace_period=settings["grace_period"],
            pods_api=settings["pods_api"],
            old=settings["older"],
            replay=_replay(settings["replay"]),
            seed=settings["seed"],
            faults=faults,
            on_event=_log.info,
        )
        async with simulated, control_server(simulated) as control:
            _log.info("ready", node=simulated.node_name, control=control, **simulated.paths())
            await stop.wait()
    except (ValueError, RootInUseError) as error:
        raise Fatal(str(error)) from error
    except OSError as error:
        raise Fatal(f"{error.filename or root}: {error.strerror or error}") from error


def _refuse_real(root: Path) -> None:
    """Keep away from a directory in which a real kubelet has its things, even if it is down."""
    found = [name for name in _A_REAL_ONES if (root / name).exists()]
    if found:
        raise Fatal(f"{root}: found {found[0]} there, which a real kubelet made; expected another directory")


def _replay(path: Path | None) -> Replay | None:
    if path is None:
        return None
    allocatable = path.with_name(path.name.removesuffix(LISTED) + ALLOCATABLE)
    listed = _recording(path, v1.ListPodResourcesResponse)
    if not path.name.endswith(LISTED) or not allocatable.exists():
        return Replay(listed)
    return Replay(listed, _recording(allocatable, v1.AllocatableResourcesResponse))


def _recording(
    path: Path, kind: type[v1.ListPodResourcesResponse | v1.AllocatableResourcesResponse]
) -> bytes:
    with path.open("rb") as file:
        content = file.read(LARGEST_RECORDING + 1)
    if len(content) > LARGEST_RECORDING:
        raise Fatal(f"{path}: larger than {LARGEST_RECORDING} bytes")
    try:
        kind.FromString(content)
    except DecodeError as error:
        raise Fatal(f"{path}: found something that is no serialized {kind.__name__}: {error}") from error
    return content
