"""What Allocate gives against the host as it is: optional things, nodes, files; over the socket."""

import errno
import os
import stat
from pathlib import Path

import grpc
import pytest

from harness.hosttree import HostTree
from harness.scripted import pod
from harness.served import Answer, Node, configuration, glob, nodes
from plugin.serving.context import Pace
from plugin.serving.written_files import read_record
from simulator import AdmissionError
from simulator.rpc import RpcError

GPU = "example.com/gpu"


def allocating(allocate: str) -> str:
    return configuration(glob(GPU, "/dev/gpu*", f"  allocate: {allocate}\n"))


FILES = allocating("""
    files:
      - host: "/run/gpus/{{ device.id }}/setup.json"
        container: "/etc/{{ device.id }}.json"
        content: '{"path":"{{ device.path }}","of":"{{ resource }}"}'
        mode: "0640"
""")


@pytest.fixture(autouse=True)
def gpus(tree: HostTree) -> None:
    """Two devices."""
    for n in range(2):
        tree.file(f"/dev/gpu{n}")


async def test_optional_nodes_and_mounts_may_be_missing(node: Node, host: Path) -> None:
    text = allocating("""
    devices: [{host: "{{ device.path }}"}, {host: /dev/gpuctl, optional: true}]
    mounts: [{host: /usr/lib/gpu, container: /opt/gpu, read_only: true, optional: true}]
""")
    async with node.serve(text, ready={GPU: 2}):
        assert await node.allocate(GPU, "gpu0") == Answer(nodes=nodes("rw", "/dev/gpu0"))
        (host / "dev/gpuctl").touch()
        (host / "usr/lib/gpu").mkdir(parents=True)
        assert await node.allocate(GPU, "gpu0") == Answer(
            nodes=nodes("rw", "/dev/gpu0", "/dev/gpuctl"), mounts=(("/usr/lib/gpu", "/opt/gpu", True),)
        )


def _exists(*_: object) -> str:
    return ""


async def test_a_missing_node_is_refused(node: Node, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The node is gone, and the probe has not run since: the device is still healthy.
    monkeypatch.setattr("plugin.serving.probes._all_exist", _exists)
    text = allocating("{devices: [{host: /dev/gpuctl}, {host: /devices/x}]}")
    async with node.serve(text, ready={GPU: 2}):
        with pytest.raises(AdmissionError, match=r"example\.com/gpu: the host has no '/dev/gpuctl'"):
            await node.kubelet.add_pod(pod("p", GPU))
        (host / "dev/gpuctl").touch()
        # What the host's root does not show may be there all the same.
        assert (await node.allocate(GPU, "gpu0")).nodes == nodes("rw", "/dev/gpuctl", "/devices/x")


async def test_a_file_stays_while_its_device_is_held(node: Node, host: Path) -> None:
    written = host / "run/gpus/gpu0/setup.json"
    async with node.serve(FILES, pace=Pace(release=0.05), ready={GPU: 2}) as served:
        await node.kubelet.add_pod(pod("p", GPU, 2))
        answer = node.kubelet.alloc_response("default", "p", "c", GPU)
        assert {(m.host_path, m.container_path, m.read_only) for m in answer.mounts} == {
            (f"/run/gpus/gpu{n}/setup.json", f"/etc/gpu{n}.json", True) for n in range(2)
        }
        assert written.read_text() == '{"path":"/dev/gpu0","of":"example.com/gpu"}'
        assert stat.S_IMODE(written.stat().st_mode) == 0o640
        assert sorted(p.name for p in written.parent.iterdir()) == ["setup.json"]
        served.hands.ahead += 3600
    # It is there for the pod, whose containers may start again: not for the process.
    assert written.exists()
    written.unlink()
    async with node.serve(FILES, pace=Pace(release=0.05)) as served:
        await served.until(written.exists)
        await node.allocatable(GPU, 2)
        await node.kubelet.delete_pod("default", "p")
        # kubelet: its checkpoint forgets a pod at the next allocation.
        await node.kubelet.add_pod(pod("q", GPU))
        held = {holding.device for holding in node.kubelet.holdings()}
        assert held == {"gpu0"}
        served.hands.ahead += 3600
        await served.until(lambda: not (host / "run/gpus/gpu1").exists())
        assert written.exists()
        (record,) = (node.kubelet.root / "device-plugins").glob(".devicelens-*.json")
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        recorded = read_record(record)
        assert recorded is not None
        assert recorded.files["/run/gpus/gpu0/setup.json"].ids == ("gpu0",)


async def test_a_full_disk_refuses_the_pod(node: Node, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with node.serve(FILES, ready={GPU: 2}):
        monkeypatch.setattr("plugin.discovery.host.os.rename", full)
        with pytest.raises(RpcError) as caught:
            await node.allocate(GPU, "gpu0")
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details == (
            "example.com/gpu: allocate.files: /run/gpus/gpu0/setup.json: No space left on device"
        )
        assert list((host / "run/gpus/gpu0").iterdir()) == []
        monkeypatch.setattr("plugin.discovery.host.os.rename", real)
        assert (await node.allocate(GPU, "gpu0")).mounts[0][0] == "/run/gpus/gpu0/setup.json"


async def test_a_link_is_replaced_and_a_directory_refused(node: Node, host: Path, root: Path) -> None:
    secret = root / "secret"
    secret.write_text("mine")
    (host / "run/gpus/gpu0").mkdir(parents=True)
    (host / "run/gpus/gpu0/setup.json").symlink_to(secret)
    (host / "run/gpus/gpu1/setup.json").mkdir(parents=True)
    async with node.serve(FILES, ready={GPU: 2}):
        await node.allocate(GPU, "gpu0")
        assert secret.read_text() == "mine"
        assert (host / "run/gpus/gpu0/setup.json").is_file()
        with pytest.raises(RpcError, match=r"gpu1/setup\.json: Is a directory"):
            await node.allocate(GPU, "gpu1")


async def test_nodes_are_those_of_the_device_at_allocate(node: Node, tree: HostTree) -> None:
    """`node` is rendered once for each of a device's nodes; a regular file has none."""
    tree.node("/dev/gpu2", "char", 1, 3)
    text = allocating('{devices: [{host: "{{ node }}", container: "/dev/x{{ node }}", permissions: r}]}')
    async with node.serve(text, ready={GPU: 3}):
        answer = await node.allocate(GPU, "gpu1", "gpu2")
        assert answer.nodes == (("/dev/gpu2", "/dev/x/dev/gpu2", "r"),)
