import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from harness.served import Served, configuration, serving, static
from harness.waiting import until
from plugin.serving.reload import ConfigRefusedError, Reloader
from plugin.serving.web import PluginSite, build
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher
from simulator import SimulatedKubelet

ONE, TWO = "a.b/one", "a.b/two"


def text(*resources: str) -> str:
    return configuration(*(static(name, name[-3:]) for name in resources))


@dataclass
class Followed:
    """A configuration file that is followed."""

    file: Path
    reloader: Reloader
    served: Served


@asynccontextmanager
async def following(
    kubelet: SimulatedKubelet, root: Path, host: Path, file: Path, *, watched: bool = True
) -> AsyncGenerator[Followed]:
    """Serve ONE, and reload `file`, which has ONE."""
    watcher = DirectoryWatcher(poll_interval=0.1)
    async with serving(root / "k", host, text(ONE)) as served:
        reloader = Reloader([("plugin.yaml", file)], apply=served.fleet.apply, clock=Clock())
        reloader.begin()
        async with asyncio.TaskGroup() as group:
            run = reloader.run(file if watched else None, watcher)
            tasks = [group.create_task(watcher.run()), group.create_task(run)]
            await kubelet.wait_until(lambda k: k.allocatable(ONE) == 1)
            yield Followed(file, reloader, served)
            for task in tasks:
                task.cancel()


@pytest.fixture
async def followed(kubelet: SimulatedKubelet, root: Path, host: Path) -> AsyncIterator[Followed]:
    file = root / "plugin.yaml"
    file.write_text(text(ONE))
    async with following(kubelet, root, host, file) as made:
        yield made


async def test_a_new_file_is_applied(followed: Followed, kubelet: SimulatedKubelet) -> None:
    followed.file.write_text(text(ONE, TWO))
    await kubelet.wait_until(lambda k: k.allocatable(TWO) == 1)
    new = followed.file.with_name("new")
    new.write_text(text(TWO))
    new.rename(followed.file)
    await kubelet.wait_until(lambda k: k.allocatable(ONE) == 0)
    assert kubelet.allocatable(TWO) == 1
    await followed.served.registered(TWO)
    assert followed.served.status(TWO).counters.registrations == 1
    assert followed.reloader.status.successful


async def test_a_broken_file_changes_nothing(followed: Followed, kubelet: SimulatedKubelet) -> None:
    before = followed.reloader.status.succeeded_at
    followed.file.write_text(text(ONE).replace("discover", "discvoer"))
    # While it is written it may be read as an empty one.
    await followed.served.until(lambda: "did you mean 'discover'?" in followed.reloader.status.problem)
    assert not followed.reloader.status.successful
    assert followed.reloader.status.succeeded_at == before
    followed.file.unlink()
    await followed.served.until(lambda: "No such file" in followed.reloader.status.problem)
    assert kubelet.allocatable(ONE) == 1
    # What was served all along comes back: nothing is disturbed.
    followed.file.write_text(text(ONE))
    await followed.served.until(lambda: followed.reloader.status.successful)
    assert followed.served.status(ONE).counters.registrations == 1


async def test_a_config_map_is_followed(kubelet: SimulatedKubelet, root: Path, host: Path) -> None:
    volume = root / "v"
    for name, resource in (("..1", ONE), ("..2", TWO)):
        (volume / name).mkdir(parents=True)
        (volume / name / "plugin.yaml").write_text(text(resource))
    (volume / "..data").symlink_to("..1")
    (volume / "plugin.yaml").symlink_to("..data/plugin.yaml")
    async with following(kubelet, root, host, volume / "plugin.yaml"):
        (volume / "..tmp").symlink_to("..2")
        os.replace(volume / "..tmp", volume / "..data")  # noqa: PTH105 -- as the kubelet does it
        await kubelet.wait_until(lambda k: k.allocatable(TWO) == 1 and k.allocatable(ONE) == 0)


async def test_a_reload_can_be_requested(kubelet: SimulatedKubelet, root: Path, host: Path) -> None:
    file = root / "plugin.yaml"
    file.write_text(text(ONE))
    async with following(kubelet, root, host, file, watched=False) as followed:
        file.write_text(text(TWO))
        followed.reloader.ask()
        await kubelet.wait_until(lambda k: k.allocatable(TWO) == 1)


@pytest.mark.parametrize(("name", "words"), [("none", "No such file"), ("empty", "c:1: found an empty file")])
def test_a_start_without_a_valid_file_is_refused(name: str, words: str, root: Path) -> None:
    (root / "empty").touch()
    applied: list[object] = []
    reloader = Reloader([("c", root / name)], apply=applied.append, clock=Clock())
    with pytest.raises(ConfigRefusedError, match=words):
        reloader.begin()
    assert applied == []


async def test_probes_and_metrics_tell_of_a_refused_file(followed: Followed) -> None:
    followed.file.write_text("version: 2\n")
    await followed.served.until(lambda: not followed.reloader.status.successful)
    site = PluginSite(followed.served.fleet, lambda: followed.reloader.status)
    async with TestClient(TestServer(build(site))) as client:

        async def ready() -> bool:
            answer = await client.get("/-/ready")
            return answer.status == 200

        await until("ready", ready)
        text_of_ready = await (await client.get("/-/ready")).text()
        assert "configuration refused, the last one stays in force: plugin.yaml:1" in text_of_ready
        metrics = await (await client.get("/metrics")).text()
        assert "devicelens_plugin_config_last_reload_successful 0.0" in metrics


async def test_a_defect_ends_nothing(
    followed: Followed, kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_content: object) -> None:
        raise RecursionError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr("plugin.serving.reload.load_all", broken)
        followed.file.write_text(text(ONE, TWO))
        await followed.served.until(lambda: not followed.reloader.status.successful)
        assert followed.reloader.status.problem == "RecursionError: a defect"
        assert kubelet.allocatable(ONE) == 1
    followed.reloader.ask()
    await kubelet.wait_until(lambda k: k.allocatable(TWO) == 1)
