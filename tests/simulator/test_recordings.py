"""The simulated kubelet beside the recordings of a real one: the same pods, the same answers."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from harness.recordings import RECORDINGS
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as deviceplugin
from kubelet.pb.podresources.v1 import api_pb2 as v1
from kubelet.pb.podresources.v1 import api_pb2_grpc as v1_grpc
from simulator import Replay, SimulatedKubelet
from simulator.devices import Device, Options
from simulator.model import ClaimDevice, ClaimSpec, ContainerSpec, PodSpec
from simulator.scripted import ScriptedPlugin

NAMES = (
    "dra-shared-and-inline-claims",
    "after-kubelet-restart-plugin-not-registered",
    "init-sidecar-guaranteed-and-completed-job",
)


class Recording:
    def __init__(self, name: str) -> None:
        self.path = RECORDINGS / f"{name}.list.binpb"
        self.listed = v1.ListPodResourcesResponse.FromString(self.path.read_bytes())
        allocatable = (RECORDINGS / f"{name}.allocatable.binpb").read_bytes()
        self.allocatable = v1.AllocatableResourcesResponse.FromString(allocatable)

    def pods(self) -> list[PodSpec]:
        return [_pod(pod) for pod in self.listed.pod_resources]

    def chosen(self) -> set[str]:
        """Every device that somebody holds."""
        return {
            i
            for pod in self.listed.pod_resources
            for container in pod.containers
            for entry in container.devices
            for i in entry.device_ids
        }


def _pod(pod: v1.PodResources) -> PodSpec:
    containers = [_container(container) for container in pod.containers]
    sidecars = [c for c in containers if c.sidecar]
    return PodSpec(
        pod.name,
        pod.namespace,
        tuple(c for c in containers if not c.sidecar),
        # As on the real one: its init container's two devices were handed on.
        ((ContainerSpec("init", {"held.example/foo": 2}), *sidecars) if sidecars else ()),
    )


def _container(container: v1.ContainerResources) -> ContainerSpec:
    resources: dict[str, int] = {}
    for entry in container.devices:
        resources[entry.resource_name] = resources.get(entry.resource_name, 0) + len(entry.device_ids)
    return ContainerSpec(
        container.name,
        resources,
        exclusive_cpus=len(container.cpu_ids),
        memory={block.memory_type: block.size for block in container.memory},
        claims=tuple(_claim(claim) for claim in container.dynamic_resources),
        sidecar=container.name == "sidecar",
    )


def _claim(claim: v1.DynamicResource) -> ClaimSpec:
    first = claim.claim_resources[0]
    cdi = tuple(device.name for device in first.cdi_devices)
    device = ClaimDevice(first.driver_name, first.pool_name, first.device_name, cdi)
    return ClaimSpec(claim.claim_name, (device,), claim.claim_namespace)


def in_one_order(message: Message) -> str:
    """The message as text, whatever order its parts are in, devices' ids blotted out by resource."""
    if isinstance(message, v1.ListPodResourcesResponse):
        return "\n".join(sorted(in_one_order(pod) for pod in message.pod_resources))
    if isinstance(message, v1.PodResources):
        return f"{message.namespace}/{message.name}\n" + "\n".join(
            in_one_order(c) for c in message.containers
        )
    if isinstance(message, v1.ContainerResources):
        parts = [*message.devices, *message.memory, *message.dynamic_resources]
        return f"{message.name} {message.cpu_ids}\n" + "\n".join(sorted(str(part) for part in parts))
    assert isinstance(message, v1.AllocatableResourcesResponse)
    return "\n".join(sorted(map(str, [*message.devices, *message.memory, sorted(message.cpu_ids)])))


def renamed(message: v1.ListPodResourcesResponse) -> v1.ListPodResourcesResponse:
    """With devices numbered in each pod: which of them a pod gets is chance."""
    copy = v1.ListPodResourcesResponse()
    copy.CopyFrom(message)
    for pod in copy.pod_resources:
        for container in pod.containers:
            for n, entry in enumerate(sorted(container.devices, key=lambda e: e.resource_name)):
                assert len(entry.device_ids) == 1
                entry.device_ids[0] = f"device {n}"
    return copy


@pytest.fixture(params=NAMES)
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording(request.param)


async def test_the_same_pods_give_the_same_answers(root: Path, recording: Recording) -> None:
    before = Recording(NAMES[0]) if not recording.allocatable.devices else recording
    advertised: dict[str, list[Device]] = {}
    for entry in before.allocatable.devices:
        advertised.setdefault(entry.resource_name, []).append(Device(entry.device_ids[0], numa=(0,)))

    async def prefer(request: deviceplugin.ContainerPreferredAllocationRequest) -> Sequence[str]:
        return sorted(request.available_deviceIDs)[: request.allocation_size]

    sim = SimulatedKubelet(
        root,
        numa_nodes=1,
        cpus=len(recording.allocatable.cpu_ids) * 2,
        memory=sum(block.size for block in recording.allocatable.memory),
        topology_after_restart=True,
    )
    async with AsyncExitStack() as stack:
        kubelet = await stack.enter_async_context(sim)
        for n, (resource, devices) in enumerate(advertised.items()):
            options = Options(preferred_allocation=True)
            plugin = ScriptedPlugin(
                root, resource, devices, socket=f"{n}.sock", options=options, prefer=prefer
            )
            await stack.enter_async_context(plugin)
            await plugin.register()
        await kubelet.wait_until(lambda k: all(k.allocatable(r) == len(advertised[r]) for r in advertised))
        for spec in recording.pods():
            await kubelet.add_pod(spec)
        await kubelet.add_pod(PodSpec("job"))
        await kubelet.complete_pod("default", "job")
        if not recording.allocatable.devices:
            await kubelet.restart()
        listed = kubelet.pod_resources()
        assert in_one_order(renamed(listed)) == in_one_order(renamed(recording.listed))
        assert {h.device for h in kubelet.holdings()} <= {d.id for ds in advertised.values() for d in ds}
        assert len(kubelet.holdings()) == len(recording.chosen())
        assert in_one_order(kubelet.allocatable_resources()) == in_one_order(recording.allocatable)
        assert kubelet.violations == ()


async def test_a_recording_is_replayed_byte_for_byte(root: Path, recording: Recording) -> None:
    listed = recording.path.read_bytes()
    allocatable = recording.allocatable.SerializeToString()
    async with SimulatedKubelet(root, replay=Replay(listed, allocatable)) as kubelet:
        target = f"unix:{root}/pod-resources/kubelet.sock"
        async with grpc.aio.insecure_channel(target) as channel:
            for method, answer in (("List", listed), ("GetAllocatableResources", allocatable)):
                call: Any = channel.unary_unary(f"/v1.PodResourcesLister/{method}")
                assert await call(b"") == answer
            stub: v1_grpc.PodResourcesListerAsyncStub = v1_grpc.PodResourcesListerStub(channel)
            wanted = recording.listed.pod_resources[0]
            request = v1.GetPodResourcesRequest(pod_name=wanted.name, pod_namespace=wanted.namespace)
            assert (await stub.Get(request)).pod_resources == wanted
        assert {h.device for h in kubelet.holdings()} == recording.chosen()
