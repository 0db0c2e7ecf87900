"""`prefer: topology` over the socket: the partitions of the captured AMD machine."""

from pathlib import Path

import pytest

from harness.hosttree import HostTree
from harness.machines import Machine
from harness.served import Node, plugin_stub
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb

GPU = "amd.com/gpu"
CONFIGURATION = f"""\
version: 1
resources:
  - name: {GPU}
    discover: [{{kfd: {{partitions: true}}}}]
    prefer: topology
    allocate: {{devices: [{{host: "{{{{ node }}}}"}}]}}
"""
FIRST = [f"amdgpu_xcp_{n}" for n in range(4)]
SECOND = [f"amdgpu_xcp_{n}" for n in range(4, 8)]


@pytest.fixture
def partitions(tree: HostTree, machine: Machine) -> None:
    """Two GPUs with four partitions each; the machine's file has the links between all of them."""
    tree.load("amd-kfd-mi308")
    tree.file("/dev/kfd")
    for address in ("0000:0a:00.0", "0000:80:00.0"):
        machine.function(address, "1002", "74a2", "120000", driver="amdgpu")
    for number, render in enumerate([*range(128, 132), *range(136, 140)]):
        path = f"/sys/devices/platform/amdgpu_xcp_{number}"
        tree.directory(path)
        machine.card(number, path, render=render)


@pytest.mark.parametrize(
    ("available", "must", "preferred"),
    [
        (FIRST + SECOND, [], FIRST),
        (FIRST + SECOND, [SECOND[2]], SECOND),
        (FIRST[1:] + SECOND, [], SECOND),
        (FIRST[1:] + SECOND, [], FIRST[1:3]),
        (FIRST + SECOND, [], FIRST + SECOND),
    ],
)
@pytest.mark.usefixtures("partitions")
async def test_partitions_of_one_gpu_are_preferred(
    node: Node, root: Path, available: list[str], must: list[str], preferred: list[str]
) -> None:
    async with node.serve(CONFIGURATION, ready={GPU: 8}), plugin_stub(root / "k") as stub:
        assert (await stub.GetDevicePluginOptions(pb.Empty())).get_preferred_allocation_available
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=len(preferred)
        )
        answer = await stub.GetPreferredAllocation(
            pb.PreferredAllocationRequest(container_requests=[request])
        )
        (container,) = answer.container_responses
        assert sorted(container.deviceIDs) == preferred
