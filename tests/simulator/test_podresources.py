"""What monitors are answered."""

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from harness.scripted import R, pod, registered
from kubelet.pb.podresources.v1 import api_pb2 as v1
from kubelet.pb.podresources.v1 import api_pb2_grpc as v1_grpc
from kubelet.pb.podresources.v1alpha1 import api_pb2 as v1alpha1
from kubelet.pb.podresources.v1alpha1 import api_pb2_grpc as v1alpha1_grpc
from simulator import Faults, SimulatedKubelet
from simulator.devices import Device
from simulator.model import ClaimDevice, ClaimSpec, ContainerSpec, Holding, PodSpec
from simulator.node import Older
from simulator.scripted import ScriptedPlugin

ONE = [Device("only")]
SIXTEEN_MIB = 16 * 1024 * 1024


class Monitor:
    """A client as it should be: it takes large answers."""

    def __init__(self, root: Path) -> None:
        self.channel = grpc.aio.insecure_channel(
            f"unix:{root}/pod-resources/kubelet.sock",
            options=(
                ("grpc.max_receive_message_length", SIXTEEN_MIB),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 50),
            ),
        )
        stub: v1_grpc.PodResourcesListerAsyncStub = v1_grpc.PodResourcesListerStub(self.channel)
        self.stub = stub

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def list(self, timeout: float | None = 20) -> v1.ListPodResourcesResponse:  # noqa: ASYNC109 -- grpc's
        return await self.stub.List(v1.ListPodResourcesRequest(), timeout=timeout)

    async def allocatable(self) -> v1.AllocatableResourcesResponse:
        return await self.stub.GetAllocatableResources(v1.AllocatableResourcesRequest(), timeout=20)

    async def get(self, namespace: str, name: str) -> v1.PodResources:
        request = v1.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)
        return (await self.stub.Get(request, timeout=20)).pod_resources

    async def list_v1alpha1(self) -> v1alpha1.ListPodResourcesResponse:
        stub: v1alpha1_grpc.PodResourcesListerAsyncStub = v1alpha1_grpc.PodResourcesListerStub(self.channel)
        return await stub.List(v1alpha1.ListPodResourcesRequest(), timeout=20)

    async def pods(self) -> set[str]:
        return {pod.name for pod in (await self.list()).pod_resources}

    async def refusal(self, call: Any) -> tuple[grpc.StatusCode, str | None]:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        return refused.value.code(), refused.value.details()

    async def outcome(self, call: Any) -> str:
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return error.details() or "?"
        return ""


@pytest.fixture
async def monitor(kubelet: SimulatedKubelet) -> AsyncGenerator[Monitor]:
    async with Monitor(kubelet.root) as client:
        yield client


@pytest.fixture
async def plugin(kubelet: SimulatedKubelet) -> AsyncGenerator[ScriptedPlugin]:
    devices = [Device("d0", numa=(0,)), Device("d1", numa=(1,)), Device("sick", "Unhealthy"), Device("bare")]
    async with registered(kubelet, R, devices) as running:
        yield running


async def test_the_list_has_active_pods_and_containers_without_devices_too(
    kubelet: SimulatedKubelet, monitor: Monitor, plugin: ScriptedPlugin
) -> None:
    containers = (ContainerSpec("c", {R: 3}), ContainerSpec("idle"))
    await kubelet.add_pod(PodSpec("p", "space", containers))
    await kubelet.add_pod(PodSpec("job"))
    await kubelet.complete_pod("default", "job")
    (listed,) = (await monitor.list()).pod_resources
    assert (listed.namespace, listed.name) == ("space", "p")
    assert [container.name for container in listed.containers] == ["c", "idle"]
    entries = {tuple(entry.device_ids): entry for entry in listed.containers[0].devices}
    assert set(entries) == {("d0",), ("d1",), ("bare",)}
    assert not entries["bare",].HasField("topology")
    assert [node.ID for node in entries["d1",].topology.nodes] == [1]
    # Node 0 is a node without any field.
    assert entries["d0",].topology.nodes[0].SerializeToString() == b""
    assert listed.containers[0].cpu_ids == []
    assert listed.containers[1].devices == []


