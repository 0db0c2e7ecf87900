"""The command `devicelens kubelet`: run a simulated kubelet, and talk to one that runs."""

import sys
from pathlib import Path
from typing import Any, get_args

import click

from runtime.flags import DURATION, flag, log_flags
from runtime.log import configure
from runtime.process import run
from simulator.kubelet import SYNC_DELAY
from simulator.main import ALLOCATABLE, LISTED, main
from simulator.node import Older
from simulator.remote import SUBCOMMANDS, chosen_root, root_flag
from simulator.topology import POLICIES


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
    help="After a restart no pod is listed for this long: the API server has not been heard yet.",
)
@flag("--grace-period", type=DURATION, default="5m", help="After it a resource without plugin is forgotten.")
@flag("--pods-api", is_flag=True, help="Serve the Pods API too.")
@flag(
    "--api-server",
    type=click.IntRange(0, 65535),
    default=None,
    metavar="PORT",
    help="Have an API server that knows this node's pods, on loopback (0: any port); a kubeconfig that leads "
    "there is written below the root.",
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
