"""The demo as a newcomer runs it."""

import itertools
import re
import signal
from pathlib import Path

import pytest

from harness import owners
from harness.processes import Process
from harness.waiting import until

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(180)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_demo_lives_and_leaves_nothing_behind(number: signal.Signals, root: Path) -> None:
    flags = ("--web.listen-address", "127.0.0.1:0", "--pace", "50ms", "--seed", "3", "--log.level", "debug")
    async with Process("demo", *flags, environment={"TMPDIR": str(root)}) as demo:
        url = (await demo.line("  status page ", limit=40)).split()[-1].rstrip("/")
        assert url.startswith("http://127.0.0.1:")
        before = itertools.takewhile(lambda line: "  status page " not in line, tuple(demo.lines))
        assert not [line for line in before if "pod came" in line]

        async def lively() -> bool:
            samples = await owners.scrape(url)
            resources = {labels["resource"] for labels, _ in samples.of("devicelens_resource_devices")}
            assert resources == {
                "example.com/camera",
                "example.com/gpu",
                "example.com/nic",
                "npu.example.com",
            }
            released = sum(value for _, value in samples.of("devicelens_releases_total"))
            shared = [
                labels["parent"]
                for labels, _ in samples.of("devicelens_device_info", resource="example.com/gpu")
            ]
            assert len(shared) == 8
            assert len(set(shared)) == 2
            return released >= 3

        await until("pods have come and gone", lively, limit=40)

        async def by_claim_and_by_extended_resource() -> bool:
            samples = await owners.scrape(url)
            asked = {
                labels["requested_as"]
                for labels, _ in samples.of("devicelens_device_owner_info", resource="npu.example.com")
            }
            assert len(samples.of("devicelens_device_identity_info", resource="npu.example.com")) == 4
            (allocatable,) = samples.of("devicelens_resource_allocatable_devices", resource="npu.example.com")
            assert allocatable[1] == 3, "one is tainted"
            return asked == {"npu", "example.com/npu"}

        await until("claimed devices are held", by_claim_and_by_extended_resource, limit=40)
        await demo.line("device failed", limit=40)
        await demo.line("device came back", limit=40)
        assert (await owners.get(url, "/"))[0] == 200
        plugins = (await owners.scrape(url)).of("devicelens_plugin_url_up")
        assert [value for _, value in plugins] == [1]
        plugin = await owners.scrape(plugins[0][0]["url"])
        assert plugin.of("devicelens_plugin_registered")

        children = _children(demo.pid)
        assert len(children) == 2
        assert await demo.stop(number) == 0
    assert list(root.iterdir()) == []
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert not [line for line in demo.lines if re.search(r"level=error|Traceback", line)]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_port_that_is_taken_is_told_in_one_clear_line() -> None:
    async with Process("demo", "--web.listen-address", "127.0.0.1:0", "--pace", "1h") as demo:
        address = (await demo.line("  status page ", limit=40)).split("//")[-1].rstrip("/")
        status, _, errors = await owners.devicelens("demo", "--web.listen-address", address)
        assert status == 1
        assert address in errors
        assert "cannot listen" in errors
        assert "Traceback" not in errors
