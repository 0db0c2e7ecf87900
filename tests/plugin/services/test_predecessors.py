"""What former processes served is remembered, and forgotten when nothing of it is held."""

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest

from daemon.directory import DirectoryWatcher
from harness.waiting import until
from plugin.core.holders import Held
from plugin.services.ownership import Ownership
from plugin.services.predecessors import MAX_BYTES, NAME, DamagedError, Predecessors, Served, exchange, read


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
    monkeypatch.setattr("plugin.services.predecessors.AGAIN", 0.05)
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
