"""Health as a kubelet sees it: probes of every kind, flapping, first answers."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from harness.hosttree import HostTree
from harness.served import Node, configuration, glob
from plugin.serving.context import Pace

NAME = "a.b/c"


def probed(probe: str) -> str:
    return configuration(glob(NAME, "/dev/v*", f"  health:\n  - {probe}\n"))


@pytest.fixture
def devices(tree: HostTree) -> Path:
    for n in range(2):
        tree.file(f"/dev/v{n}")
        tree.file(f"/run/v{n}", "ok")
    return tree.root / "dev"


async def test_a_file_that_is_written_changes_health_at_once(node: Node, devices: Path, host: Path) -> None:
    text = probed('{file: {path: "/run/{{ device.name }}", equals: ok}}')
    async with node.serve(text, pace=Pace(rescan=1000.0), ready={NAME: 2}) as served:
        await served.quiet(NAME)
        (host / "run/v1").write_text("broken")
        await node.allocatable(NAME)
        assert served.reasons(NAME) == {"v0": "", "v1": "/run/v1: found 'broken', expected 'ok'"}
        (host / "run/v1").write_text("ok")
        await node.allocatable(NAME, 2)
        tally = served.status(NAME).counters
        assert dict(tally.transitions) == {"unhealthy": 1, "healthy": 1}


async def test_what_allocate_must_give_exists_for_a_healthy_device(
    node: Node, devices: Path, host: Path
) -> None:
    allocate = """\
  allocate:
    devices:
      - {host: "{{ device.path }}"}
      - {host: "/dev/control-{{ device.name }}"}
      - {host: /dev/shared}
      - {host: /dev/more, optional: true}
      - {host: /opt/unseen}
"""
    text = configuration(glob(NAME, "/dev/v*", allocate))
    for name in ("control-v0", "shared"):
        (devices / name).touch()
    async with node.serve(text, pace=Pace(rescan=1000.0), ready={NAME: 1}) as served:
        assert served.reasons(NAME) == {"v0": "", "v1": "/dev/control-v1 is not there"}
        await served.quiet(NAME)
        (devices / "control-v1").touch()
        await node.allocatable(NAME, 2)
        (devices / "shared").unlink()
        await node.allocatable(NAME, 0)
        assert set(served.reasons(NAME).values()) == {"/dev/shared is not there"}


async def test_what_a_cdi_specification_must_give_exists_for_a_healthy_device(
    node: Node, devices: Path
) -> None:
    cdi = '  cdi: {kind: a.b/c, devices: [{host: "/dev/control-{{ device.name }}"}]}\n'
    (devices / "control-v0").touch()
    async with node.serve(configuration(glob(NAME, "/dev/v*", cdi)), ready={NAME: 1}) as served:
        assert served.reasons(NAME) == {"v0": "", "v1": "/dev/control-v1 is not there"}


async def test_a_probe_that_hangs_fails_and_blocks_no_other(node: Node, devices: Path, host: Path) -> None:
    (host / "run/v0").unlink()
    os.mkfifo(host / "run/v0")  # reading it waits for a writer that never comes
    text = probed('{file: {path: "/run/{{ device.name }}", equals: ok}, timeout: 300ms}')
    async with node.serve(text, pace=Pace(rescan=0.2)) as served:
        await node.kubelet.wait_until(lambda k: k.capacity(NAME) == 2 and k.allocatable(NAME) == 1)
        assert served.reasons(NAME)["v1"] == ""
        await served.until(lambda: served.reasons(NAME)["v0"] == "health[0].file: still no answer")
        (devices / "v2").touch()
        (host / "run/v2").write_text("ok")
        await node.allocatable(NAME, 2)
        before = set(threading.enumerate())
        scans = served.status(NAME).counters.discoveries
        await served.until(lambda: served.status(NAME).counters.discoveries >= scans + 9)
        # Threads of other probes end. One of the hanging probe, started again by a scan, would not.
        new = {thread for thread in threading.enumerate() if thread.name == "blocking"} - before
        await served.until(lambda: not any(thread.is_alive() for thread in new))
        # Somebody writes at last: the probe runs again, and succeeds.
        with (host / "run/v0").open("w") as pipe:
            pipe.write("x")
        (host / "run/v0").unlink()
        (host / "run/v0").write_text("ok")
        await node.allocatable(NAME, 3)


async def test_the_first_list_waits_for_probes_with_a_limit(node: Node, devices: Path, host: Path) -> None:
    (host / "run/v0").unlink()
    os.mkfifo(host / "run/v0")
    text = probed('{file: {path: "/run/{{ device.name }}", equals: ok}, timeout: 20s}')
    async with node.serve(text, pace=Pace(first_answers=0.5), ready={NAME: 1}) as served:
        # A device whose probes have not answered is neither offered nor unhealthy.
        assert served.reasons(NAME) == {"v1": ""}
        with (host / "run/v0").open("w") as pipe:
            pipe.write("ok")
        await node.allocatable(NAME, 2)


async def test_a_device_that_returns_is_probed_first(node: Node, devices: Path, host: Path) -> None:
    text = probed('{file: {path: "/run/{{ device.name }}", equals: ok}}')
    async with node.serve(text, ready={NAME: 2}) as served:
        (devices / "v0").unlink()
        await node.allocatable(NAME)
        (host / "run/v0").write_text("hot")
        (devices / "v0").touch()
        await served.until(lambda: served.reasons(NAME)["v0"] == "/run/v0: found 'hot', expected 'ok'")
        assert served.status(NAME).counters.transitions["healthy"] == 0


async def test_http(node: Node, devices: Path) -> None:
    statuses = {"v0": 204, "v1": 503}

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=statuses[request.path.strip("/")])

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    async with TestServer(app) as server:
        url = f"{server.make_url('/')}{{{{ device.name }}}}"
        text = probed(f"http: {{url: '{url}'}}\n    interval: 1s")
        expected = {"v0": "", "v1": f"{server.make_url('/v1')}: status 503"}
        async with node.serve(text) as served:
            await served.until(lambda: served.status(NAME).registered and served.reasons(NAME) == expected)
            statuses["v1"] = 200
            await node.allocatable(NAME, 2)


async def test_flapping_is_held_counted_and_let_go(node: Node, devices: Path, host: Path) -> None:
    text = probed('{file: {path: "/run/{{ device.name }}", equals: ok}}')
    async with node.serve(text, ready={NAME: 2}) as served:

        async def put(content: str, expected: Callable[[str], bool]) -> None:
            (host / "run/v0").write_text(content)
            await served.until(lambda: expected(served.reasons(NAME)["v0"]))

        for _ in range(4):
            await put("bad", bool)
            await put("ok", lambda reason: not reason)
        await put("bad", lambda reason: reason.startswith("flapping: failed 5 times"))
        (host / "run/v0").write_text("ok")
        await served.quiet(NAME)
        assert served.healthy(NAME) == ["v1"]
        await node.allocatable(NAME, 1)
        assert served.status(NAME).counters.health_flaps == 1
        assert served.status(NAME).counters.transitions == {"unhealthy": 5, "healthy": 4}
        # It is let go when it has been well for long enough, by the clock.
        served.hands.ahead += 400.0
        (devices / "v2").touch()
        (host / "run/v2").write_text("ok")
        await node.allocatable(NAME, 3)
