"""Presets of devices of their own kind: what a kubelet is shown of a host tree, exact answers to Allocate."""

import pytest

from harness.hosttree import HostTree
from harness.nvml import without_nvml
from harness.served import Answer, Listed, Node, nodes
from plugin.presets import PRESETS
from simulator.rpc import RpcError


def queue(
    tree: HostTree, kind: str, name: str, *, mode: str, state: str = "enabled", use: str = "user"
) -> str:
    device = f"{kind}{name[2]}"
    parent = f"/sys/devices/pci0000:6a/0000:6a:01.0/{device}"
    place = tree.root / f"sys/bus/dsa/devices/{device}"
    if not place.is_symlink():
        tree.files(parent, numa_node=1)
        tree.link(f"/sys/bus/dsa/devices/{device}", parent)
    tree.files(f"{parent}/{name}", state=state, type=use, mode=mode, group_id=0, size=16, priority=10)
    tree.file(f"/dev/{kind}/{name}")
    return f"{parent}/{name}"


@pytest.mark.parametrize(("preset", "kind"), [("intel-dsa", "dsa"), ("intel-iaa", "iax")])
async def test_intel_dsa_and_iaa_give_enabled_queues(
    node: Node, tree: HostTree, preset: str, kind: str
) -> None:
    shared = queue(tree, kind, "wq0.0", mode="shared")
    queue(tree, kind, "wq0.1", mode="dedicated")
    queue(tree, kind, "wq0.2", mode="dedicated", state="disabled")
    queue(tree, kind, "wq0.3", mode="dedicated", use="kernel")
    queue(tree, "iax" if kind == "dsa" else "dsa", "wq1.0", mode="shared")
    tree.files(f"{shared}/{kind}!wq0.0", dev="237:5")
    tree.link("/dev/char/237:5", f"/dev/{kind}/wq0.0")
    domain = f"{preset.removeprefix('intel-')}.intel.com"
    async with node.serve(preset):
        assert await node.devices(f"{domain}/wq-user-shared", 1) == {"wq0.0": Listed(1)}
        assert await node.devices(f"{domain}/wq-user-dedicated", 1) == {"wq0.1": Listed(1)}
        assert await node.allocate(f"{domain}/wq-user-dedicated", "wq0.1") == Answer(
            nodes=nodes("rw", f"/dev/{kind}/wq0.1")
        )
        assert await node.allocate(f"{domain}/wq-user-shared", "wq0.0") == Answer(
            nodes=nodes("rw", f"/dev/{kind}/wq0.0", "/dev/char/237:5")
        )
        tree.files(shared, state="disabled")
        with pytest.raises(RpcError, match=r"wq0\.0"):
            await node.allocate(f"{domain}/wq-user-shared", "wq0.0")


async def test_intel_sgx_is_for_all(node: Node, tree: HostTree) -> None:
    tree.file("/dev/sgx_enclave")
    async with node.serve("intel-sgx") as served:
        listed = await node.devices("sgx.intel.com/enclave", 110)
        assert listed == {f"sgx-enclave-{n}": Listed() for n in range(110)}
        answer = await node.allocate("sgx.intel.com/enclave", "sgx-enclave-7")
        assert answer == Answer(nodes=nodes("rw", "/dev/sgx_enclave"))
        assert served.status("sgx.intel.com/provision").ready
        tree.file("/dev/sgx_provision")
        await node.devices("sgx.intel.com/provision", 110)
        answer = await node.allocate("sgx.intel.com/provision", "sgx-provision-0")
        assert answer == Answer(nodes=nodes("rw", "/dev/sgx_provision"))


@pytest.mark.parametrize(
    ("preset", "resource", "path"),
    [
        ("fuse", "smarter-devices/fuse", "/dev/fuse"),
        ("kvm", "smarter-devices/kvm", "/dev/kvm"),
        ("tun", "smarter-devices/net_tun", "/dev/net/tun"),
    ],
)
async def test_nodes_for_all_pods_are_shared(
    node: Node, tree: HostTree, preset: str, resource: str, path: str
) -> None:
    host = tree.root
    async with node.serve(preset) as served:
        await served.until(lambda: served.status(resource).ready)
        tree.file(path)
        listed = await node.devices(resource, 110)
        name = path.rpartition("/")[2]
        assert set(listed) == {f"{name}::{n}" for n in range(110)}
        assert await node.allocate(resource, f"{name}::42") == Answer(nodes=nodes("rw", path))
        (host / path.lstrip("/")).unlink()
        await node.allocatable(resource, 0)


@pytest.mark.parametrize(
    ("preset", "resource", "names"),
    [
        ("video", "squat.ai/video", ["video0", "video10"]),
        ("serial", "squat.ai/serial", ["rfcomm0", "ttyACM0", "ttyUSB1"]),
    ],
)
async def test_nodes_that_one_container_has_at_a_time(
    node: Node, tree: HostTree, preset: str, resource: str, names: list[str]
) -> None:
    host = tree.root
    others = ["vbi0", "v4l-subdev0", "ttyS0", "tty0"]
    for name in (*names, *others):
        tree.file(f"/dev/{name}")
    tree.node("/dev/extra", "char", 81, 0)
    (host / "dev/extra").rename(host / "dev" / names[0])
    tree.link("/sys/dev/char/81:0", "/sys/devices/pci0000:00/0000:00:01.0/thing")
    tree.files("/sys/devices/pci0000:00/0000:00:01.0", numa_node=1)
    tree.directory("/sys/devices/pci0000:00/0000:00:01.0/thing")
    async with node.serve(preset):
        listed = await node.devices(resource, len(names))
        assert listed == {names[0]: Listed(1), **dict.fromkeys(names[1:], Listed())}
        assert await node.allocate(resource, names[-1]) == Answer(nodes=nodes("rw", f"/dev/{names[-1]}"))
        tree.file(f"/dev/{names[-1]}9")
        assert f"{names[-1]}9" in await node.devices(resource, len(names) + 1)


async def test_cola_and_sample(node: Node, tree: HostTree) -> None:
    for path in ("/etc/colas/one", "/etc/colas/two"):
        tree.file(path)
    async with node.serve("cola"):
        await node.devices("myway5.com/cola", 2)
        assert await node.allocate("myway5.com/cola", "two", "one") == Answer({"COLA_DEVICES": "one,two"})
    tree.directory("/tmp")
    async with node.serve("sample"):
        await node.devices("example.com/resource", 2)
        mounts = (("/tmp/Dev-2", "/tmp/Dev-2", False),)
        assert await node.allocate("example.com/resource", "Dev-2") == Answer(mounts=mounts)


@pytest.mark.parametrize("preset", sorted(PRESETS))
async def test_a_preset_without_devices_is_ready_and_waits(node: Node, preset: str) -> None:
    with without_nvml():
        async with node.serve(preset) as served:
            await served.until(served.fleet.statuses)
            await served.until(lambda: all(s.ready for s in served.fleet.statuses()))
            states = [status.state for status in served.fleet.statuses()]
            if preset != "sample":  # which lists its devices
                assert all(state.startswith("waiting for devices") for state in states), states
