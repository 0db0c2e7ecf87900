"""Pods that are let in and refused; who gets which devices."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest

from harness.scripted import R, pod, registered
from kubelet.pb.deviceplugin.v1beta1 import api_pb2
from simulator import SimulatedKubelet, checkpoint, endpoint
from simulator.devices import Device, Options
from simulator.model import AdmissionError, ContainerError, ContainerSpec, Phase, PodSpec
from simulator.scripted import PluginFailure, ScriptedPlugin

NIC = "example.com/nic"
FOUR = tuple(Device(f"d{n}", numa=(n % 2,)) for n in range(4))
PRE_START = Options(pre_start_required=True)


def devices_of(kubelet: SimulatedKubelet, name: str, container: str = "c") -> set[str]:
    return {h.device for h in kubelet.holdings() if (h.pod, h.container) == (name, container)}


async def test_a_pod_gets_devices_by_one_allocate_for_each_container_and_resource(
    kubelet: SimulatedKubelet,
) -> None:
    async with (
        registered(kubelet, R, FOUR) as plugin,
        registered(kubelet, NIC, [Device("n0")], socket="nic.sock") as nic,
    ):
        containers = (ContainerSpec("a", {R: 2, NIC: 1}), ContainerSpec("b", {R: 1}), ContainerSpec("idle"))
        uid = await kubelet.add_pod(PodSpec("p", "space", containers))
        assert sorted(map(len, plugin.allocated)) == [1, 2]
        assert nic.allocated == [("n0",)]
        assert plugin.offered == [], "it does not offer GetPreferredAllocation"
        assert [pod.uid for pod in kubelet.pods()] == [uid]
        assert len(devices_of(kubelet, "p", "a")) == 3
        held = devices_of(kubelet, "p", "b")
        answer = kubelet.alloc_response("space", "p", "b", R)
        assert dict(answer.envs) == {"DEVICES": ",".join(held)}
        with pytest.raises(KeyError):
            kubelet.alloc_response("space", "p", "idle", R)


async def test_devices_come_from_one_numa_node_where_one_has_enough(kubelet: SimulatedKubelet) -> None:
    async with registered(kubelet, R, FOUR):
        await kubelet.add_pod(pod("one", count=2))
        assert devices_of(kubelet, "one") in ({"d0", "d2"}, {"d1", "d3"})
        await kubelet.add_pod(pod("two", count=2))
        assert devices_of(kubelet, "two") in ({"d0", "d2"}, {"d1", "d3"})


async def test_without_topology_manager_the_plugin_is_offered_everything(root: Path) -> None:
    options = Options(preferred_allocation=True)
    async with (
        SimulatedKubelet(root, topology_policy="none") as kubelet,
        registered(kubelet, R, FOUR, options=options, prefer=_first_and_last) as plugin,
    ):
        await kubelet.add_pod(pod("split", count=2))
        assert sorted(plugin.offered[0].available_deviceIDs) == ["d0", "d1", "d2", "d3"]
        assert devices_of(kubelet, "split") == {"d0", "d3"}


async def test_a_policy_can_refuse_what_would_be_split(root: Path) -> None:
    async with (
        SimulatedKubelet(root, topology_policy="restricted") as kubelet,
        registered(kubelet, R, FOUR[:3]),
    ):
        # d0 and d2 could have served two together; with one of them taken, d1 is on another node.
        await kubelet.add_pod(pod("one"))
        assert devices_of(kubelet, "one") < {"d0", "d2"}
        with pytest.raises(AdmissionError) as refused:
            await kubelet.add_pod(pod("split", count=2))
        assert str(refused.value) == (
            "TopologyAffinityError: Pod was rejected: Resources cannot be allocated with Topology locality"
        )


async def _first_and_last(request: api_pb2.ContainerPreferredAllocationRequest) -> Sequence[str]:
    ids = sorted(request.available_deviceIDs)
    return [ids[0], ids[-1]]


async def test_the_plugin_is_asked_and_heard_only_on_what_was_offered(
    kubelet: SimulatedKubelet,
) -> None:
    async def prefer(_request: api_pb2.ContainerPreferredAllocationRequest) -> Sequence[str]:
        return ["nonsense", "d2"]

    options = Options(preferred_allocation=True)
    devices = [Device(f"d{n}") for n in range(4)]
    async with registered(kubelet, R, devices, options=options, prefer=prefer) as plugin:
        await kubelet.add_pod(pod("one", count=2))
        assert "d2" in devices_of(kubelet, "one")
        assert len(devices_of(kubelet, "one")) == 2
        assert (len(plugin.offered), plugin.offered[0].allocation_size) == (1, 2)
        # No choice is left, and it is asked all the same.
        await kubelet.add_pod(pod("rest", count=2))
        assert len(plugin.offered) == 2
        assert len(devices_of(kubelet, "rest")) == 2
        assert any("were not offered" in violation for violation in kubelet.violations)


async def test_init_containers_hand_their_devices_on_and_sidecars_keep_theirs(
    kubelet: SimulatedKubelet,
) -> None:
    options = Options(preferred_allocation=True)
    devices = [Device(f"d{n}") for n in range(6)]
    async with registered(kubelet, R, devices, options=options) as plugin:
        spec = PodSpec(
            "p",
            init_containers=(ContainerSpec("init", {R: 2}), ContainerSpec("side", {R: 1}, sidecar=True)),
            containers=(ContainerSpec("main", {R: 2}),),
        )
        await kubelet.add_pod(spec)
        init, side, main = (set(ids) for ids in plugin.allocated)
        # The sidecar took one that the init container had, and the app container what was left of them.
        assert side < init
        assert init - side < main
        assert [sorted(offer.must_include_deviceIDs) for offer in plugin.offered] == [
            [],
            sorted(init - side),
        ]
        assert {h.container for h in kubelet.holdings()} == {"side", "main"}
        assert (devices_of(kubelet, "p", "side"), devices_of(kubelet, "p", "main")) == (side, main)
        assert kubelet.alloc_response("default", "p", "init", R).envs["DEVICES"] == ",".join(sorted(init))


async def test_what_an_init_container_had_more_stays_with_the_pod_unlisted(kubelet: SimulatedKubelet) -> None:
    async with registered(kubelet, R, FOUR):
        await kubelet.add_pod(
            PodSpec(
                "p",
                init_containers=(ContainerSpec("init", {R: 3}),),
                containers=(ContainerSpec("main", {R: 1}),),
            )
        )
        assert len(kubelet.holdings()) == 1
        with pytest.raises(AdmissionError, match="Requested: 2, Available: 1"):
            await kubelet.add_pod(pod("q", count=2))
        await kubelet.delete_pod("default", "p")
        await kubelet.add_pod(pod("r", count=4))


class TestRefusals:
    async def test_too_few_devices(self, kubelet: SimulatedKubelet) -> None:
        async with registered(kubelet, R, FOUR):
            await kubelet.add_pod(pod("p", count=3))
            with pytest.raises(AdmissionError) as refused:
                await kubelet.add_pod(pod("q", count=2))
            assert refused.value.reason == "UnexpectedAdmissionError"
            assert refused.value.message == (
                "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
                "example.com/camera. Requested: 2, Available: 1, which is unexpected"
            )
            assert [(p.spec.name, p.phase) for p in kubelet.pods()] == [
                ("p", Phase.RUNNING),
                ("q", Phase.FAILED),
            ]
            await kubelet.delete_pod("default", "p")
            await kubelet.add_pod(pod("q", count=2))

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            (
                PluginFailure(grpc.StatusCode.FAILED_PRECONDITION, "d1 is on fire"),
                "rpc error: code = FailedPrecondition desc = d1 is on fire, which is unexpected",
            ),
            (None, "no containers return in allocation response"),
        ],
        ids=["error", "no container"],
    )
    async def test_a_plugin_that_allocates_nothing(
        self, kubelet: SimulatedKubelet, answer: PluginFailure | None, said: str
    ) -> None:
        async def allocate(_ids: Sequence[str]) -> None:
            if answer is not None:
                raise answer

        async with registered(kubelet, R, FOUR, allocate=allocate):
            with pytest.raises(AdmissionError) as refused:
                await kubelet.add_pod(pod())
            assert refused.value.message.startswith(f"Pod was rejected: Allocate failed due to {said}")
            assert kubelet.holdings() == frozenset()

    async def test_no_healthy_devices(self, kubelet: SimulatedKubelet) -> None:
        async with registered(kubelet, R, FOUR):
            pass
        await kubelet.wait_until(lambda k: k.allocatable(R) == 0)
        with pytest.raises(AdmissionError) as refused:
            await kubelet.add_pod(pod())
        assert refused.value.message == (
            "Pod was rejected: Allocate failed due to no healthy devices present; "
            "cannot allocate unhealthy devices example.com/camera, which is unexpected"
        )

    async def test_a_kubelet_can_let_pass_what_it_never_heard_of(self, root: Path) -> None:
        async with SimulatedKubelet(root, ignore_unknown_resources=True) as kubelet:
            await kubelet.add_pod(pod())
            assert kubelet.holdings() == frozenset()

    async def test_a_resource_that_was_forgotten(self, root: Path) -> None:
        now = 0.0
        async with SimulatedKubelet(root, monotonic=lambda: now, ignore_unknown_resources=True) as kubelet:
            async with registered(kubelet, R, FOUR):
                pass
            await kubelet.wait_until(lambda k: k.allocatable(R) == 0)
            now = 301
            with pytest.raises(AdmissionError, match="capacity: 0"):
                await kubelet.add_pod(pod())

    async def test_what_was_allocated_before_the_refusal_is_free_again(
        self, kubelet: SimulatedKubelet
    ) -> None:
        async with registered(kubelet, R, FOUR):
            spec = PodSpec("p", containers=(ContainerSpec("a", {R: 3}), ContainerSpec("b", {R: 3})))
            with pytest.raises(AdmissionError):
                await kubelet.add_pod(spec)
            await kubelet.add_pod(pod("q", count=4))


@dataclass
class InFlight:
    """A pod whose Allocate waits until the test lets it go."""

    plugin: ScriptedPlugin
    adding: asyncio.Task[str]
    go: asyncio.Event


class TestInFlight:
    @staticmethod
    @asynccontextmanager
    async def held_up(
        kubelet: SimulatedKubelet, devices: Iterable[Device] = FOUR
    ) -> AsyncGenerator[InFlight]:
        go = asyncio.Event()

        async def allocate(_ids: Sequence[str]) -> api_pb2.ContainerAllocateResponse:
            await go.wait()
            return api_pb2.ContainerAllocateResponse(envs={"DONE": "1"})

        async with registered(kubelet, R, devices, allocate=allocate) as plugin:
            adding = asyncio.create_task(kubelet.add_pod(pod()))
            await kubelet.wait_until(lambda _: plugin.allocated)
            yield InFlight(plugin, adding, go)

    async def test_a_device_dropped_while_its_allocate_is_in_flight_is_a_panic(
        self, kubelet: SimulatedKubelet
    ) -> None:
        async with self.held_up(kubelet, FOUR[:1]) as its:
            its.plugin.send([])
            await kubelet.wait_until(lambda k: k.capacity(R) == 0)
            its.go.set()
            await its.adding
        assert kubelet.violations[0] == (
            "example.com/camera: device 'd0' was dropped while its Allocate was in flight: "
            "a kubelet panics here"
        )

    async def test_an_allocate_that_hangs_holds_up_all_other_pods(self, kubelet: SimulatedKubelet) -> None:
        async with self.held_up(kubelet) as its:
            second = asyncio.create_task(kubelet.add_pod(PodSpec("second")))
            await kubelet.wait_until(lambda k: len(k.pods()) == 2)
            await asyncio.wait((its.adding, second), timeout=0.1)
            assert not its.adding.done()
            assert not second.done()
            its.go.set()
            await asyncio.gather(its.adding, second)

    async def test_a_restart_meanwhile_admits_the_pod_anew(self, kubelet: SimulatedKubelet) -> None:
        async with self.held_up(kubelet) as its:
            await kubelet.restart()
            # The new kubelet does not know the plugin yet, as after a node's reboot.
            with pytest.raises(AdmissionError, match="no healthy devices present"):
                await its.adding

    async def test_a_plugin_that_dies_meanwhile_fails_the_pod(self, kubelet: SimulatedKubelet) -> None:
        async with self.held_up(kubelet) as its:
            await its.plugin.stop()
            with pytest.raises(AdmissionError, match=r"due to rpc error: code = (Unavailable|Canceled)"):
                await its.adding

    async def test_who_stops_waiting_takes_the_pod_back(self, kubelet: SimulatedKubelet) -> None:
        async with self.held_up(kubelet) as its:
            its.adding.cancel()
            await asyncio.wait([its.adding])
            assert kubelet.pods() == ()
            await kubelet.add_pod(PodSpec("next"))


class TestContainers:
    async def test_prestart_comes_before_each_start_and_allocate_only_once(
        self, kubelet: SimulatedKubelet
    ) -> None:
        async with registered(kubelet, R, FOUR, options=PRE_START) as plugin:
            await kubelet.add_pod(pod())
            assert plugin.started == plugin.allocated
            answers = await kubelet.restart_container("default", "p", "c")
            assert answers[R].envs["DEVICES"] == plugin.allocated[0][0]
            assert (len(plugin.started), len(plugin.allocated)) == (2, 1)

    async def test_a_prestart_that_fails_leaves_the_pod_with_its_devices(
        self, kubelet: SimulatedKubelet
    ) -> None:
        fails = True

        async def pre_start(_ids: Sequence[str]) -> None:
            if fails:
                raise PluginFailure(grpc.StatusCode.INTERNAL, "no firmware")

        async with registered(kubelet, R, FOUR, options=PRE_START, pre_start=pre_start):
            with pytest.raises(ContainerError) as failed:
                await kubelet.add_pod(pod())
            assert str(failed.value) == (
                "device plugin PreStartContainer rpc failed with err: "
                "rpc error: code = Internal desc = no firmware"
            )
            assert len(kubelet.holdings()) == 1
            assert kubelet.pods()[0].phase is Phase.PENDING
            fails = False
            await kubelet.restart_container("default", "p", "c")

    async def test_a_prestart_has_a_time_limit(
        self, kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def hangs(_ids: Sequence[str]) -> None:
            await asyncio.Event().wait()

        assert endpoint.PRE_START_TIMEOUT == 30
        monkeypatch.setattr(endpoint, "PRE_START_TIMEOUT", 0.1)
        async with registered(kubelet, R, FOUR, options=PRE_START, pre_start=hangs):
            with pytest.raises(ContainerError, match="rpc error: code = DeadlineExceeded"):
                await kubelet.add_pod(pod())

    async def test_a_container_starts_again_after_a_restart_without_its_plugin(
        self, kubelet: SimulatedKubelet
    ) -> None:
        async with registered(kubelet, R, FOUR, options=PRE_START) as plugin:
            await kubelet.add_pod(pod())
            await kubelet.restart()
            answers = await kubelet.restart_container("default", "p", "c")
            assert answers[R].envs["DEVICES"] == plugin.allocated[0][0]


async def test_the_checkpoint_follows_allocations_and_lists_but_no_release(kubelet: SimulatedKubelet) -> None:
    path = kubelet.root / "device-plugins" / "kubelet_internal_checkpoint"
    async with registered(kubelet, R, FOUR):
        uid = await kubelet.add_pod(pod())
        written = path.read_bytes()
        data = json.loads(written)["Data"]
        assert [entry["PodUID"] for entry in data["PodDeviceEntries"]] == [uid]
        assert data["RegisteredDevices"] == {R: ["d0", "d1", "d2", "d3"]}
        inode = path.stat().st_ino
        await kubelet.delete_pod("default", "p")
        assert kubelet.holdings() == frozenset()
        assert (path.read_bytes(), path.stat().st_ino) == (written, inode)
        await kubelet.add_pod(pod("next"))
        assert uid not in path.read_text()


async def test_a_device_on_two_nodes_is_kept_under_both(kubelet: SimulatedKubelet) -> None:
    path = kubelet.root / "device-plugins" / "kubelet_internal_checkpoint"
    async with registered(kubelet, R, [Device("wide", numa=(0, 1)), Device("bare")]):
        await kubelet.add_pod(pod(count=2))
        kept = json.loads(path.read_text())["Data"]["PodDeviceEntries"][0]["DeviceIDs"]
        assert kept == {"-1": ["bare"], "0": ["wide"], "1": ["wide"]}


class Walk:
    """A random walk: pods come and go, devices fail and come back, the kubelet restarts, the plugin moves."""

    def __init__(self, kubelet: SimulatedKubelet, seed: int) -> None:
        self.kubelet = kubelet
        self.chance = random.Random(seed)
        self.devices = {f"d{n}": Device(f"d{n}", numa=(n % 2,) if n % 3 else None) for n in range(8)}
        self.held: dict[str, int] = {}
        self.plugin = ScriptedPlugin(kubelet.root, R)

    async def come(self, socket: str) -> None:
        await self.plugin.stop()
        self.plugin = ScriptedPlugin(self.kubelet.root, R, self.devices.values(), socket=socket)
        await self.plugin.serve()
        await self.plugin.register()

    async def step(self, n: int) -> None:
        match self.chance.choice(["add", "add", "add", "delete", "complete", "health", "restart", "move"]):
            case "add":
                await self.add(f"p{n}", self.chance.randint(1, 3))
            case "delete" if self.held:
                await self.kubelet.delete_pod("default", self.any_pod())
            case "complete" if self.held:
                await self.kubelet.complete_pod("default", self.any_pod())
            case "health":
                device = self.devices[self.chance.choice(sorted(self.devices))]
                health = "Unhealthy" if device.health == "Healthy" else "Healthy"
                self.devices[device.id] = replace(device, health=health)
                self.plugin.send(self.devices.values())
            case "restart":
                await self.kubelet.restart()
                await self.come(f"s{n}.sock")
            case "move":
                await self.plugin.stop()
                await self.kubelet.wait_until(lambda k: k.streams(R) == 0)
                await self.come(f"s{n}.sock")
            case _:
                pass

    async def add(self, name: str, count: int) -> None:
        free = sum(d.health == "Healthy" for d in self.devices.values() if d.id not in self.taken())
        if count <= free:
            await self.kubelet.add_pod(pod(name, count=count))
            self.held[name] = count
        else:
            with pytest.raises(AdmissionError, match=r"Available|no healthy devices"):
                await self.kubelet.add_pod(pod(name, count=count))

    def any_pod(self) -> str:
        name = self.chance.choice(sorted(self.held))
        del self.held[name]
        return name

    def taken(self) -> set[str]:
        return {h.device for h in self.kubelet.holdings()}

    def settled(self, kubelet: SimulatedKubelet) -> bool:
        healthy = sum(device.health == "Healthy" for device in self.devices.values())
        return (kubelet.capacity(R), kubelet.allocatable(R)) == (8, healthy)


@pytest.mark.parametrize("seed", range(2))
async def test_no_device_has_two_holders_after_any_sequence_of_events(root: Path, seed: int) -> None:
    async with SimulatedKubelet(root, seed=seed) as kubelet:
        walk = Walk(kubelet, seed)
        try:
            await walk.come("first.sock")
            for n in range(60):
                await kubelet.wait_until(walk.settled)
                await walk.step(n)
                holdings = kubelet.holdings()
                assert len(walk.taken()) == len(holdings)
                assert Counter(h.pod for h in holdings) == walk.held
                kept = checkpoint.read(root / "device-plugins" / "kubelet_internal_checkpoint")
                assert kept is not None
                in_file = {i for entry in kept.entries for ids in entry.devices.values() for i in ids}
                assert walk.taken() <= in_file
            assert kubelet.violations == ()
        finally:
            await walk.plugin.stop()


class TestPinning:
    async def test_cpus_and_devices_share_a_numa_node(self, kubelet: SimulatedKubelet) -> None:
        async with registered(kubelet, R, [Device("d", numa=(1,))]):
            spec = PodSpec(
                "p", containers=(ContainerSpec("c", {R: 1}, exclusive_cpus=2, memory={"memory": 1 << 30}),)
            )
            await kubelet.add_pod(spec)
            listed = kubelet.pod_resources().pod_resources[0].containers[0]
            assert list(listed.cpu_ids) == [4, 5]
            assert [[node.ID for node in block.topology.nodes] for block in listed.memory] == [[1]]
            assert kubelet.pods()[0].qos_class == "Guaranteed"

    async def test_too_few_cpus_are_refused_and_released_ones_come_back(
        self, kubelet: SimulatedKubelet
    ) -> None:
        greedy = PodSpec("greedy", containers=(ContainerSpec("c", exclusive_cpus=6),))
        await kubelet.add_pod(greedy)
        with pytest.raises(AdmissionError) as refused:
            await kubelet.add_pod(PodSpec("late", containers=(ContainerSpec("c", exclusive_cpus=2),)))
        assert refused.value.message == (
            "Pod was rejected: Allocate failed due to not enough cpus available to satisfy request: "
            "requested=2, available=1, which is unexpected"
        )
        await kubelet.complete_pod("default", "greedy")
        await kubelet.add_pod(PodSpec("late", containers=(ContainerSpec("c", exclusive_cpus=7),)))

    async def test_memory_beyond_one_node_spans_two(self, kubelet: SimulatedKubelet) -> None:
        large = (ContainerSpec("c", memory={"memory": 9 << 30}),)
        await kubelet.add_pod(PodSpec("p", containers=large))
        (block,) = kubelet.pod_resources().pod_resources[0].containers[0].memory
        assert [node.ID for node in block.topology.nodes] == [0, 1]
        with pytest.raises(AdmissionError, match="insufficient memory"):
            await kubelet.add_pod(PodSpec("q", containers=large))
