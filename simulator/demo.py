"""The command `devicelens demo`: a simulated kubelet, the real plugin and exporter, and life on the node.

The plugin and the exporter are processes of their own, started as on a node, with nothing in common
but the kubelet's directory and an API server. A simulated DRA driver has devices beside the plugin's.
Everything lies below one temporary directory, which goes with the demo.
"""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections import deque
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Final

import aiohttp
import click

from runtime.flags import DURATION, LISTEN_ADDRESS, ListenAddress, flag, log_flags
from runtime.log import Log, configure
from runtime.process import Fatal, run, run_actors
from simulator import SimulatedKubelet
from simulator.control_server import control_server
from simulator.demo_npu import npu_driver
from simulator.dra_driver import DraDriver
from simulator.model import AdmissionError, Owner, PodSpec
from simulator.scenario import Act, Arrive, Fail, Leave, Recover, Scenario

NODE: Final = "demo-node"
CONFIGURATION: Final = Path(__file__).with_name("demo.yaml")
RESOURCES: Final = ("example.com/camera", "example.com/gpu", "example.com/nic")

_DEVICE_FILES: Final = (
    *(f"dev/video{n}" for n in range(4)),
    *(f"dev/gpu{n}" for n in range(2)),
    *(f"dev/nic{n}" for n in range(4)),
)
_END_WITHIN: Final = 10.0
"""Seconds; it has two processes to wait for, and files to remove, on a machine that may be busy."""
SHORT: Final = Path("/tmp")  # noqa: S108 -- a directory of its own is made in it
"""Where the demo lies when $TMPDIR is too long."""
_PARENT_BYTES: Final = 27
"""Of a unix socket's 107: devicelens-demo-…/kubelet/device-plugins and a plugin's socket take 80 or more."""
_START_WITHIN: Final = 30.0
"""Seconds in which the plugin must have registered everything and the exporter must have refreshed."""

_log = Log("demo")


@click.command()
@flag(
    "--web.listen-address",
    type=LISTEN_ADDRESS,
    default="127.0.0.1:10190",
    metavar="ADDRESS",
    help="Where the exporter serves its page and metrics.",
)
@flag("--pace", type=DURATION, default="3s", metavar="DURATION", help="Time between two things that happen.")
@flag("--seed", type=int, default=None, show_default="another each time", help="Makes the demo repeatable.")
def demo(
    web_listen_address: ListenAddress, pace: float, seed: int | None, log_level: str, log_format: str
) -> None:
    """The whole system on this machine: a simulated kubelet, the plugin and the exporter, with pods that
    come and go. Runs until Ctrl-C and leaves nothing behind.
    """
    if web_listen_address.path is not None:
        raise click.BadParameter("found a unix socket, expected HOST:PORT", param_hint="--web.listen-address")
    if pace <= 0:
        raise click.BadParameter(f"found {pace:g}s, expected more than 0", param_hint="--pace")
    configure(log_level, log_format)
    rng = Random(seed)  # noqa: S311 -- a show
    sys.exit(run(lambda stop: main(web_listen_address, pace, rng, stop), end_within=_END_WITHIN))


for _option in log_flags():
    demo = _option(demo)


async def main(address: ListenAddress, pace: float, rng: Random, stop: asyncio.Event) -> None:
    """Run the demo until `stop` is set. Raises Fatal when one of the processes cannot start or ends."""
    directory = own_directory(Path(tempfile.gettempdir()), SHORT)
    host, root = directory / "host", directory / "kubelet"
    plugin = Child(
        "plugin",
        *("--config", str(CONFIGURATION), "--host-root", str(host), "--kubelet.root", str(root)),
        *("--node-name", NODE, "--web.listen-address", "127.0.0.1:0"),
    )
    exporter = Child(
        "exporter",
        *("--kubelet.root", str(root), "--node-name", NODE, "--web.listen-address", str(address)),
        *("--pods.source", "apiserver", "--dra.source", "slices"),
    )
    try:
        for name in _DEVICE_FILES:
            _touch(host / name)
        simulated = SimulatedKubelet(root, node_name=NODE, numa_nodes=2, pods_api=True)
        async with (
            simulated as kubelet,
            control_server(kubelet),
            npu_driver(kubelet, directory) as (driver, kubeconfig),
        ):
            try:
                await run_actors(
                    [
                        plugin.run(),
                        _follow(exporter, plugin, kubeconfig),
                        _live(exporter, kubelet, driver, host, Scenario(rng), pace=pace),
                        _announce(exporter, plugin, root),
                    ],
                    stop,
                )
            finally:
                await asyncio.gather(plugin.end(), exporter.end())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def own_directory(*parents: Path) -> Path:
    """A new directory in the first of `parents` that has room for sockets' paths. Raises Fatal."""
    reasons: list[str] = []
    for parent in dict.fromkeys(parents):
        if len(os.fsencode(parent.absolute())) > _PARENT_BYTES:
            reasons.append(
                f"{parent} is longer than {_PARENT_BYTES} bytes, which leaves no room for sockets' paths"
            )
            continue
        try:
            return Path(tempfile.mkdtemp(prefix="devicelens-demo-", dir=parent))
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror or error}")
    raise Fatal(f"no directory for the demo, set TMPDIR: {'; '.join(reasons)}")