async def test_a_device_on_two_nodes_has_an_entry_for_each(
    kubelet: SimulatedKubelet, monitor: Monitor
) -> None:
    async with registered(kubelet, R, [Device("wide", numa=(0, 1))]):
        await kubelet.add_pod(pod())
        for devices in (
            (await monitor.list()).pod_resources[0].containers[0].devices,
            (await monitor.allocatable()).devices,
        ):
            assert sorted(e.topology.nodes[0].ID for e in devices) == [0, 1]
            assert all(len(e.topology.nodes) == 1 for e in devices)


async def test_topology_without_a_node_hides_a_device_from_what_is_allocatable(
    kubelet: SimulatedKubelet, monitor: Monitor
) -> None:
    async with registered(kubelet, R, [Device("hidden", numa=()), Device("seen")]):
        assert [list(e.device_ids) for e in (await monitor.allocatable()).devices] == [["seen"]]


async def test_what_is_allocatable_is_healthy_held_or_not(
    kubelet: SimulatedKubelet, monitor: Monitor, plugin: ScriptedPlugin
) -> None:
    await kubelet.add_pod(pod())
    answer = await monitor.allocatable()
    assert sorted(e.device_ids[0] for e in answer.devices) == ["bare", "d0", "d1"]
    assert sorted(answer.cpu_ids) == [1, 2, 3, 4, 5, 6, 7]
    assert sorted((m.memory_type, m.size, m.topology.nodes[0].ID) for m in answer.memory) == [
        ("memory", 8 << 30, 0),
        ("memory", 8 << 30, 1),
    ]
    await plugin.stop()
    await kubelet.wait_until(lambda k: k.allocatable(R) == 0)
    assert (await monitor.allocatable()).devices == []
    assert len((await monitor.list()).pod_resources[0].containers[0].devices) == 1


async def test_the_order_differs_from_call_to_call(kubelet: SimulatedKubelet, monitor: Monitor) -> None:
    for n in range(6):
        await kubelet.add_pod(PodSpec(f"p{n}"))
    orders = {tuple(p.name for p in (await monitor.list()).pod_resources) for _ in range(6)}
    assert len(orders) > 1


async def test_get_gives_one_pod_or_says_that_it_is_not_there(
    kubelet: SimulatedKubelet, monitor: Monitor, plugin: ScriptedPlugin
) -> None:
    await kubelet.add_pod(pod())
    assert await monitor.get("default", "p") == (await monitor.list()).pod_resources[0]
    assert await monitor.refusal(monitor.get("other", "p")) == (
        grpc.StatusCode.UNKNOWN,
        "pod p in namespace other not found",
    )


async def test_get_knows_an_ended_pod_and_frees_nothing(
    kubelet: SimulatedKubelet, monitor: Monitor, plugin: ScriptedPlugin
) -> None:
    await kubelet.add_pod(pod())
    await kubelet.complete_pod("default", "p")
    assert len((await monitor.get("default", "p")).containers[0].devices) == 1
    assert (await monitor.list()).pod_resources == []
    assert (await monitor.get("default", "p")).containers[0].devices == []
    await kubelet.delete_pod("default", "p")
    code, _ = await monitor.refusal(monitor.get("default", "p"))
    assert code is grpc.StatusCode.UNKNOWN


async def test_exclusive_cpus_and_pinned_memory_are_listed(
    kubelet: SimulatedKubelet, monitor: Monitor
) -> None:
    container = ContainerSpec("c", exclusive_cpus=2, memory={"memory": 1 << 30, "hugepages-2Mi": 0})
    await kubelet.add_pod(PodSpec("p", containers=(container, ContainerSpec("shared"))))
    pinned, shared = (await monitor.list()).pod_resources[0].containers
    assert list(pinned.cpu_ids) == [1, 2]
    assert [(m.memory_type, m.size) for m in pinned.memory] == [("memory", 1 << 30)]
    assert (list(shared.cpu_ids), list(shared.memory)) == ([], [])


async def test_without_static_managers_neither_is_listed(root: Path) -> None:
    async with SimulatedKubelet(root, cpus=0, memory=0) as kubelet, Monitor(root) as monitor:
        wishes = ContainerSpec("c", exclusive_cpus=2, memory={"memory": 1})
        await kubelet.add_pod(PodSpec("p", containers=(wishes,)))
        (container,) = (await monitor.list()).pod_resources[0].containers
        assert container == v1.ContainerResources(name="c")
        assert await monitor.allocatable() == v1.AllocatableResourcesResponse()


