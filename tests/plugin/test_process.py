"""`devicelens plugin` as a process: how it starts, what it refuses, what it leaves behind, how it ends."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

from harness.owners import devicelens, get, get_json
from harness.processes import Process
from harness.scripted import pod
from harness.served import configuration, static
from harness.waiting import until_equal, until_holds
from simulator import SimulatedKubelet

COLA = "myway5.com/cola"


def flags(root: Path, *more: str) -> tuple[str, ...]:
    return (
        "plugin",
        *("--kubelet.root", str(root / "k"), "--host-root", str(root / "h"), "--node-name", "n"),
        *("--web.listen-address", f"unix:{root / 'p.sock'}", *more),
    )


def configure(root: Path, *resources: str) -> tuple[str, str]:
    """Write the configuration beside and rename it, as editors do; returns the flags for it."""
    new = root / "plugin.yaml.new"
    new.write_text(configuration(*resources))
    new.rename(root / "plugin.yaml")
    return "--config", str(root / "plugin.yaml")


async def test_sigterm_ends_it_clean(kubelet: SimulatedKubelet, root: Path, colas: Path) -> None:
    plugin = Process(*flags(root, "--preset", "cola", "--preset", "sample", "--log.level", "debug"))
    async with plugin:
        await kubelet.wait_until(
            lambda k: k.allocatable(COLA) == 1 and k.allocatable("example.com/resource") == 2
        )
        (colas / "b").touch()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)
        address = f"unix:{root / 'p.sock'}"
        document = await get_json(address, "/api/v1/devices")
        assert [resource["name"] for resource in document["resources"]] == [COLA, "example.com/resource"]

        async def ready() -> int:
            return (await get(address, "/-/ready"))[0]

        await until_equal("the plugin is ready", ready, 200)
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


def gpu(name: str) -> str:
    return f"""\
- name: example.com/{name}
  discover: [{{static: {{devices: [{{name: {name}0}}]}}}}]
  cdi: {{kind: vendor.example/{name}, env: {{GPU: "{{{{ resource }}}}"}}}}
  allocate: {{files: [{{host: /run/{name}/conf, container: /etc/gpu, content: x}}]}}
"""


async def test_files_go_with_the_resource_not_the_process(
    kubelet: SimulatedKubelet, root: Path, host: Path
) -> None:
    def left() -> set[str]:
        found = {path.name for path in (host / "var/run/cdi").iterdir()}
        return found | {path.parent.name for path in (host / "run").glob("*/conf")}

    one, other = (
        {name, f"vendor.example-{name}_devicelens_example.com_{name}.json"} for name in ("one", "other")
    )
    plugins = root / "k/device-plugins"
    plugin = Process(*flags(root, *configure(root, gpu("one"), gpu("other"))))
    async with plugin:
        await kubelet.wait_until(
            lambda k: k.allocatable("example.com/one") == k.allocatable("example.com/other") == 1
        )
        for name in ("one", "other"):
            await kubelet.add_pod(pod(name, f"example.com/{name}"))
        await until_holds(lambda: left() == one | other)
        assert [*plugins.glob(".devicelens-*_one-*")]
        assert await plugin.stop() == 0
        assert left() == one | other
        # /run is empty after a reboot, and pods start again.
        for place in ("run", "var/run/cdi"):
            shutil.rmtree(host / place)
        (host / "run").mkdir()
        await plugin.start()
        await until_holds(lambda: (host / "var/run/cdi").exists() and left() == one | other)
        configure(root, gpu("other"))
        await until_holds(lambda: left() == other and not [*plugins.glob(".devicelens-*_one-*")])
        await until_holds(lambda: not (host / "run/one").exists())


async def test_no_stale_socket_is_left(kubelet: SimulatedKubelet, root: Path, colas: Path) -> None:
    """Neither after an end in order nor after being killed."""
    directories = {"socket": root / "k/device-plugins", "registry": root / "k/plugins_registry"}
    for way, killed in (("socket", True), ("registry", True), ("socket", False)):
        plugin = Process(*flags(root, "--preset", "cola", "--kubelet.registration", way))
        async with plugin:
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
            sockets = {name: list(path.glob("devicelens-*.sock")) for name, path in directories.items()}
            assert {name: len(found) for name, found in sockets.items()} == {
                "socket": int(way == "socket"),
                "registry": int(way == "registry"),
            }
            await (plugin.kill() if killed else plugin.stop())
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 0)


async def test_wrong_usage_is_status_2() -> None:
    status, out, errors = await devicelens("plugin", "--preset", "colla")
    assert (status, out) == (2, "")
    assert "'colla'" in errors


async def refused(*arguments: str) -> str:
    """The one line with which the process ends at its start."""
    status, out, errors = await devicelens("plugin", *arguments)
    assert (status, out) == (1, "")
    return errors.splitlines()[-1].removeprefix("devicelens: ")


async def test_a_missing_file_is_status_1(root: Path) -> None:
    file = str(root / "c.yaml")
    assert await refused(*flags(root, "--config", file)[1:]) == (
        f"cannot read the configuration: {file}: No such file or directory"
    )


async def test_what_is_not_allowed_is_refused_at_the_start_and_at_a_reload(root: Path) -> None:
    forbidden = "found what needs the privilege 'host-mounts', which --allow leaves out"
    assert (await refused(*flags(root, "--preset", "sample", "--allow", "none")[1:])).endswith(forbidden)
    plain = static("example.com/x", "a")
    plugin = Process(*flags(root, *configure(root, plain), "--allow", "exec"))
    async with plugin:
        await plugin.line("starting")
        configure(root, plain + "  allocate: {mounts: [{host: /etc}]}\n")
        os.kill(plugin.pid, signal.SIGHUP)
        assert forbidden in await plugin.line("configuration refused")
        assert await plugin.stop() == 0


async def test_a_root_that_is_too_long_for_sockets_is_status_1(root: Path) -> None:
    long = root / ("x" * 100)
    line = await refused("--preset", "sample", "--kubelet.root", str(long))
    assert line.startswith(f"--kubelet.root: {long}/device-plugins: expected a path")


async def test_an_address_that_is_taken_is_status_1(root: Path) -> None:
    async with await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        own = ("--preset", "sample", "--kubelet.root", str(root))
        assert f"{address}: cannot listen" in await refused(*own, "--web.listen-address", address)
