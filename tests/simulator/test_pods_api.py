"""The Pods API."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from kubelet.pb.core.v1 import pod_pb2
from kubelet.pb.pods.v1alpha1 import api_pb2, api_pb2_grpc
from simulator import SimulatedKubelet
from simulator.model import AdmissionError, ContainerSpec, Owner, PodSpec

Event = tuple[str, pod_pb2.Pod]


class Client:
    def __init__(self, root: Path) -> None:
        self.channel = grpc.aio.insecure_channel(f"unix:{root}/pods-api/pods-api.sock")
        stub: api_pb2_grpc.PodsAsyncStub = api_pb2_grpc.PodsStub(self.channel)
        self.stub = stub
        self.stream = stub.WatchPods(api_pb2.WatchPodsRequest())

    async def event(self) -> Event:
        async with asyncio.timeout(20):
            event = await self.stream.read()
        assert isinstance(event, api_pb2.WatchPodsEvent)
        return api_pb2.EventType.Name(event.type), pod_pb2.Pod.FromString(event.pod)

    async def events(self, until: str) -> list[Event]:
        """Events up to and with the first of a type."""
        seen: list[Event] = []
        while not seen or seen[-1][0] != until:
            seen.append(await self.event())
        return seen


@pytest.fixture
async def client(kubelet: SimulatedKubelet) -> AsyncGenerator[Client]:
    for name in ("one", "two"):
        await kubelet.add_pod(PodSpec(name))
    client = Client(kubelet.root)
    yield client
    client.stream.cancel()
    await client.channel.close()


async def test_a_watch_opens_with_every_pod_and_each_has_all_that_podresources_leaves_out(
    kubelet: SimulatedKubelet, client: Client
) -> None:
    events = await client.events("INITIAL_SYNC_COMPLETE")
    assert [kind for kind, _ in events] == ["ADDED", "ADDED", "INITIAL_SYNC_COMPLETE"]
    assert {pod.metadata.name for _, pod in events[:2]} == {"one", "two"}
    assert events[2][1] == pod_pb2.Pod()
    owner = Owner("ReplicaSet", "web-1", uid="o")
    spec = PodSpec("web", "space", labels={"app": "web"}, owner=owner, priority_class="high")
    uid = await kubelet.add_pod(spec)
    events = [await client.event(), await client.event()]
    assert [(kind, pod.status.phase) for kind, pod in events] == [
        ("ADDED", "Pending"),
        ("MODIFIED", "Running"),
    ]
    pod = events[1][1]
    assert (pod.metadata.uid, pod.metadata.name, pod.metadata.namespace) == (uid, "web", "space")
    assert dict(pod.metadata.labels) == {"app": "web"}
    (reference,) = pod.metadata.ownerReferences
    assert (reference.kind, reference.name, reference.uid) == ("ReplicaSet", "web-1", "o")
    assert reference.controller
    assert (pod.spec.nodeName, pod.spec.priorityClassName) == ("sim-node", "high")
    assert pod.status.qosClass == "BestEffort"
    assert pod.metadata.creationTimestamp.seconds > 0


async def test_a_deletion_is_told_as_it_goes_on_and_names_only_the_pod_in_the_end(
    kubelet: SimulatedKubelet, client: Client
) -> None:
    await client.events("INITIAL_SYNC_COMPLETE")
    uid = {pod.spec.name: pod.uid for pod in kubelet.pods()}["one"]
    await kubelet.delete_pod("default", "one")
    events = await client.events("DELETED")
    assert [(kind, pod.status.phase) for kind, pod in events] == [
        ("MODIFIED", "Running"),
        ("MODIFIED", "Succeeded"),
        ("DELETED", ""),
    ]
    assert events[0][1].metadata.deletionTimestamp.seconds > 0
    meta = pod_pb2.ObjectMeta(name="one", namespace="default", uid=uid)
    assert events[2][1].metadata == meta
    assert events[2][1].spec.nodeName == ""


async def test_ended_and_refused_pods_stay_with_their_phase(
    kubelet: SimulatedKubelet, client: Client
) -> None:
    await kubelet.complete_pod("default", "one")
    with pytest.raises(AdmissionError):
        await kubelet.add_pod(PodSpec("bad", containers=(ContainerSpec("c", {"example.com/x": 1}),)))
    answer = await client.stub.ListPods(api_pb2.ListPodsRequest())
    phases = {p.metadata.name: p.status.phase for p in map(pod_pb2.Pod.FromString, answer.pods)}
    assert phases == {"one": "Succeeded", "two": "Running", "bad": "Failed"}


async def test_one_pod_by_its_uid(kubelet: SimulatedKubelet, client: Client) -> None:
    wanted = kubelet.pods()[0]
    answer = await client.stub.GetPod(api_pb2.GetPodRequest(podUID=wanted.uid))
    assert pod_pb2.Pod.FromString(answer.pod).metadata.name == wanted.spec.name
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.stub.GetPod(api_pb2.GetPodRequest(podUID="nobody"))
    assert (refused.value.code(), refused.value.details()) == (
        grpc.StatusCode.NOT_FOUND,
        "pod with UID nobody not found",
    )


async def test_a_restart_ends_the_watch(kubelet: SimulatedKubelet, client: Client) -> None:
    await client.events("INITIAL_SYNC_COMPLETE")
    await kubelet.restart()
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await client.event()
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_slow_watcher_is_cut_off_with_what_was_kept_for_it(root: Path) -> None:
    cut_off: list[str] = []

    def on_event(event: str, **_fields: object) -> None:
        if "cut off" in event:
            cut_off.append(event)

    async with SimulatedKubelet(root, pods_api=True, on_event=on_event) as kubelet:
        client = Client(root)
        await client.events("INITIAL_SYNC_COMPLETE")
        label = {"large": "x" * 60_000}
        for n in range(200):
            await kubelet.add_pod(PodSpec(f"p{n}", annotations=label))
        assert cut_off
        for _ in range(100):
            await client.event()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await client.events("never")
        assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ended.value.details() == "watch client channel closed"
        await client.channel.close()


async def test_that_the_kubelet_has_done_with_a_pod_is_told_though_the_pod_stays(
    kubelet: SimulatedKubelet, client: Client
) -> None:
    await client.events("INITIAL_SYNC_COMPLETE")
    await kubelet.complete_pod("default", "one")
    events = await client.events("DELETED")
    assert [(kind, pod.status.phase) for kind, pod in events] == [("MODIFIED", "Succeeded"), ("DELETED", "")]
    answer = await client.stub.ListPods(api_pb2.ListPodsRequest())
    assert len(answer.pods) == 2
    await kubelet.delete_pod("default", "one")
    await kubelet.add_pod(PodSpec("three"))
    assert [kind for kind, _ in await client.events("ADDED")] == ["MODIFIED", "ADDED"]


async def test_it_is_not_there_unless_it_is_switched_on(root: Path) -> None:
    async with SimulatedKubelet(root):
        assert not (root / "pods-api").exists()


async def test_after_a_restart_the_watch_says_complete_before_it_knows_any_pod(root: Path) -> None:
    """Seen on 1.36: INITIAL_SYNC_COMPLETE comes first, ADDED for each pod later."""
    async with SimulatedKubelet(root, pods_api=True, sync_delay=2.0) as kubelet:
        await kubelet.add_pod(PodSpec("one"))
        await kubelet.restart()
        client = Client(root)
        try:
            kinds = [kind for kind, _ in await client.events("ADDED")]
            assert kinds == ["INITIAL_SYNC_COMPLETE", "ADDED"]
        finally:
            client.stream.cancel()
            await client.channel.close()


async def test_1_37_answers_once_it_has_heard_from_the_api_server(root: Path) -> None:
    async with SimulatedKubelet(root, pods_api=True, pods_api_waits=True, sync_delay=1.0) as kubelet:
        uid = await kubelet.add_pod(PodSpec("p"))
        await kubelet.restart()
        async with grpc.aio.insecure_channel(f"unix:{root}/pods-api/pods-api.sock") as channel:
            stub: api_pb2_grpc.PodsAsyncStub = api_pb2_grpc.PodsStub(channel)
            request = api_pb2.GetPodRequest(podUID=uid)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetPod(request)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            answer: api_pb2.GetPodResponse | None = None
            while answer is None:
                with suppress(grpc.aio.AioRpcError):
                    answer = await stub.GetPod(request)
            assert pod_pb2.Pod.FromString(answer.pod).metadata.name == "p"
            assert len((await stub.ListPods(api_pb2.ListPodsRequest())).pods) == 1
            stream = stub.WatchPods(api_pb2.WatchPodsRequest())
            first = await stream.read()
            assert isinstance(first, api_pb2.WatchPodsEvent)
            assert first.type == api_pb2.ADDED
