"""Whole processes beside a kubelet that is only just in time, and beside what is no kubelet's socket."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import owners
from harness.processes import Process
from harness.simulated import SimulatedNode
from harness.waiting import until
from simulator import Faults

pytestmark = pytest.mark.simulated


def _exporter(node: SimulatedNode, *flags: str) -> Process:
    common = (
        "--kubelet.root",
        str(node.root),
        "--web.listen-address",
        "127.0.0.1:0",
        "--node-name",
        node.name,
    )
    return Process("exporter", *common, *flags)


async def _ready(url: str, status: int, part: str = "") -> str:
    async def answers() -> str:
        found, text = await owners.get(url, "/-/ready")
        assert found == status, text
        assert part in text, text
        return text or "ready"

    return await until(f"{status} {part!r}", answers)


def _file(path: Path) -> None:
    path.write_text("not a socket")


def _directory(path: Path) -> None:
    path.mkdir()


def _nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


def _elsewhere(path: Path) -> None:
    path.symlink_to(path.with_name("aside.sock"))


@pytest.mark.parametrize(
    ("put", "reason"),
    [
        (_file, "is not a socket: mount the directory"),
        (_directory, "is not a socket: mount the directory"),
        (_nowhere, "the kubelet is not up"),
        (_elsewhere, None),
    ],
)
async def test_what_takes_the_sockets_place_is_told_and_the_socket_is_found_again(
    put: Callable[[Path], None], reason: str | None
) -> None:
    flags = ("--poll.interval", "200ms", "--pods.source", "none")
    async with SimulatedNode() as node, _exporter(node, *flags) as exporter:
        url = await exporter.url()
        await _ready(url, 200)
        socket = node.root / "pod-resources" / "kubelet.sock"
        aside = socket.with_name("aside.sock")
        socket.rename(aside)
        if reason is not None:
            await _ready(url, 503, "there is no socket")
        put(socket)
        if reason is None:
            # A link to the socket serves as well as the socket.
            await _ready(url, 200)
        else:
            await _ready(url, 503, reason)
            assert (await owners.scrape(url)).value("devicelens_up") == 0
        if socket.is_dir() and not socket.is_symlink():
            socket.rmdir()
        else:
            socket.unlink()
        aside.rename(socket)
        await _ready(url, 200)
        assert (await owners.get(url, "/-/healthy"))[0] == 200


async def test_a_kubelet_that_answers_just_in_time_is_believed() -> None:
    async with SimulatedNode() as node:
        await node.fault(Faults(slow=2.7))
        async with _exporter(node, "--poll.timeout", "15s", "--pods.source", "none") as exporter:
            url = await exporter.url()
            await _ready(url, 200)
            samples = await owners.scrape(url)
            assert samples.value("devicelens_up") == 1
            errors = samples.of("devicelens_refresh_errors_total")
            assert errors
            assert all(value == 0 for _, value in errors)
