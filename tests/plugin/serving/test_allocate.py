"""Allocate and GetPreferredAllocation over the socket: exact answers, and refusals by name."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest

from harness.hosttree import HostTree
from harness.served import Node, Served, plugin_stub
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from kubelet.pb.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from simulator import SimulatedKubelet

GPU = "example.com/gpu"
CONFIGURATION = f"""\
version: 1
resources:
  - name: {GPU}
    discover: [{{glob: {{paths: ["/dev/gpu*"]}}}}]
    numa: 1
    share: {{replicas: 2, max_per_container: 3}}
    prefer: spread
    allocate:
      env:
        GPUS: "{{{{ devices | map(attribute='id') | join(',') }}}}"
        BAD: "{{{{ devices[9].id if devices | length > 1 else 'fine' }}}}"
      devices: [{{host: "{{{{ device.path }}}}", permissions: rw}}]
      mounts: [{{host: "/run/{{{{ device.id }}}}", container: /run/gpu, read_only: true, create: directory}}]
      annotations: {{"example.com/x": "y"}}
      cdi: ["example.com/gpu={{{{ device.id }}}}"]
"""


Stub: TypeAlias = "pb_grpc.DevicePluginAsyncStub"


@pytest.fixture
async def served(node: Node, tree: HostTree) -> AsyncIterator[Served]:
    tree.directory("/run")
    for n in range(3):
        tree.file(f"/dev/gpu{n}")
    async with node.serve(CONFIGURATION, ready={GPU: 6}) as running:
        yield running


@pytest.fixture
async def stub(served: Served, root: Path) -> AsyncIterator[Stub]:
    async with plugin_stub(root / "k") as made:
        yield made


def request(*containers: list[str]) -> pb.AllocateRequest:
    return pb.AllocateRequest(
        container_requests=[pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    )


async def test_one_answer_for_many_containers(stub: Stub, host: Path, served: Served) -> None:
    answer = await stub.Allocate(request(["gpu1::0", "gpu1::1"], ["gpu2::0"]))
    expected = [
        pb.ContainerAllocateResponse(
            envs={"GPUS": gpu, "BAD": "fine"},
            devices=[pb.DeviceSpec(container_path=f"/dev/{gpu}", host_path=f"/dev/{gpu}", permissions="rw")],
            mounts=[pb.Mount(container_path="/run/gpu", host_path=f"/run/{gpu}", read_only=True)],
            annotations={"example.com/x": "y"},
            cdi_devices=[pb.CDIDevice(name=f"example.com/gpu={gpu}")],
        )
        for gpu in ("gpu1", "gpu2")
    ]
    assert list(answer.container_responses) == expected
    assert (host / "run/gpu1").is_dir()
    assert served.status(GPU).counters.allocations == 2
    entries = {
        entry.id: served.status(GPU).last_allocated(entry.id) for entry in served.status(GPU).advertised
    }
    assert [i for i, at in entries.items() if at is not None] == ["gpu1::0", "gpu1::1", "gpu2::0"]


@pytest.mark.parametrize(
    ("ids", "code", "words"),
    [
        (["gpu0::0", "gpu1::0", "gpu2::0", "gpu2::1"], grpc.StatusCode.INVALID_ARGUMENT, "at most 3, 4 were"),
        (
            ["gpu0::0", "gpu1::0"],
            grpc.StatusCode.INTERNAL,
            "allocate.env.BAD: list object has no element 9",
        ),
        (["\x1b[2J\n"], grpc.StatusCode.FAILED_PRECONDITION, "'\\x1b[2J\\n' is unknown"),
    ],
)
async def test_a_refusal_says_what_and_why_and_the_process_lives(
    stub: Stub, served: Served, ids: list[str], code: grpc.StatusCode, words: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Allocate(request(["gpu0::1"], ids))
    assert caught.value.code() is code
    assert words in (caught.value.details() or "")
    assert served.status(GPU).counters.allocation_errors == 1
    assert served.status(GPU).last_allocated("gpu0::1") is None
    assert (await stub.Allocate(request(["gpu0::1"]))).container_responses[0].envs["GPUS"] == "gpu0"


async def test_missing_mounts_and_devices(stub: Stub, host: Path, kubelet: SimulatedKubelet) -> None:
    (host / "run/gpu0").symlink_to("/dev")
    with pytest.raises(grpc.aio.AioRpcError, match="/run/gpu0: there is something that is not a directory"):
        await stub.Allocate(request(["gpu0::0"]))
    (host / "dev/gpu1").unlink()
    await kubelet.wait_until(lambda k: k.allocatable(GPU) == 4)
    with pytest.raises(grpc.aio.AioRpcError, match="'gpu1::0' is unhealthy"):
        await stub.Allocate(request(["gpu1::0"]))


async def test_the_preferred_allocation(stub: Stub) -> None:
    assert (await stub.GetDevicePluginOptions(pb.Empty())).get_preferred_allocation_available
    offer = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=["gpu0::0", "gpu0::1", "gpu1::1", "gpu2::0", "gpu2::1"],
        must_include_deviceIDs=["gpu0::0"],
        allocation_size=2,
    )
    answer = await stub.GetPreferredAllocation(
        pb.PreferredAllocationRequest(container_requests=[offer, offer])
    )
    assert [list(container.deviceIDs) for container in answer.container_responses] == [
        ["gpu0::0", "gpu2::0"]
    ] * 2
