"""runtime.directory on real directories: followers see the entries, whatever happens to the directory."""

# A test may look inside.
# pyright: reportPrivateUsage=false

import asyncio
import errno
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncinotify
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.waiting import LIMIT
from harness.waiting import until_holds as until
from runtime import directory
from runtime.directory import Change, DirectoryWatcher, Kind

NEVER = 3600.0
"""A poll interval that plays no part in a test: inotify alone must do."""

RESCAN = Change(Kind.RESCAN)


class Follower:
    """Follows a directory as a consumer does: keeps the changes, and the names that they lead to."""

    def __init__(self, watcher: DirectoryWatcher, path: Path, *, contents: bool = True) -> None:
        self.changes: list[Change] = []
        self.names: set[str] = set()
        self._path = path
        self._task = asyncio.create_task(self._follow(watcher.follow(path, contents=contents)))

    async def _follow(self, changes: AsyncIterator[Change]) -> None:
        async for change in changes:
            self.changes.append(change)
            match change.kind:
                case Kind.RESCAN:
                    self.names = _names(self._path)
                case Kind.APPEARED:
                    self.names.add(change.name)
                case Kind.VANISHED:
                    self.names.discard(change.name)
                case _:
                    pass

    async def sees(self, *names: str) -> None:
        await until(lambda: self.names >= set(names))

    async def sees_only(self, *names: str) -> None:
        await until(lambda: self.names == set(names))

    async def gets(self, *changes: Change) -> None:
        """Wait until each of `changes` came, then forget all that came."""
        await until(lambda: all(change in self.changes for change in changes))
        self.changes.clear()

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _names(path: Path) -> set[str]:
    try:
        return set(os.listdir(path))  # noqa: PTH208 -- names, not paths
    except OSError:
        return set()


@asynccontextmanager
async def watching(
    *, poll: float | None = None, use_inotify: bool = True, retry: float = 30.0
) -> AsyncGenerator[tuple[DirectoryWatcher, Callable[..., Awaitable[Follower]]]]:
    if poll is None:
        poll = NEVER if use_inotify else 0.005
    watcher = DirectoryWatcher(poll_interval=poll, use_inotify=use_inotify, retry_interval=retry)
    running = asyncio.create_task(watcher.run())
    followers: list[Follower] = []

    async def follow(path: Path, *, contents: bool = True) -> Follower:
        follower = Follower(watcher, path, contents=contents)
        followers.append(follower)
        await until(lambda: RESCAN in follower.changes)
        if use_inotify:
            await until(lambda: watcher._inotify is not None)
        else:
            await until(lambda: not any(f.changed for f in watcher._followers))
        await until(lambda: not any(f.pending for f in watcher._followers))
        follower.changes.clear()
        return follower

    try:
        yield watcher, follow
    finally:
        for follower in followers:
            await follower.leave()
        running.cancel()
        outcome = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(outcome[0], asyncio.CancelledError), outcome


def _kernel_watches(watcher: DirectoryWatcher) -> int:
    assert watcher._inotify is not None
    facts = Path(f"/proc/self/fdinfo/{watcher._inotify.fd}").read_text(encoding="ascii")
    return sum(line.startswith("inotify ") for line in facts.splitlines())