class Child:
    """One of devicelens' processes, started as on a node, its log kept short."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._lines: deque[str] = deque(maxlen=200)
        self._process: asyncio.subprocess.Process | None = None
        self.url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The first address that it says it listens on."""

    async def run(self, *further: str) -> None:
        """Start it, with `further` flags, and read its log. Raises Fatal with its last words when it ends."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("DEVICELENS_")
        }
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "devicelens", *self._arguments, *further, "--log.format", "json"),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        if self._process.stderr is None:
            raise TypeError("standard error is a pipe")
        async for raw in self._process.stderr:
            self._take(raw.decode(errors="replace").strip())
        status = await self._process.wait()
        last = self._lines[-1] if self._lines else "it said nothing"
        raise Fatal(f"the {self._arguments[0]} ended with status {status}: {last}")

    async def end(self) -> None:
        """End it, and wait until it has ended."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()

    def _take(self, line: str) -> None:
        self._lines.append(line)
        _log.debug(self._arguments[0], line=line)
        with contextlib.suppress(ValueError, AttributeError):
            said = json.loads(line)
            if said.get("msg") == "listening" and not self.url.done():
                self.url.set_result(said["url"])


async def _follow(exporter: Child, plugin: Child, kubeconfig: Path) -> None:
    """Run the exporter, with the addresses of the plugin and the API server."""
    await exporter.run("--plugin.url", await plugin.url, "--kubeconfig", str(kubeconfig))


async def _announce(exporter: Child, plugin: Child, root: Path) -> None:
    url = await exporter.url
    command = "devicelens" if shutil.which("devicelens") else shlex.quote(sys.argv[0])
    click.echo(
        f"""
devicelens demo: a simulated kubelet, the device plugin and the exporter, with pods that come and go.

  status page   {url}/
  metrics       {url}/metrics
                {await plugin.url}/metrics
  ask           {command} who --url {url}
                {command} history --url {url}
                {command} explain video0 --url {url}
                {command} kubelet show --kubelet.root {root}

Ctrl-C ends it and leaves nothing behind.
"""
    )


async def _live(
    exporter: Child,
    kubelet: SimulatedKubelet,
    driver: DraDriver,
    host: Path,
    scenario: Scenario,
    *,
    pace: float,
) -> None:
    """Run the scenario on the node, one event each `pace` seconds, once the exporter is ready."""
    await kubelet.wait_until(
        lambda node: all(map(node.allocatable, RESOURCES)) and driver.notified, _START_WITHIN
    )
    # Every node has pods without devices; a kubelet that lists none has not heard from the API server.
    await kubelet.add_pod(PodSpec("kube-proxy-x7k2p", "kube-system", owner=Owner("DaemonSet", "kube-proxy")))
    async with asyncio.timeout(_START_WITHIN):
        await _looks_on(await exporter.url)
    pods: dict[str, PodSpec] = {}
    failed: list[str] = []
    for arrival in scenario.opening():
        await _do(arrival, kubelet, host, pods, failed)
    while True:
        await asyncio.sleep(pace)
        await _do(scenario.next(tuple(pods.values()), tuple(failed)), kubelet, host, pods, failed)


async def _looks_on(url: str) -> None:
    """Return when the exporter at `url` has a mapping: what comes then has its exact time."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/-/ready") as answer:
                if answer.status == HTTPStatus.OK:
                    return
            await asyncio.sleep(0.05)


async def _do(
    act: Act, kubelet: SimulatedKubelet, host: Path, pods: dict[str, PodSpec], failed: list[str]
) -> None:
    match act:
        case Arrive(pod):
            try:
                await kubelet.add_pod(pod)
            except AdmissionError as error:
                _log.info("pod refused", pod=f"{pod.namespace}/{pod.name}", reason=error)
            else:
                pods[pod.name] = pod
                _log.info("pod came", pod=f"{pod.namespace}/{pod.name}")
        case Leave(namespace, name):
            await kubelet.delete_pod(namespace, name)
            del pods[name]
            _log.info("pod went", pod=f"{namespace}/{name}")
        case Fail(path):
            (host / path).unlink()
            failed.append(path)
            _log.info("device failed", path=f"/{path}")
        case Recover(path):
            _touch(host / path)
            failed.remove(path)
            _log.info("device came back", path=f"/{path}")


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
