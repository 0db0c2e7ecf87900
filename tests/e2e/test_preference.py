"""A kubelet, simulated or real, gives a pod the devices that the plugin prefers."""

import secrets
from pathlib import Path

import pytest

from harness.hosttree import HostTree
from harness.machines import Machine
from harness.node import Node, Pod
from harness.processes import Process
from harness.waiting import until_equal

pytestmark = pytest.mark.timeout(600)

SWITCHES = (("0000:b3:00.0", "0000:b5:00.0", "0000:b6:00.0"), ("0000:b4:00.0", "0000:be:00.0"))
"""The functions behind each of two PCI switches. A pair is best taken from the second."""


async def test_devices_behind_one_switch_are_given_together(node: Node, tmp_path: Path) -> None:
    name = f"r-{secrets.token_hex(3)}.devicelens.test/x"
    tree = HostTree(tmp_path / "host")
    for number, behind in enumerate(SWITCHES):
        port = f"/sys/devices/pci0000:b0/0000:b0:0{number}.0/0000:b{number + 1}:00.0"
        for below, address in enumerate(behind):
            bridge = f"{port}/0000:b{number + 7}:0{below}.0"
            Machine(tree).function(address, "1b36", "0010", "010802", below=bridge)
    configuration = tmp_path / "plugin.yaml"
    configuration.write_text(f"""\
version: 1
resources:
  - name: {name}
    discover: [{{pci: {{vendors: ["1b36"]}}}}]
    prefer: topology
    allocate: {{env: {{GIVEN: "{{{{ ids | join(',') }}}}"}}}}
""")
    plugin = Process(
        "plugin",
        *("--config", str(configuration), "--host-root", str(tree.root), "--allow", "none"),
        *("--kubelet.root", str(node.root), "--node-name", node.name),
        *("--web.listen-address", "127.0.0.1:0"),
    )
    async with plugin:

        async def allocatable() -> int | None:
            return await node.allocatable(name)

        await until_equal("all devices", allocatable, 5, limit=node.limit)
        await node.add_pod(Pod("near", {"main": {name: 2}}))

        async def held() -> tuple[str, ...]:
            return tuple(sorted(h.device for h in await node.holdings() if h.resource == name))

        await until_equal("what the pod holds", held, SWITCHES[1], limit=node.limit)
        await node.delete_pod("near")