async def test_a_claim_that_pods_share_repeats_until_the_last_has_gone(
    kubelet: SimulatedKubelet, monitor: Monitor
) -> None:
    device = ClaimDevice("gpu.example.com", "pool", "gpu-0", cdi=("example.com/gpu=0",), share_id="s")
    claim = ClaimSpec("shared", (device,))

    async def cdi_counts() -> dict[str, list[int]]:
        return {
            p.name: [len(r.cdi_devices) for r in p.containers[0].dynamic_resources[0].claim_resources]
            for p in (await monitor.list()).pod_resources
        }

    for name in ("one", "two"):
        containers = (ContainerSpec("a", claims=(claim,)), ContainerSpec("b", claims=(claim,)))
        await kubelet.add_pod(PodSpec(name, containers=containers))
        if name == "one":
            assert await cdi_counts() == {"one": [1]}
    assert await cdi_counts() == {"one": [1, 2], "two": [1, 2]}
    await kubelet.delete_pod("default", "one")
    assert await cdi_counts() == {"two": [1, 2]}
    await kubelet.delete_pod("default", "two")
    await kubelet.add_pod(PodSpec("three", containers=(ContainerSpec("a", claims=(claim,)),)))
    assert await cdi_counts() == {"three": [1]}
    listed = (await monitor.list()).pod_resources[0].containers[0].dynamic_resources[0]
    assert (listed.claim_namespace, listed.claim_resources[0].share_id) == ("default", "s")


async def test_an_allocation_is_visible_when_the_temporary_checkpoint_appears(
    kubelet: SimulatedKubelet, monitor: Monitor, plugin: ScriptedPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator import checkpoint  # noqa: PLC0415 -- to hold on to it

    seen: list[frozenset[Holding]] = []
    original = checkpoint.write

    def write(path: Path, content: checkpoint.Checkpoint) -> None:
        seen.append(kubelet.holdings())
        original(path, content)

    monkeypatch.setattr(checkpoint, "write", write)
    await kubelet.add_pod(pod())
    assert [len(holdings) for holdings in seen] == [1]
    assert seen[0] == kubelet.holdings()


async def test_a_pod_whose_admission_is_under_way_is_listed_without_devices(
    kubelet: SimulatedKubelet, monitor: Monitor, plugin: ScriptedPlugin
) -> None:
    go = asyncio.Event()
    answer = plugin.allocate

    async def slow(ids: Any) -> Any:
        await go.wait()
        return await answer(ids)

    plugin.allocate = slow
    adding = asyncio.create_task(kubelet.add_pod(pod()))
    await kubelet.wait_until(lambda _: plugin.allocated)
    (listed,) = (await monitor.list()).pod_resources
    assert listed.name == "p"
    assert listed.containers[0].devices == []
    go.set()
    await adding


async def test_all_callers_share_one_rate_limit(root: Path) -> None:
    now = 0.0
    async with SimulatedKubelet(root, monotonic=lambda: now) as kubelet:
        monitors = [Monitor(root), Monitor(root)]
        outcomes = [
            await monitors[n % 2].outcome(monitors[n % 2].list() if n % 3 else monitors[n % 2].allocatable())
            for n in range(14)
        ]
        assert outcomes == [""] * 10 + ["rejected by rate limit"] * 4
        now = 0.011
        await monitors[0].list()
        assert await monitors[1].refusal(monitors[1].list()) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "rejected by rate limit",
        )
        assert kubelet.calls["List"] + kubelet.calls["GetAllocatableResources"] == 16
        for monitor in monitors:
            await monitor.channel.close()


async def test_answers_may_be_far_beyond_grpcs_usual_limit(root: Path) -> None:
    async with SimulatedKubelet(root) as kubelet:
        devices = [Device(f"{n:04}-" + "x" * 500) for n in range(6000)]
        async with registered(kubelet, R, devices), Monitor(root) as monitor:
            answer = await monitor.allocatable()
            assert answer.ByteSize() > 3_000_000
            await kubelet.add_pod(pod("large", count=6000))
            await kubelet.add_pod(pod("none", count=0))
            assert len((await monitor.get("default", "large")).containers[0].devices) == 6000


