"""What former processes served is remembered, and forgotten when nothing of it is held."""

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from harness.waiting import LIMIT, until
from kubelet.holders import Held
from plugin.devices.device import PLAIN, Device
from plugin.devices.ledger import Entries
from plugin.discovery.source import Found
from plugin.serving.ownership import (
    MAX_BYTES,
    NAME,
    DamagedError,
    Ownership,
    Predecessors,
    Served,
    exchange,
    read,
)
from runtime.directory import DirectoryWatcher


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / NAME


WRITTEN = Served(1, ["a/y", "b/x"], {"a/y": {"i": "/dev/i"}})


def write(path: Path, served: Served = WRITTEN) -> Served | None:
    return exchange(path, lambda _: served)


def test_what_is_written_is_read(path: Path) -> None:
    assert write(path) == read(path) == WRITTEN
    assert [entry.name for entry in path.parent.iterdir()] == [NAME]


def test_what_an_older_version_wrote_is_read_and_it_reads_what_is_written(path: Path) -> None:
    path.write_text('{"version":1,"resources":["a/y"]}')
    assert read(path) == Served(1, ["a/y"])
    write(path)
    assert json.loads(path.read_bytes())["version"] == 1
    assert json.loads(path.read_bytes())["resources"] == ["a/y", "b/x"]


def test_nothing_is_written_where_nothing_changed(path: Path) -> None:
    write(path)
    before = path.stat()
    write(path)
    assert path.stat().st_ino == before.st_ino


def test_what_says_nothing_is_removed(path: Path) -> None:
    write(path)
    assert write(path, Served()) == Served()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b'{"version": 2, "resources": []}', b'{"version": 1, "resources": [1]}', b"\xff"),
        b'{"version": 1, "resources": [], "claims": {"a/y": ["i"]}}',
        b"[" * 100_000,
        json.dumps({"version": 1, "resources": ["a"] * 1001}).encode(),
        b" " * (MAX_BYTES + 10),
    ],
)
def test_what_cannot_be_read_is_told_counts_for_nothing_and_is_replaced(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        read(path)
    seen: list[Served] = []

    def change(before: Served) -> Served:
        seen.append(before)
        return WRITTEN

    assert exchange(path, change) == WRITTEN
    assert seen == [Served()]
    assert read(path) == WRITTEN


def test_a_link_is_not_followed(path: Path) -> None:
    other = path.with_name("other")
    write(other)
    path.symlink_to(other)
    with pytest.raises(DamagedError):
        read(path)
    write(path, Served(1, ["c/z"]))
    assert (read(path), read(other)) == (Served(1, ["c/z"]), WRITTEN)


def test_a_directory_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    assert write(tmp_path / "none" / NAME) is None


def test_a_resource_of_before_is_kept_for_as_long_as_something_of_it_is_held() -> None:
    held: Held = {"a/old": frozenset({"x"})}
    ownership = Ownership()
    ownership.remember(["a/old", "a/gone"])
    ownership.configure(["a/new"])
    assert ownership.names == {"a/old", "a/gone", "a/new"}
    ownership.stake("a/new", lambda _: (), held, {})
    assert ownership.names == {"a/old", "a/new"}
    ownership.review({}, 0.0, 1.0)
    ownership.review({}, 1.0, 1.0)
    assert ownership.names == {"a/new"}


async def test_it_is_written_at_each_change_and_again_where_it_was_removed(path: Path) -> None:
    ownership, watcher = Ownership(), DirectoryWatcher(poll_interval=0.05)
    ownership.configure(["a/one"])
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(actor)
            for actor in (watcher.run(), Predecessors(path.parent, ownership).run(watcher))
        ]

        async def says(*names: str) -> None:
            async def holds() -> bool:
                return read(path).resources == [*names]

            await until(f"{names} are remembered", holds, pause=0.005)

        await says("a/one")
        ownership.configure(["a/one", "a/two"])
        await says("a/one", "a/two")
        path.unlink()
        await says("a/one", "a/two")
        for task in tasks:
            task.cancel()


async def test_what_could_not_be_written_is_written_once_it_can_be(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True

    def replace(new: Path, target: Path) -> Path:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.replace(new, target)  # noqa: PTH105 -- Path.replace is what is replaced here
        return target

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr("plugin.serving.ownership.AGAIN", 0.05)
    ownership, watcher = Ownership(), DirectoryWatcher(poll_interval=0.05)
    ownership.configure(["a/one"])
    predecessors = Predecessors(path.parent, ownership)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(actor) for actor in (watcher.run(), predecessors.run(watcher))]

        async def fails() -> bool:
            return predecessors.failing is not None

        async def written() -> bool:
            return read(path).resources == ["a/one"] and predecessors.failing is None

        await until("it fails", fails, pause=0.005)
        full = False
        await until("it is written", written, pause=0.005)
        for task in tasks:
            task.cancel()


@pytest.fixture
async def running(path: Path) -> AsyncIterator[Callable[[], Ownership]]:
    """Begins what a process keeps of the file, for as many processes as are asked for."""
    watcher = DirectoryWatcher(poll_interval=0.05)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watcher.run())]

        def begin() -> Ownership:
            ownership = Ownership()
            predecessors = Predecessors(path.parent, ownership)
            predecessors.recall()
            tasks.append(group.create_task(predecessors.run(watcher)))
            return ownership

        yield begin
        for task in tasks:
            task.cancel()


