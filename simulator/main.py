"""The composition root of `devicelens kubelet`: a simulated kubelet and its control socket."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from kubelet.pb.podresources.v1 import api_pb2 as v1
from runtime.log import Log
from runtime.process import Fatal
from simulator.apiserver import ApiServer
from simulator.control_server import control_server
from simulator.faults import Faults
from simulator.kubelet import SimulatedKubelet
from simulator.node import Replay
from simulator.process import RootInUseError

_log = Log("kubelet")

LISTED: Final = ".list.binpb"
ALLOCATABLE: Final = ".allocatable.binpb"
LARGEST_RECORDING: Final = 64 * 1024 * 1024

_A_REAL_ONES: Final = ("config.yaml", "pki", "cpu_manager_state", "memory_manager_state", "kubeadm-flags.env")


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
            sync_delay=settings["sync_delay"],
            pods_api=settings["pods_api"],
            cgroup_driver=settings["cgroup_driver"],
            old=settings["older"],
            replay=_replay(settings["replay"]),
            seed=settings["seed"],
            faults=faults,
            on_event=_told,
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(simulated)
            control = await stack.enter_async_context(control_server(simulated))
            if settings["api_server"] is not None:
                api = ApiServer(simulated, port=settings["api_server"])
                url = await stack.enter_async_context(api.serve())
                kubeconfig = root / "kubeconfig"
                kubeconfig.write_text(api.kubeconfig(), encoding="utf-8")
                _log.info("API server", url=url, kubeconfig=kubeconfig)
            _log.info("ready", node=simulated.node_name, control=control, **simulated.paths())
            await stop.wait()
    except (ValueError, RootInUseError) as error:
        raise Fatal(str(error)) from error
    except OSError as error:
        raise Fatal(f"{error.filename or root}: {error.strerror or error}") from error


def _told(event: str, **fields: object) -> None:
    """Logs the events of the kubelet, each at its level."""
    match event:
        case "devices listed":
            _log.debug(event, **fields)
        case "violation" | "registration refused" | "cannot read the checkpoint, starting without":
            _log.warn(event, **fields)
        case _:
            _log.info(event, **fields)


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