@pytest.mark.parametrize(
    ("older", "works"),
    [
        (None, {"list", "allocatable", "get", "list_v1alpha1"}),
        ("no-get", {"list", "allocatable", "list_v1alpha1"}),
        ("no-allocatable", {"list", "list_v1alpha1"}),
        ("v1alpha1", {"list_v1alpha1"}),
    ],
)
async def test_older_kubelets_lack_methods(root: Path, older: Older | None, works: set[str]) -> None:
    async with SimulatedKubelet(root, old=older) as kubelet, Monitor(root) as monitor:
        await kubelet.add_pod(PodSpec("p"))
        for method in ("list", "allocatable", "get", "list_v1alpha1"):
            call = monitor.get("default", "p") if method == "get" else getattr(monitor, method)()
            if method in works:
                await call
            else:
                code, details = await monitor.refusal(call)
                assert code is grpc.StatusCode.UNIMPLEMENTED
                assert (details or "").startswith(
                    "unknown service v1.PodResourcesLister" if older == "v1alpha1" else "unknown method "
                )


async def test_v1alpha1_has_app_containers_and_devices_alone(
    kubelet: SimulatedKubelet, monitor: Monitor, plugin: ScriptedPlugin
) -> None:
    sidecar = ContainerSpec("side", {R: 1}, sidecar=True)
    await kubelet.add_pod(PodSpec("p", containers=(ContainerSpec("c", {R: 1}),), init_containers=(sidecar,)))
    (listed,) = (await monitor.list_v1alpha1()).pod_resources
    assert [container.name for container in listed.containers] == ["c"]
    (held,) = {h.device for h in kubelet.holdings() if h.container == "c"}
    assert [list(entry.device_ids) for entry in listed.containers[0].devices] == [[held]]


class TestFaults:
    async def test_slow(self, kubelet: SimulatedKubelet, monitor: Monitor) -> None:
        kubelet.faults = Faults(slow=0.2)
        begin = time.monotonic()
        await monitor.list()
        assert time.monotonic() - begin >= 0.2
        code, _ = await monitor.refusal(monitor.list(0.05))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED

    async def test_hung_until_it_is_over(self, kubelet: SimulatedKubelet, monitor: Monitor) -> None:
        kubelet.faults = Faults(hang=True)
        code, _ = await monitor.refusal(monitor.list(0.1))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        # The call that was given up need not have arrived.
        before = kubelet.calls["List"]
        hung = asyncio.create_task(monitor.list())
        await kubelet.wait_until(lambda k: k.calls["List"] > before)
        kubelet.faults = Faults()
        await hung

    async def test_garbage(self, kubelet: SimulatedKubelet, monitor: Monitor) -> None:
        kubelet.faults = Faults(garbage=True)
        method: Any = monitor.channel.unary_unary("/v1.PodResourcesLister/List")
        content = await method(b"")
        with pytest.raises(Exception, match="Error parsing message"):
            v1.ListPodResourcesResponse.FromString(content)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"\xff", "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data"),
            (b"\x0a\x02\xff\xfe", "grpc: error unmarshalling request: string field contains invalid UTF-8"),
        ],
    )
    async def test_a_request_that_does_not_decode_is_refused_and_not_counted(
        self, kubelet: SimulatedKubelet, monitor: Monitor, content: bytes, said: str
    ) -> None:
        # Empty requests have no field that could be wrong; what they do not know they skip.
        methods = ("List", "GetAllocatableResources", "Get") if content == b"\xff" else ("Get",)
        for name in methods:
            method: Any = monitor.channel.unary_unary(f"/v1.PodResourcesLister/{name}")
            assert await monitor.refusal(method(content)) == (grpc.StatusCode.INTERNAL, said)
            assert kubelet.calls[name] == 0

    async def test_every_device_twice(
        self, kubelet: SimulatedKubelet, monitor: Monitor, plugin: ScriptedPlugin
    ) -> None:
        await kubelet.add_pod(pod())
        once = sorted(entry.device_ids[0] for entry in (await monitor.allocatable()).devices)
        kubelet.faults = Faults(twice=True)
        (held,) = {h.device for h in kubelet.holdings()}
        (listed,) = (await monitor.list()).pod_resources
        assert [list(entry.device_ids) for entry in listed.containers[0].devices] == [[held]] * 2
        twice = sorted(entry.device_ids[0] for entry in (await monitor.allocatable()).devices)
        assert twice == sorted(once * 2)
        (old,) = (await monitor.list_v1alpha1()).pod_resources
        assert [list(entry.device_ids) for entry in old.containers[0].devices] == [[held]] * 2

    async def test_a_pod_that_is_forgotten_for_a_while(
        self, kubelet: SimulatedKubelet, monitor: Monitor, plugin: ScriptedPlugin
    ) -> None:
        for name in ("a", "b"):
            await kubelet.add_pod(pod(name))
        kubelet.faults = Faults(forgets=("default/a",))
        assert await monitor.pods() == {"b"}
        # The truth is what it was.
        assert {h.pod for h in kubelet.holdings()} == {"a", "b"}
        kubelet.faults = Faults()
        assert await monitor.pods() == {"a", "b"}

    async def test_a_limit_that_others_use_up(self, kubelet: SimulatedKubelet, monitor: Monitor) -> None:
        kubelet.faults = Faults(rate_limited=3)
        outcomes = [await monitor.outcome(monitor.list()) for _ in range(6)]
        assert outcomes == ["", "", "rejected by rate limit"] * 2

    async def test_an_error_for_one_method_alone(self, kubelet: SimulatedKubelet, monitor: Monitor) -> None:
        kubelet.faults = Faults(error="INTERNAL", methods=("GetAllocatableResources",))
        await monitor.list()
        code, _ = await monitor.refusal(monitor.allocatable())
        assert code is grpc.StatusCode.INTERNAL

    async def test_gone_and_back_by_a_rename(self, kubelet: SimulatedKubelet, monitor: Monitor) -> None:
        socket = kubelet.root / "pod-resources" / "kubelet.sock"
        await monitor.list()
        await kubelet.set_faults(Faults(gone=True))
        assert not socket.exists()
        code, _ = await monitor.refusal(monitor.list())
        assert code is grpc.StatusCode.UNAVAILABLE
        await kubelet.restart()
        assert not socket.exists()
        await kubelet.set_faults(Faults())
        assert socket.exists()
        await monitor.stub.List(v1.ListPodResourcesRequest(), timeout=20, wait_for_ready=True)