async def claims_are(path: Path, wanted: Entries) -> None:
    async def holds() -> bool:
        return read(path).claims == wanted

    await until(f"{wanted} is written", holds, pause=0.005)


async def test_what_is_given_is_written_before(path: Path, running: Callable[[], Ownership]) -> None:
    ownership = running()
    for n in range(20):
        await ownership.give("a/x", {f"i{n}": f"/dev/{n}"}, LIMIT)
        assert read(path).claims["a/x"][f"i{n}"] == f"/dev/{n}"


async def test_what_cannot_be_written_is_given_and_is_not_waited_for_long(
    path: Path, running: Callable[[], Ownership], monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(_new: Path, _target: Path) -> Path:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    ownership = running()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        async with asyncio.timeout(LIMIT):
            await ownership.give("a/x", {"i": "/dev/i"}, 10 * LIMIT)
    assert read(path).claims == {}
    await ownership.give("a/x", {"i": "/dev/i"}, LIMIT)
    assert read(path).claims == {"a/x": {"i": "/dev/i"}}


async def test_two_processes_leave_each_other_what_they_serve(
    path: Path, running: Callable[[], Ownership]
) -> None:
    one, two = running(), running()
    one.configure(["a/one"])
    two.configure(["a/two"])
    one.offer("a/one", {"i": "/dev/i"})
    two.offer("a/two", {"j": "/dev/j"})
    await claims_are(path, {"a/one": {"i": "/dev/i"}, "a/two": {"j": "/dev/j"}})
    one.offer("a/one", {"i": "/dev/i", "k": "/dev/k"})
    await claims_are(path, {"a/one": {"i": "/dev/i", "k": "/dev/k"}, "a/two": {"j": "/dev/j"}})
    path.unlink()
    await claims_are(path, {"a/one": {"i": "/dev/i", "k": "/dev/k"}, "a/two": {"j": "/dev/j"}})
    assert read(path).resources == ["a/one", "a/two"]
    # Neither answers the other for ever.
    before = path.stat().st_ino
    await asyncio.sleep(0.5)
    assert path.stat().st_ino == before


async def test_a_list_that_is_too_long_is_not_written_but_what_is_given_of_it_is(
    path: Path, running: Callable[[], Ownership], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugin.serving.ownership.MAX_BYTES", 4096)
    ownership = running()
    every = {f"i{n}": f"/dev/{n}" for n in range(1000)}
    ownership.offer("a/x", every)
    await ownership.give("a/x", {"i7": "/dev/7"}, LIMIT)
    await claims_are(path, {"a/x": {"i7": "/dev/7"}})


async def test_where_nothing_was_held_nothing_is_left_and_what_is_held_is(path: Path) -> None:
    ownership = Ownership()
    predecessors = Predecessors(path.parent, ownership)
    ownership.configure(["a/x"])
    ownership.stake("a/x", lambda _: (), {}, {})
    ownership.offer("a/x", {"i": "/dev/i", "j": "/dev/j"})
    write(path, Served(1, ["a/x"], {"a/x": {"i": "/dev/i", "j": "/dev/j"}}))
    device = Device("i", "i", "/dev/i", found=Found("i", "/dev/i"))
    ownership.leave("a/x", {"i": device})
    predecessors.end()
    assert read(path) == Served(1, ["a/x"], {"a/x": {"i": "/dev/i"}})
    ownership.review({}, 0.0, 1.0)
    ownership.review({}, 1.0, 1.0)
    predecessors.end()
    assert not path.exists()


@pytest.mark.parametrize("found", [True, False])
def test_two_parts_of_one_thing_are_offered_side_by_side(found: bool) -> None:
    """A network card's two interfaces have its claim, and one of them is in a pod's namespace."""
    ownership = Ownership()
    ownership.remember(["a/net"], {"a/net": {"eth0": "pci:0000:3b:00.0", "eth1": "pci:0000:3b:00.0"}})
    ownership.configure(["a/net"])
    ownership.stake("a/net", lambda _: (), {"a/net": frozenset({"eth0"})}, {})
    eth1 = Device("eth1", "eth1", found=Found("eth1", claim="pci:0000:3b:00.0"))
    present = {"eth0": "pci:0000:3b:00.0"} if found else {}
    assert ownership.held("a/net", {"eth1": eth1}, PLAIN, present.get, lambda: None) == {}
    # Another one of the same claim is what the pod holds, called otherwise.
    eth2 = Device("eth2", "eth2", found=Found("eth2", claim="pci:0000:3b:00.0"))
    refused = ownership.held("a/net", {"eth2": eth2}, PLAIN, present.get, lambda: None)
    assert refused == ({} if found else {"eth2": "a/net: a pod holds it as eth0"})


def test_what_nobody_tells_is_held_is_not_forgotten() -> None:
    ownership = Ownership()
    ownership.remember(["a/old"], {"a/old": {"i": "/dev/i"}})
    ownership.configure(["a/new"])
    ownership.stake("a/new", lambda _: (), None, {})
    assert not ownership.learned
    assert ownership.names == {"a/old", "a/new"}
    device = Device("j", "j", "/dev/i", found=Found("j", "/dev/i"))
    woken: list[int] = []
    assert ownership.held("a/new", {"j": device}, PLAIN, lambda _: None, lambda: woken.append(1)) == {}
    ownership.learn({"a/old": frozenset({"i"})}, {})
    assert woken == [1]
    assert ownership.held("a/new", {"j": device}, PLAIN, lambda _: None, lambda: None) == {
        "j": "a/old: a pod holds it as i"
    }
