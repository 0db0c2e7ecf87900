import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.served import Served, configuration, serving, static
from plugin.config.load import load_all
from plugin.serving.reload import ConfigRefusedError, Reloader
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
    kubelet: SimulatedKubelet, root: Path, host: Path, file: Path
) -> AsyncGenerator[Followed]:
    """Serve ONE, and reload `file`, which has ONE."""
    watcher = DirectoryWatcher(poll_interval=0.1)
    async with serving(root / "k", host, text(ONE)) as served:
        reloader = Reloader([("plugin.yaml", file)], load_all, apply=served.fleet.apply, clock=Clock())
        reloader.begin()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run) for run in (watcher.run(), reloader.run(file, watcher))]
            await kubelet.wait_until(lambda k: k.allocatable(ONE) == 1)
            await served.registered(ONE)
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


@pytest.mark.parametrize(("name", "words"), [("none", "No such file"), ("empty", "c:1: found an empty file")])
def test_a_start_without_a_valid_file_is_refused(name: str, words: str, root: Path) -> None:
    (root / "empty").touch()
    applied: list[object] = []
    reloader = Reloader([("c", root / name)], load_all, apply=applied.append, clock=Clock())
    with pytest.raises(ConfigRefusedError, match=words):
        reloader.begin()
    assert applied == []


async def test_a_defect_ends_nothing(
    followed: Followed, kubelet: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_content: object) -> None:
        raise RecursionError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(followed.reloader, "_load", broken)
        followed.file.write_text(text(ONE, TWO))
        await followed.served.until(lambda: not followed.reloader.status.successful)
        assert followed.reloader.status.problem == "RecursionError: a defect"
        assert kubelet.allocatable(ONE) == 1
    followed.reloader.ask()
    await kubelet.wait_until(lambda k: k.allocatable(TWO) == 1)