async def test_a_kubelet_that_has_just_come_back_lists_no_pod_until_it_hears_of_them(root: Path) -> None:
    """Seen on 1.36: the socket answers OK for 0.8 to 0.9 s before the API server is heard."""
    async with SimulatedKubelet(root, sync_delay=4.0) as kubelet, registered(kubelet, R, ONE):
        await kubelet.add_pod(pod())
        (held,) = kubelet.holdings()
        await kubelet.restart()
        async with Monitor(root) as monitor:
            assert await monitor.pods() == set()
            code, details = await monitor.refusal(monitor.get("default", "p"))
            assert (code, details) == (grpc.StatusCode.UNKNOWN, "pod p in namespace default not found")
            # The truth is another.
            assert kubelet.holdings() == {held}
            async with asyncio.timeout(20):
                while await monitor.pods() != {"p"}:
                    await asyncio.sleep(0.05)
            assert (await monitor.get("default", "p")).name == "p"
            # What comes now waits until the kubelet has heard of it.
            await kubelet.restart()
            await kubelet.delete_pod("default", "p")
            assert await monitor.pods() == set()


async def test_a_kubelet_whose_api_server_is_away_lists_its_static_pods_alone(root: Path) -> None:
    """Seen on 1.36: for as long as it is away."""
    static = PodSpec("etcd-node", annotations={"kubernetes.io/config.source": "file"})
    async with SimulatedKubelet(root, sync_delay=3600.0) as kubelet:
        # Before its first restart a kubelet is one that has heard.
        await kubelet.add_pod(PodSpec("p"))
        await kubelet.add_pod(static)
        await kubelet.restart()
        async with Monitor(root) as monitor:
            assert await monitor.pods() == {"etcd-node"}
            assert (await monitor.get("default", "etcd-node")).name == "etcd-node"
            await kubelet.delete_pod("default", "etcd-node")
            assert await monitor.pods() == set()
            await kubelet.add_pod(static)
            assert await monitor.pods() == {"etcd-node"}
