"""Registered by directory: a kubelet, simulated or real, finds the plugin's socket by itself."""

import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.node import Node, Pod
from harness.processes import Process
from harness.waiting import until, until_equal

pytestmark = pytest.mark.timeout(600)


@dataclass
class Found:
    """A plugin that is registered by directory, with one resource of two devices."""

    node: Node
    resource: str
    plugin: Process
    log: Path

    async def allocatable_is(self, count: int) -> None:
        """Wait until as many can be given out."""

        async def counted() -> bool:
            return await self.node.allocatable(self.resource) == count

        await until(f"{count} allocatable", counted, limit=self.node.limit, pause=0.02)

    def sockets(self) -> list[str]:
        """Its sockets, by name."""
        directory = self.node.root / "plugins_registry"
        part = self.resource.partition("/")[0]
        return sorted(path.name for path in directory.iterdir() if part in path.name)


@pytest.fixture
async def found(node: Node, tmp_path: Path) -> AsyncGenerator[Found]:
    name = f"r-{secrets.token_hex(3)}.devicelens.test/x"
    (tmp_path / "host").mkdir()
    log, configuration = tmp_path / "log", tmp_path / "plugin.yaml"
    configuration.write_text(f"""\
version: 1
resources:
  - name: {name}
    discover: [{{static: {{devices: [{{name: "{name[2:8]}-a"}}, {{name: "{name[2:8]}-b"}}]}}}}]
    prefer: packed
    allocate: {{env: {{GIVEN: "{{{{ ids | join(',') }}}}"}}}}
    pre_start: {{exec: [/bin/sh, -c, "echo {{{{ device.id }}}} >> {log}"]}}
""")
    plugin = Process(
        "plugin",
        *("--config", str(configuration), "--host-root", str(tmp_path / "host")),
        *("--kubelet.root", str(node.root), "--node-name", node.name),
        *("--kubelet.registration", "registry", "--web.listen-address", "127.0.0.1:0"),
    )
    async with plugin:
        yield Found(node, name, plugin, log)


async def test_it_is_found_given_out_prepared_and_found_again(found: Found) -> None:
    await found.allocatable_is(2)
    await found.node.add_pod(Pod("first", {"main": {found.resource: 1}}))
    (held,) = [h for h in await found.node.holdings() if h.resource == found.resource]

    async def prepared() -> bool:
        return found.log.exists() and found.log.read_text().split() == [held.device]

    await until("the program that runs before a start", prepared, limit=found.node.limit, pause=0.05)
    (socket,) = found.sockets()
    await found.node.restart_kubelet()
    await found.allocatable_is(2)
    assert found.sockets() == [socket]

    async def held_now() -> set[str]:
        return {h.device for h in await found.node.holdings() if h.resource == found.resource}

    # What the node's status says may be older than the restart, and a kubelet that has come up lists nobody.
    await until_equal("who holds what", held_now, {held.device}, limit=found.node.limit)
    await found.node.add_pod(Pod("second", {"main": {found.resource: 1}}))
    await found.node.delete_pod("first")
    await found.node.delete_pod("second")


async def test_a_socket_that_is_removed_is_made_anew_and_found(found: Found) -> None:
    await found.allocatable_is(2)
    (name,) = found.sockets()
    (found.node.root / "plugins_registry" / name).unlink()

    async def back() -> bool:
        return found.sockets() == [name]

    await until("the socket", back, pause=0.02)
    await found.plugin.line("registered", limit=found.node.limit)
    await found.allocatable_is(2)


async def test_a_plugin_that_was_killed_is_found_again(found: Found) -> None:
    await found.allocatable_is(2)
    for _ in range(2):
        await found.plugin.kill()
        await found.allocatable_is(0)
        await found.plugin.start()
        await found.allocatable_is(2)
    assert len(found.sockets()) == 1
    assert await found.plugin.stop() == 0
    await found.allocatable_is(0)
    assert found.sockets() == []