@pytest.fixture(params=[True, False], ids=["inotify", "polling"])
def use_inotify(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def _bind(path: Path) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


async def test_a_change_of_an_entry_is_reported(use_inotify: bool, sockets: Path) -> None:
    entry, other = sockets / "entry", sockets / "other"
    _bind(sockets / "kubelet.sock")
    async with watching(use_inotify=use_inotify) as (watcher, follow):
        follower = await follow(sockets)

        async def reported(*changes: tuple[Kind, str]) -> None:
            if use_inotify:
                await follower.gets(*(Change(*each) for each in changes))
            else:
                await follower.gets(RESCAN)
                await until(lambda: not any(f.changed or f.pending for f in watcher._followers))
                follower.changes.clear()

        entry.write_text("one", encoding="ascii")
        await reported((Kind.APPEARED, "entry"))
        entry.write_text("more than one", encoding="ascii")
        await reported((Kind.WRITTEN, "entry"))
        entry.chmod(0o400)
        await reported((Kind.ATTRIBUTES, "entry"))
        other.touch()
        await reported((Kind.APPEARED, "other"))
        other.rename(entry)
        await reported((Kind.VANISHED, "other"), (Kind.APPEARED, "entry"))
        entry.unlink()
        await reported((Kind.VANISHED, "entry"))
        _bind(sockets / "kubelet.sock")
        await reported((Kind.APPEARED, "kubelet.sock"))
        (sockets / "below").mkdir()
        await reported((Kind.APPEARED, "below"))
        assert follower.names == {"below", "kubelet.sock"}


async def test_who_follows_entries_alone_gets_no_change_of_contents(use_inotify: bool, sockets: Path) -> None:
    """Two followers of one directory share a watch, whoever came first."""
    (sockets / "a").touch()
    async with watching(use_inotify=use_inotify) as (watcher, follow):
        entries_alone = await follow(sockets, contents=False)
        everything = await follow(sockets)
        leaving = await follow(sockets, contents=False)
        entries_alone.changes.clear()
        (sockets / "a").write_text("x", encoding="ascii")
        await everything.gets(Change(Kind.WRITTEN, "a") if use_inotify else RESCAN)
        assert entries_alone.changes == []
        if use_inotify:
            assert _kernel_watches(watcher) == 1
        await leaving.leave()
        (sockets / "b").mkdir()
        for follower in (everything, entries_alone):
            await follower.sees_only("a", "b")


@pytest.mark.parametrize("at_first", ["missing", "a file"])
async def test_a_directory_that_appears_later_is_followed(
    at_first: str, use_inotify: bool, sockets: Path
) -> None:
    path = sockets / "a"
    if at_first == "a file":
        path.touch()
    async with watching(use_inotify=use_inotify, poll=0.005) as (watcher, follow):
        follower = await follow(path)
        path.unlink(missing_ok=True)
        for turn in range(3):
            path.mkdir()
            (path / f"early{turn}").touch()
            await follower.sees_only(f"early{turn}")
            (path / f"late{turn}").touch()
            await follower.sees(f"late{turn}")
            shutil.rmtree(path)
            await follower.sees_only()
        assert watcher.polling_because == (None if use_inotify else "inotify is switched off")


@pytest.mark.parametrize("how", ["deleted and created", "renamed"])
async def test_a_directory_that_is_replaced_is_followed(how: str, sockets: Path) -> None:
    path, other = sockets / "dir", sockets / "other"
    path.mkdir()
    async with watching() as (watcher, follow):
        follower = await follow(path)
        if how == "renamed":
            path.rename(sockets / "aside")
        else:
            path.rmdir()
        other.mkdir()
        (other / "there").touch()
        other.rename(path)
        await follower.sees_only("there")
        (path / "late").touch()
        await follower.gets(Change(Kind.APPEARED, "late"))
        assert follower.names == {"there", "late"}
        assert _kernel_watches(watcher) == 1


async def test_a_path_that_leads_to_another_directory_is_followed(sockets: Path) -> None:
    """inotify reports neither a mount nor a changed link: no directory moved."""
    path = sockets / "link"
    for name in ("a", "b"):
        (sockets / name).mkdir()
        (sockets / name / f"in-{name}").touch()
    path.symlink_to("a")
    async with watching(poll=0.005) as (watcher, follow):
        follower = await follow(path)
        for name in ("b", "a", "b", "a"):
            (sockets / "next").symlink_to(name)
            (sockets / "next").rename(path)
            await follower.sees_only(f"in-{name}")
            await until(lambda: _kernel_watches(watcher) == 1)
        (sockets / "b" / "elsewhere").touch()
        (path / "here").touch()
        await follower.gets(Change(Kind.APPEARED, "here"))
        assert follower.names == {"in-a", "here"}


async def test_after_lost_events_every_directory_is_rescanned_and_followed(sockets: Path) -> None:
    flooded, calm, replaced = paths = [sockets / name for name in ("flooded", "calm", "replaced")]
    for each in paths:
        each.mkdir()
    queue = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text(encoding="ascii"))
    async with watching() as (watcher, follow):
        followers = [await follow(each) for each in paths]
        # More events than the kernel queues, and the event loop reads none meanwhile.
        for _ in range(queue // 2 + 1):
            (flooded / "a").touch()
            (flooded / "a").unlink()
        (calm / "unreported").touch()
        replaced.rmdir()
        replaced.mkdir()
        await followers[1].sees("unreported")
        for each, follower in zip(paths, followers, strict=True):
            await follower.gets(RESCAN)
            (each / "entry").touch()
            await follower.sees("entry")
        assert _kernel_watches(watcher) == 3


async def test_many_changes_for_a_busy_follower_become_one_rescan(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_PENDING_LIMIT", 8)
    async with watching() as (watcher, follow):
        other = await follow(sockets)
        changes = watcher.follow(sockets)
        assert await anext(changes) == RESCAN
        for number in range(20):
            (sockets / str(number)).touch()
        await other.sees(*map(str, range(20)))
        assert await anext(changes) == RESCAN
        (sockets / "after").touch()
        async with asyncio.timeout(LIMIT):
            while await anext(changes) != Change(Kind.APPEARED, "after"):
                pass


async def test_watches_and_the_instance_are_given_back(sockets: Path) -> None:
    before = len(_names(Path("/proc/self/fd")))
    for _ in range(2):
        async with watching() as (watcher, follow):
            for _ in range(2):
                follower = await follow(sockets)
                assert _kernel_watches(watcher) == 1
                await follower.leave()
                assert not watcher._followers
                assert _kernel_watches(watcher) == 0
    assert len(_names(Path("/proc/self/fd"))) <= before + 1


async def test_a_watcher_that_runs_again_follows_again(sockets: Path) -> None:
    watcher = DirectoryWatcher(poll_interval=NEVER)
    follower = Follower(watcher, sockets)
    for turn in range(2):
        running = asyncio.create_task(watcher.run())
        await until(lambda: watcher._inotify is not None)
        (sockets / f"entry{turn}").touch()
        await follower.sees(f"entry{turn}")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await follower.leave()


class Scarce(asyncinotify.Inotify):
    """An inotify that the kernel refuses while `no_instances` or `no_watches` says so."""

    no_instances = False
    no_watches = False

    def __init__(self) -> None:
        if type(self).no_instances:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        super().__init__()

    def add_watch(self, path: os.PathLike[str] | bytes | str, mask: asyncinotify.Mask) -> asyncinotify.Watch:
        if type(self).no_watches:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().add_watch(path, mask)


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> type[Scarce]:
    monkeypatch.setattr(Scarce, "no_instances", False)
    monkeypatch.setattr(Scarce, "no_watches", False)
    monkeypatch.setattr(directory, "Inotify", Scarce)
    return Scarce


@pytest.mark.parametrize(
    ("what", "advice"),
    [
        ("no_instances", "raise fs.inotify.max_user_instances"),
        ("no_watches", "raise fs.inotify.max_user_watches"),
    ],
)
async def test_without_inotify_directories_are_polled_until_there_is_some_again(
    what: str, advice: str, scarce: type[Scarce], sockets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    setattr(scarce, what, True)
    async with watching(poll=0.002, retry=0.02) as (watcher, _):
        follower = Follower(watcher, sockets)
        await until(lambda: watcher.polling_because is not None)
        for turn in range(10):
            (sockets / f"polled{turn}").touch()
            await follower.sees(f"polled{turn}")
        assert advice in (watcher.polling_because or "")
        assert [record.message for record in caplog.records] == ["no inotify, polling instead"]

        setattr(scarce, what, False)
        await until(lambda: watcher.polling_because is None)
        assert [record.message for record in caplog.records][1:] == ["no inotify, polling instead: over"]
        await until(lambda: _kernel_watches(watcher) == 1)
        (sockets / "watched").touch()
        await follower.gets(Change(Kind.APPEARED, "watched"))
        await follower.leave()


async def test_a_refused_watch_is_over_when_nobody_follows_the_directory(
    scarce: type[Scarce], sockets: Path
) -> None:
    async with watching(poll=0.002) as (watcher, follow):
        watched = await follow(sockets)
        scarce.no_watches = True
        (sockets / "below").mkdir()
        polled = await follow(sockets / "below")
        await until(lambda: watcher.polling_because is not None)
        (sockets / "below" / "entry").touch()
        await polled.sees("entry")
        await watched.gets(Change(Kind.APPEARED, "below"))
        assert watcher.polling_because is not None
        await polled.leave()
        await until(lambda: watcher.polling_because is None)


_STEPS = st.lists(
    st.sampled_from(
        ["touch", "touch", "unlink", "rename in", "rename away", "rmtree", "mkdir", "swap", "write"]
    ),
    max_size=12,
)


@pytest.mark.parametrize("use_inotify", [True, False])
@settings(max_examples=25)
@given(steps=_STEPS, data=st.data())
def test_followers_see_the_entries_whatever_happens(
    use_inotify: bool, steps: list[str], data: st.DataObject
) -> None:
    base = Path(tempfile.mkdtemp(prefix="dl", dir="/tmp"))
    path = base / "dir"

    async def check() -> None:
        async with watching(poll=0.002, use_inotify=use_inotify) as (watcher, _):
            followers = [Follower(watcher, path), Follower(watcher, path, contents=False)]
            for number, step in enumerate(steps):
                _take(step, base, path, number)
                for _ in range(data.draw(st.integers(0, 3))):
                    await asyncio.sleep(data.draw(st.sampled_from([0, 0, 0.001, 0.004])))
            for follower in followers:
                await follower.sees_only(*_names(path))
                await follower.leave()

    try:
        asyncio.run(check())
    finally:
        shutil.rmtree(base)


def _take(step: str, base: Path, path: Path, number: int) -> None:
    some = min(_names(path), default="none")
    if step == "mkdir":
        path.mkdir(exist_ok=True)
    elif step == "swap":
        (base / f"new{number}").mkdir()
        (base / f"new{number}" / f"brought{number}").touch()
        if path.exists():
            path.rename(base / f"old{number}")
        (base / f"new{number}").rename(path)
    elif not path.exists():
        return
    elif step in {"touch", "write"}:
        (path / (some if step == "write" else f"f{number}")).write_text(step * number, encoding="ascii")
    elif step == "unlink":
        (path / some).unlink(missing_ok=True)
    elif step == "rename in":
        (base / f"r{number}").touch()
        (base / f"r{number}").rename(path / some)
    elif step == "rename away" and (path / some).exists():
        (path / some).rename(base / f"away{number}")
    elif step == "rmtree":
        shutil.rmtree(path)
