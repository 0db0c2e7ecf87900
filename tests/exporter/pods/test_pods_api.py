"""exporter.pods.pods_api against the simulated kubelet, and against what is none."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from exporter.mapping.dra import ChosenDevice
from exporter.pods.pods_api import PodsApi
from exporter.pods.source import (
    LabelFilter,
    PodGone,
    PodSeen,
    PodWatchError,
    StreamOpened,
    UnreadableEvent,
)
from harness.pod_listener import following
from kubelet.paths import KubeletPaths
from kubelet.pb.core.v1 import pod_pb2
from kubelet.pb.pods.v1alpha1 import api_pb2
from simulator import SimulatedKubelet
from simulator.model import ContainerSpec, Owner, PodSpec
from simulator.rpc import Context, RawService, UnaryMethod


def _source(root: Path, timeout: float = 5.0) -> PodsApi:
    return PodsApi(KubeletPaths(root), LabelFilter(None), timeout=timeout)


async def test_watch_reports_pods_that_start_change_and_end(root: Path, kubelet: SimulatedKubelet) -> None:
    first = await kubelet.add_pod(PodSpec("first"))
    async with following(_source(root)) as listener:
        await listener.until(lambda told: len(told) >= 2)
        assert listener.told[0] == StreamOpened(anew=True)
        assert [pod.identity.uid for pod in listener.seen] == [first]
        owner = Owner("StatefulSet", "db")
        second = await kubelet.add_pod(PodSpec("db-0", owner=owner, priority_class="high"))
        await listener.until(
            lambda told: listener.seen[-1].identity.phase == "Running" and len(listener.seen) > 2
        )
        identity = listener.seen[-1].identity
        assert (identity.key, identity.uid) == (("default", "db-0"), second)
        assert (identity.workload, identity.priority_class) == (("StatefulSet", "db"), "high")
        await kubelet.delete_pod("default", "db-0")
        await listener.until(lambda told: told[-1] == PodGone(("default", "db-0"), second))
        assert listener.seen[-1].identity.ended


async def test_devices_that_another_scheduler_chose_are_read(root: Path, kubelet: SimulatedKubelet) -> None:
    annotations = {"hami.io/vgpu-devices-allocated": ";GPU-1,NVIDIA,3000,0:;"}
    init = (ContainerSpec("setup"),)
    await kubelet.add_pod(PodSpec("p", init_containers=init, annotations=annotations))
    async with following(_source(root)) as listener:
        await listener.until(lambda _: listener.seen)
        assert listener.seen[-1].identity.devices.chosen == (ChosenDevice("HAMi", "main", "GPU-1"),)


async def test_ended_kubelet_fails_and_the_next_watch_starts_anew(
    root: Path, kubelet: SimulatedKubelet
) -> None:
    await kubelet.add_pod(PodSpec("p"))
    source = _source(root)
    async with following(source) as listener:
        await listener.until(lambda _: listener.seen)
        await kubelet.restart()
        error = await listener.failure()
        assert error.code == "UNAVAILABLE"
    async with following(source) as listener:
        # It has not heard of the pod yet, and says nothing of it.
        await listener.until(lambda _: listener.seen)
        assert listener.told[0] == StreamOpened(anew=True)


async def test_kubelet_that_has_not_synced_is_starting(root: Path) -> None:
    # kubelet 1.37: FAILED_PRECONDITION until all pods of the API server are known.
    source = _source(root)
    async with SimulatedKubelet(root, pods_api=True, pods_api_waits=True, sync_delay=3600.0) as kubelet:
        await kubelet.add_pod(PodSpec("p"))
        async with following(source) as listener:
            await listener.until(lambda _: listener.seen)
            await kubelet.restart()
            assert (await listener.failure()).code == "UNAVAILABLE"
        error = await _refusal(root)
        assert (error.code, error.absent, error.starting) == ("FAILED_PRECONDITION", False, True)
        assert error.message.startswith("the kubelet has not synced with the API server yet")


async def test_confirm_lists_the_pods(root: Path, kubelet: SimulatedKubelet) -> None:
    uids = {await kubelet.add_pod(PodSpec(f"p{n}")) for n in range(3)}
    source = _source(root)
    assert await source.confirm(thorough=False) is None
    async with following(source) as listener:
        await listener.until(lambda _: listener.seen)
        before = asyncio.get_running_loop().time()
        listed = await source.confirm(thorough=False)
        assert listed is not None
        assert {seen.identity.uid for seen in listed.pods} == uids
        assert listed.asked is not None
        assert before <= listed.asked == listed.begun <= asyncio.get_running_loop().time()


async def test_more_pods_than_fit_into_grpcs_default_are_listed(
    root: Path, kubelet: SimulatedKubelet
) -> None:
    large = {"large": "x" * 200_000}
    for n in range(30):
        await kubelet.add_pod(PodSpec(f"p{n}", annotations=large))
    source = _source(root)
    async with following(source) as listener:
        await listener.until(lambda told: len(listener.seen) == 30)
        listed = await source.confirm(thorough=False)
        assert listed is not None
        assert len(listed.pods) == 30


async def test_interrupt_ends_a_hanging_watch(root: Path, kubelet: SimulatedKubelet) -> None:
    source = _source(root)
    source.interrupt()
    await kubelet.add_pod(PodSpec("p"))
    async with following(source) as listener:
        await listener.until(lambda _: listener.seen)
        source.interrupt()
        assert (await listener.failure()).code == "SILENT"


async def _refusal(root: Path) -> PodWatchError:
    async with following(_source(root)) as listener:
        return await listener.failure()


async def test_kubelet_that_is_up_without_the_socket_does_not_serve_the_api(root: Path) -> None:
    directory = root / "pods-api"
    gate = "the kubelet's feature gate PodsAPI is off (1.36 or later)"
    async with SimulatedKubelet(root):
        error = await _refusal(root)
        assert (error.code, error.absent) == ("UNIMPLEMENTED", True)
        assert error.message == f"there is no directory {directory}: {gate}, or the directory is not mounted"
        directory.mkdir()  # as the manifest does
        error = await _refusal(root)
        assert (error.code, error.absent) == ("UNIMPLEMENTED", True)
        assert error.message == f"there is no socket {directory}/pods-api.sock: {gate}"
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(f"{directory}/pods-api.sock")
        error = await _refusal(root)
        assert (error.code, error.absent) == ("UNIMPLEMENTED", True)
        assert error.message == f"no process serves {directory}/pods-api.sock: {gate}"
    (directory / "pods-api.sock").unlink()
    error = await _refusal(root)
    assert (error.code, error.absent) == ("UNAVAILABLE", True)
    assert error.message.endswith("pods-api.sock: the kubelet is not up")
    with pytest.raises(ValueError, match="bytes long"):
        _source(root / ("x" * 200))


Watch = Callable[[bytes, Context], AsyncIterator[bytes]]


@asynccontextmanager
async def _serving(
    root: Path, watch: Watch | None = None, listed: "UnaryMethod | None" = None
) -> AsyncGenerator[None]:
    """Something on the socket that answers as a test wants."""
    (root / "pods-api").mkdir()
    server = grpc.aio.server()
    service = RawService(
        "v1alpha1.Pods",
        {} if listed is None else {"ListPods": listed},
        {} if watch is None else {"WatchPods": watch},
    )
    server.add_generic_rpc_handlers([service])
    server.add_insecure_port(f"unix:{root}/pods-api/pods-api.sock")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def _event(kind: api_pb2.EventType.ValueType, name: str) -> bytes:
    meta = pod_pb2.ObjectMeta(name=name, namespace="n", uid=f"uid-{name}")
    pod = pod_pb2.Pod(metadata=meta).SerializeToString()
    return api_pb2.WatchPodsEvent(type=kind, pod=pod).SerializeToString()


async def test_unimplemented_is_reported_as_absent(root: Path) -> None:
    async with _serving(root), following(_source(root)) as listener:
        error = await listener.failure()
        assert (error.code, error.absent) == ("UNIMPLEMENTED", True)


async def test_undecodable_messages_are_reported_and_survived(root: Path) -> None:
    garbage = [
        b"\xff\xff\xff\xff",
        api_pb2.WatchPodsEvent(type=api_pb2.ADDED, pod=b"\xff\xff").SerializeToString(),
        api_pb2.WatchPodsEvent(type=api_pb2.ADDED).SerializeToString(),
        api_pb2.WatchPodsEvent(type=api_pb2.UNSPECIFIED).SerializeToString(),
        b"",
        b"\x08\x63",
    ]

    async def watch(_: bytes, __: Context) -> AsyncIterator[bytes]:
        for data in garbage:
            yield data
        yield _event(api_pb2.ADDED, "p")
        yield _event(api_pb2.DELETED, "p")
        await asyncio.Event().wait()

    async def listed(_: bytes, __: Context) -> bytes:
        return b"\xff\xff"

    source = _source(root)
    async with _serving(root, watch, listed), following(source) as listener:
        await listener.until(lambda told: isinstance(told[-1], PodGone) if told else False)
        kinds = [type(told) for told in listener.told]
        assert kinds == [StreamOpened, UnreadableEvent, UnreadableEvent, PodSeen, PodGone]
        with pytest.raises(PodWatchError, match="UNDECODABLE: ListPods"):
            await source.confirm(thorough=False)


async def _opens(_: bytes, __: Context) -> AsyncIterator[bytes]:
    yield api_pb2.WatchPodsEvent(type=api_pb2.INITIAL_SYNC_COMPLETE).SerializeToString()


async def _silent(_: bytes, __: Context) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def _hangs(request: bytes, context: Context) -> AsyncIterator[bytes]:
    async for event in _opens(request, context):
        yield event
    await asyncio.Event().wait()


async def _never(_: bytes, __: Context) -> bytes:
    await asyncio.Event().wait()
    return b""


async def test_ended_watch_fails(root: Path) -> None:
    async with _serving(root, _opens), following(_source(root)) as listener:
        assert (await listener.failure()).code == "CLOSED"


async def test_silent_server_times_out(root: Path) -> None:
    async with _serving(root, _silent, _never), following(_source(root, timeout=0.2)) as listener:
        assert (await listener.failure()).code == "DEADLINE_EXCEEDED"


async def test_server_that_hangs_after_the_first_event_is_noticed_by_confirm(root: Path) -> None:
    source = _source(root, timeout=0.2)
    async with _serving(root, _hangs, _never), following(source) as listener:
        await listener.until(lambda told: told)
        with pytest.raises(PodWatchError, match="DEADLINE_EXCEEDED"):
            await source.confirm(thorough=False)
        source.interrupt()
        assert (await listener.failure()).code == "SILENT"
