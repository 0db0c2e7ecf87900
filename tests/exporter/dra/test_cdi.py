"""exporter.dra.cdi: the specifications of real directories, as they come, change, break and go."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from exporter.dra import cdi
from exporter.dra.cdi import CdiSpecifications
from exporter.refresh.protocols import CdiSource
from harness.waiting import background, until_holds
from runtime.directory import DirectoryWatcher

UUIDS = [f"GPU-{n:08d}-0000-0000-0000-000000000000" for n in range(4)]


def _spec(uuid: str, *names: str) -> str:
    edits = {"env": [f"NVIDIA_VISIBLE_DEVICES={uuid}"]}
    return json.dumps(
        {"kind": "a/b", "devices": [{"name": name, "containerEdits": edits} for name in names or ("x",)]}
    )


def _rename(path: Path, text: str) -> None:
    """Write a file as the Go package of CDI does."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.rename(path)


class Source:
    """A running source, and how often it called back."""

    def __init__(self, source: CdiSpecifications) -> None:
        self.source: CdiSource = source
        self.calls = 0
        source.bind(self._called)

    def _called(self) -> None:
        self.calls += 1

    async def has(self, **uuids: int) -> None:
        """Wait until these devices are there, and no others, each with the UUID of that index."""
        expected = {f"a/b={name}": (UUIDS[number],) for name, number in uuids.items()}
        await until_holds(lambda: {name: one.uuids for name, one in self.source.devices.items()} == expected)

    async def says(self, words: str) -> None:
        await until_holds(lambda: words in self.source.status.problem and not self.source.status.up)

    async def works(self) -> None:
        await until_holds(lambda: self.source.status == ("cdi", True, ""))


@asynccontextmanager
async def following(etc: Path, run: Path, *, use_inotify: bool = True) -> AsyncGenerator[Source]:
    watcher = DirectoryWatcher(poll_interval=0.02, use_inotify=use_inotify)
    source = CdiSpecifications(watcher, (etc, run))
    async with background(watcher.run()), background(source.run()):
        yield Source(source)


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    etc, run = tmp_path / "etc", tmp_path / "run"
    etc.mkdir()
    run.mkdir()
    return etc, run


@pytest.mark.parametrize("use_inotify", [True, False])
async def test_files_come_change_and_go(directories: tuple[Path, Path], use_inotify: bool) -> None:
    etc, run = directories
    _rename(run / "one.json", _spec(UUIDS[0]))
    async with following(etc, run, use_inotify=use_inotify) as one:
        await one.has(x=0)
        await one.works()
        _rename(run / "one.json", _spec(UUIDS[1]))
        await one.has(x=1)
        _rename(
            run / "two.yaml", f"kind: a/b\ndevices:\n- name: y\n  containerEdits:\n    env: [A={UUIDS[2]}]\n"
        )
        await one.has(x=1, y=2)
        (run / "one.json").unlink()
        await one.has(y=2)


async def test_the_later_directory_overrides(directories: tuple[Path, Path]) -> None:
    etc, run = directories
    (etc / "one.json").write_text(_spec(UUIDS[0], "x", "y"))
    async with following(etc, run) as one:
        await one.has(x=0, y=0)
        _rename(run / "one.json", _spec(UUIDS[1]))
        await one.has(x=1, y=0)
        (run / "one.json").unlink()
        await one.has(x=0, y=0)


async def test_a_half_written_file_keeps_its_last_good_content(directories: tuple[Path, Path]) -> None:
    etc, run = directories
    (run / "one.json").write_text(_spec(UUIDS[0]))
    async with following(etc, run) as one:
        await one.has(x=0)
        (run / "one.json").write_text(_spec(UUIDS[1])[:40])
        await one.says("one.json: not a CDI specification")
        await one.has(x=0)
        (run / "one.json").write_text(_spec(UUIDS[1]))
        await one.has(x=1)
        await one.works()
        (run / "two.json").write_text("{")
        await one.says("two.json")
        (run / "two.json").unlink()
        await one.works()
        await one.has(x=1)


async def test_it_is_the_same_object_while_nothing_changes(directories: tuple[Path, Path]) -> None:
    etc, run = directories
    (run / "one.json").write_text(_spec(UUIDS[0]))
    async with following(etc, run) as one:
        await one.has(x=0)
        devices, calls = one.source.devices, one.calls
        _rename(run / "one.json", _spec(UUIDS[0]))
        _rename(run / "notes.txt", "no specification")
        os.utime(run / "one.json")
        _rename(run / "broken.json", "{")
        await one.says("broken.json")
        assert one.source.devices is devices
        assert one.calls == calls + 1


async def test_directories_may_be_missing_and_come_later(tmp_path: Path) -> None:
    etc, run = tmp_path / "etc", tmp_path / "run"
    async with following(etc, run) as one:
        await one.says("are not there: mount the node's CDI directories")
        run.mkdir()
        await one.works()
        _rename(run / "one.json", _spec(UUIDS[0]))
        await one.has(x=0)
        (run / "one.json").unlink()
        run.rmdir()
        await one.has()
        await one.says("are not there")


async def test_what_may_not_be_read_is_said(
    directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    etc, run = directories
    (run / "one.json").write_text(_spec(UUIDS[0]))
    os.mkfifo(run / "pipe.json")
    real, refused = cdi.content_of, {"two.json"}

    def content(path: Path) -> bytes:
        if path.name in refused:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(cdi, "content_of", content)
    async with following(etc, run) as one:
        await one.has(x=0)
        await one.says("pipe.json cannot be read (not a regular file)")
        (run / "pipe.json").unlink()
        await one.works()
        (run / "two.json").write_text(_spec(UUIDS[1], "y"))
        await one.says("two.json cannot be read (Permission denied): mount its directory read-only")
        refused.clear()
        (run / "two.json").chmod(0o600)
        await one.has(x=0, y=1)
        await one.works()


async def test_there_are_bounds(directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi, "MAX_FILES", 2)
    etc, run = directories
    for number, name in enumerate("xyz"):
        (run / f"{name}.json").write_text(_spec(UUIDS[number], name))
    (etc / "big.json").write_bytes(b" " * (1 << 20) + b"{}")
    async with following(etc, run) as one:
        await one.has(x=0, y=1)
        await one.says("more than 2 specifications")
        await one.says("big.json: the file has more than 1048576 bytes")
        (run / "x.json").unlink()
        (etc / "big.json").unlink()
        await one.has(y=1, z=2)
        await one.works()
        # A file that comes later is one too many as well.
        (run / "w.json").write_text(_spec(UUIDS[0], "w"))
        await one.says("more than 2 specifications")


async def test_many_changes_at_once_are_read_together(directories: tuple[Path, Path]) -> None:
    etc, run = directories
    async with following(etc, run) as one:
        await one.works()
        for number in range(200):
            _rename(run / f"f{number}.json", _spec(UUIDS[0], f"n{number}"))
            await asyncio.sleep(0)
        await one.has(**{f"n{number}": 0 for number in range(200)})
