"""Both processes answer by the node's name and by address, and no page that rebinds a name to the node."""

from pathlib import Path

import aiohttp
import pytest

from harness.processes import Process

CONFIGURATION = """\
version: 1
resources:
  - name: example.com/none
    discover: [{files: {directory: /nowhere}}]
    allocate: {env: {A: b}}
"""


@pytest.mark.parametrize("command", ["exporter", "plugin"])
async def test_a_rebound_name_is_refused(command: str, root: Path) -> None:
    config = root / "plugin.yaml"
    config.write_text(CONFIGURATION)
    own = ("--config", str(config), "--host-root", str(root)) if command == "plugin" else ()
    flags = ("--node-name", "worker-9", "--web.allowed-hosts", "devices.example", "--web.access-log")
    common = ("--kubelet.root", str(root), "--web.listen-address", "127.0.0.1:0", *flags)
    async with Process(command, *common, *own) as process, aiohttp.ClientSession() as session:
        url = await process.url()
        statuses = {}
        for host in ("127.0.0.1", "worker-9:1", "devices.example", "rebound.example"):
            async with session.get(f"{url}/-/healthy", headers={"Host": host}) as answer:
                statuses[host] = answer.status
        assert list(statuses.values()) == [200, 200, 200, 421], statuses
        line = await process.line("status=421")
        assert "msg=request remote=127.0.0.1 method=GET path=/-/healthy" in line
