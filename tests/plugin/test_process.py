"""`devicelens plugin` as a process: how it starts, what it refuses, how it ends."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.owners import devicelens, get, get_json
from harness.processes import Process
from harness.waiting import until
from simulator import SimulatedKubelet
from simulator.model import ContainerSpec, PodSpec

COLA = "myway5.com/cola"


def flags(root: Path, *more: str) -> tuple[str, ...]:
    return (
        "plugin",
        *("--kubelet.root", str(root / "k"), "--host-root", str(root / "h"), "--node-name", "n"),
        *("--web.listen-address", f"unix:{root / 'p.sock'}", *more),
    )


@pytest.fixture
async def kubelet(root: Path) -> AsyncIterator[SimulatedKubelet]:
    async with SimulatedKubelet(root / "k") as running:
        yield running
        assert running.violations == ()


@pytest.fixture
def colas(host: Path) -> Path:
    made = host / "etc/colas"
    made.mkdir(parents=True)
    (made / "a").touch()
    return made


async def test_two_presets_are_served_and_sigterm_ends_it_clean(
    kubelet: SimulatedKubelet, root: Path, colas: Path
) -> None:
    plugin = Process(*flags(root, "--preset", "cola", "--preset", "sample", "--log.level", "debug"))
    async with plugin:
        await kubelet.wait_until(
            lambda k: k.allocatable(COLA) == 1 and k.allocatable("example.com/resource") == 2, limit=20.0
        )
        (colas / "b").touch()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)
        address = f"unix:{root / 'p.sock'}"
        document = await get_json(address, "/api/v1/devices")
        assert [resource["name"] for resource in document["resources"]] == [COLA, "example.com/resource"]
        assert (await get(address, "/-/ready"))[0] == 200
        os.kill(plugin.pid, signal.SIGHUP)
        await plugin.line("configuration unchanged")
        # It would end by itself before two seconds are over, and then with another status.
        assert await plugin.stop() == 0
    await kubelet.wait_until(lambda k: k.allocatable(COLA) == 0)
    assert {path.name for path in (root / "k/device-plugins").iterdir()} <= {
        "kubelet.sock",
        "kubelet_internal_checkpoint",
    }
    assert not (root / "p.sock").exists()


async def test_after_being_killed_it_serves_again_and_clears_up(
    kubelet: SimulatedKubelet, root: Path, colas: Path
) -> None:
    plugin = Process(*flags(root, "--preset", "cola"))
    async with plugin:
        for _ in range(3):
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1, limit=20.0)
            await plugin.kill()
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 0)
            await plugin.start()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1, limit=20.0)
        assert len(list((root / "k/device-plugins").glob("devicelens-*.sock"))) == 1
    assert colas.exists()


async def test_after_being_killed_it_does_not_offer_what_a_pod_holds_by_a_former_name(
    kubelet: SimulatedKubelet, root: Path, colas: Path
) -> None:
    configuration = root / "plugin.yaml"

    def offer(name: str, device_id: str) -> None:
        new = configuration.with_suffix(".new")
        new.write_text(
            f"version: 1\nresources:\n- name: {name}\n  discover: [{{files: {{directory: /etc/colas}}}}]\n"
            f"  id: '{device_id}'\n"
            "  allocate: {mounts: [{host: '{{ device.path }}', container: /cola}]}\n"
        )
        new.replace(configuration)

    assert (colas / "a").exists()
    offer("a.b/first", "x")
    plugin = Process(*flags(root, "--config", str(configuration)))
    async with plugin:
        await kubelet.wait_until(lambda k: k.allocatable("a.b/first") == 1, limit=20.0)
        await kubelet.add_pod(
            PodSpec(namespace="n", name="p", containers=(ContainerSpec("c", resources={"a.b/first": 1}),))
        )
        offer("a.b/last", "y")
        for _ in range(3):
            line = await plugin.line("devices of another resource")
            assert "a pod holds it as x" in line, line
            (only,) = (await get_json(f"unix:{root / 'p.sock'}", "/api/v1/devices"))["resources"]
            assert (only["name"], only["devices"]) == ("a.b/last", [])
            await plugin.kill()
            plugin.lines.clear()
            await plugin.start()
        assert kubelet.allocatable("a.b/last") == 0


async def test_a_new_process_takes_over_from_an_old_one_without_a_gap_that_lasts(
    kubelet: SimulatedKubelet, root: Path, colas: Path
) -> None:
    old = Process(*flags(root, "--preset", "cola"))
    address = f"unix:{root / 'q.sock'}"
    new = Process(*flags(root, "--preset", "cola"), "--web.listen-address", address)
    async with old, new:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1, limit=20.0)

        async def new_is_ready() -> bool:
            return (await get(address, "/-/ready"))[0] == 200

        await until("the new process is ready", new_is_ready)
        await old.kill()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1 and k.streams(COLA) == 1)
        # The kubelet may see the old stream's end late: what is allocatable must stay so.
        await asyncio.sleep(0.2)
        assert kubelet.allocatable(COLA) == 1
        assert await new.stop() == 0
    assert colas.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected --config FILE or --preset NAME"),
        (("--preset", "colla"), "'colla'"),
        (("--preset", "cola", "--kubelet.rot", "/x"), "--kubelet.rot"),
        (("--preset", "cola", "--web.listen-address", "nowhere"), "expected HOST:PORT"),
    ],
)
async def test_wrong_usage_is_status_2(arguments: tuple[str, ...], words: str) -> None:
    status, out, errors = await devicelens("plugin", *arguments)
    assert (status, out) == (2, "")
    assert words in errors


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the configuration: {file}: No such file or directory"),
        (
            "version: 1\nresources: [{name: a.b/c, discvoer: []}]\n",
            "{file}:2: resources[0].discvoer: found an unknown key 'discvoer', did you mean 'discover'?",
        ),
        (
            "version: 1\nresources: [{name: myway5.com/cola, discover: [{files: {directory: /x}}]}]\n",
            (
                "preset cola:5: resources[0].name: found 'myway5.com/cola', which {file}:2 has too: "
                "begin the file's resource with the key 'preset' to adjust a preset"
            ),
        ),
    ],
)
async def test_a_bad_file_is_status_1_and_one_clear_line(
    root: Path, content: str | None, message: str
) -> None:
    file = root / "c.yaml"
    if content is not None:
        file.write_text(content)
    status, out, errors = await devicelens(*flags(root, "--config", str(file), "--preset", "cola"))
    assert (status, out) == (1, "")
    assert errors == f"devicelens: {message.format(file=file)}\n"


async def test_a_root_that_is_too_long_for_sockets_is_status_1_and_one_clear_line(root: Path) -> None:
    long = root / ("x" * 100)
    status, _, errors = await devicelens("plugin", "--preset", "sample", "--kubelet.root", str(long))
    assert status == 1
    assert errors.splitlines()[-1].startswith(
        f"devicelens: --kubelet.root: {long}/device-plugins: expected a path"
    )


async def test_an_address_that_is_taken_is_status_1(root: Path) -> None:
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        address = f"127.0.0.1:{port}"
        status, _, errors = await devicelens(
            "plugin", "--preset", "sample", "--kubelet.root", str(root), "--web.listen-address", address
        )
    assert status == 1
    assert f"{address}: cannot listen" in errors.splitlines()[-1]
