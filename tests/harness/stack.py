"""The plugin and the exporter as on a node, beside whatever kubelet is there."""

import secrets
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from harness import owners
from harness.node import Holding, Node
from harness.processes import Process
from harness.waiting import until, until_equal

_CONFIGURATION = """\
version: 1
resources:
  - name: {resource}
    discover:
      - files: {{directory: /etc/colas}}
    allocate:
      env: {{COLA_DEVICES: "{{{{ ids | join(',') }}}}"}}
"""


class Stack:
    """Both processes with one resource of their own: the files of a directory are its devices."""

    def __init__(self, node: Node, *exporter_flags: str) -> None:
        """`exporter_flags` are added to the exporter's."""
        self.node = node
        self.resource = f"e2e-{secrets.token_hex(4)}.devicelens.test/cola"
        self._directory = Path(tempfile.mkdtemp(prefix="dl-"))
        self.colas = self._directory / "host" / "etc" / "colas"
        self.colas.mkdir(parents=True)
        configuration = self._directory / "plugin.yaml"
        configuration.write_text(_CONFIGURATION.format(resource=self.resource))
        common = ("--kubelet.root", str(node.root), "--node-name", node.name)
        self.plugin_socket = self._directory / "plugin.sock"
        self.plugin = Process(
            "plugin",
            *("--config", str(configuration), "--host-root", str(self._directory / "host")),
            *common,
            *("--web.listen-address", f"unix:{self.plugin_socket}"),
        )
        self.exporter = Process("exporter", *common, "--web.listen-address", "127.0.0.1:0", *exporter_flags)
        self.url = ""
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._running.enter_async_context(self.plugin)
        await self._running.enter_async_context(self.exporter)
        self.url = await self.exporter.url()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._running.__aexit__(*details)  # type: ignore[arg-type] # as they came
        shutil.rmtree(self._directory)

    def add_devices(self, *names: str) -> None:
        """Let devices appear."""
        for name in names:
            (self.colas / name).touch()

    def remove_devices(self, *names: str) -> None:
        """Let devices vanish."""
        for name in names:
            (self.colas / name).unlink()

    async def held(self) -> frozenset[Holding]:
        """The kubelet's truth of this stack's resource."""
        return frozenset(held for held in await self.node.holdings() if held.resource == self.resource)

    async def capacity_is(self, count: int) -> None:
        """Wait until the kubelet knows `count` devices."""

        async def capacity() -> int:
            return await self.node.capacity(self.resource)

        await until_equal(f"capacity of {self.resource}", capacity, count, limit=self.node.limit)

    async def allocatable_is(self, count: int) -> None:
        """Wait until the kubelet would give out `count` devices, held or free."""

        async def allocatable() -> int:
            return await self.node.allocatable(self.resource)

        await until_equal(f"allocatable {self.resource}", allocatable, count, limit=self.node.limit)

    async def everyone_says(self, expected: Iterable[Holding]) -> None:
        """Wait until the kubelet, /metrics and the API name these owners and no other; then ask `who` and
        the page as well, which must say the same.
        """
        wanted = frozenset(expected)
        await until_equal("the kubelet's truth", self.held, wanted, limit=self.node.limit)
        await until_equal("owners in /metrics", self._metrics, wanted, limit=self.node.limit)
        await until_equal("owners in the API", self._api, wanted, limit=self.node.limit)
        assert await owners.from_who(self.resource, "--url", self.url) == wanted
        # Without an exporter there is nobody to doubt a kubelet that has just come back: ask again.
        await until_equal("owners by the kubelet's socket", self._socket, wanted, limit=self.node.limit)
        status, page = await owners.get(self.url, f"/?resource={self.resource}")
        assert status == 200
        for holding in wanted:
            assert holding.device in page
            assert holding.pod in page

    async def _metrics(self) -> frozenset[Holding]:
        return await owners.from_metrics(self.url, self.resource)

    async def _api(self) -> frozenset[Holding]:
        return await owners.from_api(self.url, self.resource)

    async def _socket(self) -> frozenset[Holding]:
        socket = self.node.root / "pod-resources" / "kubelet.sock"
        return await owners.from_who(self.resource, "--socket", str(socket))

    async def metric(self, name: str, **labels: str) -> float | None:
        """The value of one series of this stack's resource."""
        return (await owners.scrape(self.url)).value(name, resource=self.resource, **labels)

    async def metric_is(self, expected: float | None, name: str, **labels: str) -> None:
        """Wait until a series has this value; None: until it is not there."""

        async def value() -> float | None:
            return await self.metric(name, **labels)

        await until_equal(f"{name}{labels}", value, expected, limit=self.node.limit)

    async def ready(self) -> None:
        """Wait until the exporter says that its mapping is fresh."""

        async def answers() -> bool:
            status, text = await owners.get(self.url, "/-/ready")
            assert status == 200, text
            return True

        await until("the exporter is ready", answers, limit=self.node.limit)
