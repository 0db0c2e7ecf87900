"""runtime.directory on real directories: whatever becomes of one, its followers come to know its entries."""

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

from runtime import directory
from runtime.directory import Change, DirectoryWatcher, Kind

LIMIT = 20.0
"""Seconds within which what is waited for must have come."""

NEVER = 3600.0
"""A poll interval that plays no part in a test: inotify alone must do."""

RESCAN = Change(Kind.RESCAN)


class Follower:
    """Follows a directory as a consumer does: keeps what it is told, and the names it takes from that."""

    def __init__(self, watcher: DirectoryWatcher, path: Path, *, contents: bool = True) -> None:
        self.changes: list[Change] = []
        self.names: set[str] = set()
        self._path = path
        self._news = asyncio.Event()
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
            self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def knows(self, *names: str) -> None:
        await self.until(lambda: self.names >= set(names))

    async def knows_only(self, *names: str) -> None:
        await self.until(lambda: self.names == set(names))

    async def told(self, *changes: Change) -> None:
        """Wait until each of `changes` was told, then forget all that was."""
        await self.until(lambda: all(change in self.changes for change in changes))
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
        await follower.until(lambda: RESCAN in follower.changes)
        if use_inotify:
            await until(lambda: watcher._inotify is not None)
        else:
            await until(lambda: all(f.settled for f in watcher._followers))
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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.001)


def _kernel_watches(watcher: DirectoryWatcher) -> int:
    assert watcher._inotify is not None
    facts = Path(f"/proc/self/fdinfo/{watcher._inotify.fd}").read_text(encoding="ascii")
    return sum(line.startswith("inotify ") for line in facts.splitlines())


@pytest.fixture(params=[True, False], ids=["inotify", "polling"])
def use_inotify(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


async def test_what_happens_to_an_entry_is_told(use_inotify: bool, sockets: Path) -> None:
    entry = sockets / "entry"
    async with watching(use_inotify=use_inotify) as (_, follow):
        follower = await follow(sockets)
        entry.write_text("one", encoding="ascii")
        await follower.told(Change(Kind.APPEARED, "entry"))
        entry.write_text("more than one", encoding="ascii")
        await follower.told(Change(Kind.WRITTEN, "entry"))
        entry.chmod(0o400)
        await follower.told(Change(Kind.ATTRIBUTES, "entry"))
        (sockets / "other").touch()
        await follower.told(Change(Kind.APPEARED, "other"))
        (sockets / "other").rename(entry)
        await follower.told(Change(Kind.VANISHED, "other"), Change(Kind.APPEARED, "entry"))
        entry.unlink()
        await follower.told(Change(Kind.VANISHED, "entry"))
        (sockets / "below").mkdir()
        await follower.told(Change(Kind.APPEARED, "below"))
        assert follower.names == {"below"}


async def test_a_socket_made_anew_under_its_name_appears(use_inotify: bool, sockets: Path) -> None:
    path = sockets / "kubelet.sock"
    _bind(path)
    async with watching(use_inotify=use_inotify) as (_, follow):
        follower = await follow(sockets)
        path.unlink()
        _bind(path)
        await follower.told(Change(Kind.APPEARED, "kubelet.sock"))


async def test_polling_takes_a_socket_with_a_new_time_for_a_new_one(sockets: Path) -> None:
    """File systems give a freed inode's number to the next file: the number alone proves nothing."""
    path = sockets / "kubelet.sock"
    _bind(path)
    async with watching(use_inotify=False, poll=0.005) as (_, follow):
        follower = await follow(sockets)
        os.utime(path, (1, 1))
        await follower.told(Change(Kind.APPEARED, "kubelet.sock"))


async def test_a_directory_that_is_missing_is_waited_for(use_inotify: bool, sockets: Path) -> None:
    path = sockets / "a" / "b"
    async with watching(use_inotify=use_inotify, poll=0.005) as (_, follow):
        follower = await follow(path)
        path.mkdir(parents=True)
        (path / "early").touch()
        await follower.knows("early")
        (path / "late").touch()
        await follower.knows("late")


async def test_a_directory_that_is_a_file_at_first_is_waited_for(use_inotify: bool, sockets: Path) -> None:
    path = sockets / "dir"
    path.touch()
    async with watching(use_inotify=use_inotify, poll=0.005) as (watcher, follow):
        follower = await follow(path)
        path.unlink()
        path.mkdir()
        (path / "entry").touch()
        await follower.knows("entry")
        assert watcher.polling_because == (None if use_inotify else "inotify is switched off")


@pytest.mark.parametrize("poll", [0.005, NEVER])
async def test_a_directory_that_is_deleted_and_made_anew_is_followed_on(poll: float, sockets: Path) -> None:
    path = sockets / "dir"
    path.mkdir()
    (path / "old").touch()
    async with watching(poll=poll) as (watcher, follow):
        follower = await follow(path)
        assert follower.names == {"old"}
        shutil.rmtree(path)
        path.mkdir()
        (path / "early").touch()
        await follower.knows_only("early")
        (path / "late").touch()
        await follower.told(Change(Kind.APPEARED, "late"))
        assert _kernel_watches(watcher) == 1


async def test_a_directory_that_goes_and_comes_is_told_each_time(use_inotify: bool, sockets: Path) -> None:
    path = sockets / "dir"
    async with watching(use_inotify=use_inotify, poll=0.005) as (_, follow):
        follower = await follow(path)
        for turn in range(3):
            path.mkdir()
            (path / f"entry{turn}").touch()
            await follower.knows(f"entry{turn}")
            follower.changes.clear()
            shutil.rmtree(path)
            await follower.until(lambda: RESCAN in follower.changes and not follower.names)
            follower.changes.clear()


async def test_a_directory_that_is_replaced_by_rename_is_followed_on(sockets: Path) -> None:
    path, aside, other = sockets / "dir", sockets / "aside", sockets / "other"
    for each in (path, other):
        each.mkdir()
    (other / "there").touch()
    async with watching() as (watcher, follow):
        first, second = await follow(path), await follow(path)
        path.rename(aside)
        other.rename(path)
        for follower in (first, second):
            await follower.knows_only("there")
            follower.changes.clear()
        (aside / "not ours").touch()
        (path / "ours").touch()
        for follower in (first, second):
            await follower.told(Change(Kind.APPEARED, "ours"))
            assert follower.names == {"there", "ours"}
        assert _kernel_watches(watcher) == 1


async def test_another_directory_under_the_same_path_is_noticed_as_under_a_mount(sockets: Path) -> None:
    """Neither a mount nor a switched link is told by inotify: the path leads elsewhere, nothing moved."""
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
            await follower.knows_only(f"in-{name}")
            await until(lambda: _kernel_watches(watcher) == 1)
        (sockets / "b" / "elsewhere").touch()
        (path / "here").touch()
        await follower.told(Change(Kind.APPEARED, "here"))
        assert follower.names == {"in-a", "here"}


def _flood(path: Path) -> None:
    """More events than the kernel queues, and nobody reads meanwhile."""
    queue = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text(encoding="ascii"))
    for _ in range(queue // 2 + 1):
        (path / "a").touch()
        (path / "a").unlink()


async def test_lost_events_make_every_directory_looked_at_anew(sockets: Path) -> None:
    flooded, calm = sockets / "flooded", sockets / "calm"
    for each in (flooded, calm):
        each.mkdir()
    async with watching() as (watcher, follow):
        first, second = await follow(flooded), await follow(calm)
        _flood(flooded)
        (calm / "unheard").touch()
        await second.knows("unheard")
        await first.until(lambda: RESCAN in first.changes)
        (flooded / "heard").touch()
        (calm / "heard").touch()
        for follower in (first, second):
            await follower.knows("heard")
        assert _kernel_watches(watcher) == 2


async def test_a_directory_whose_end_was_among_the_lost_events_is_followed_on(sockets: Path) -> None:
    flooded, made_anew = sockets / "flooded", sockets / "anew"
    for each in (flooded, made_anew):
        each.mkdir()
    async with watching() as (_, follow):
        await follow(flooded)
        follower = await follow(made_anew)
        _flood(flooded)
        made_anew.rmdir()
        made_anew.mkdir()
        await follower.told(RESCAN)
        (made_anew / "entry").touch()
        await follower.told(Change(Kind.APPEARED, "entry"))


async def test_a_follower_that_is_busy_is_told_to_look_anew_rather_than_everything(sockets: Path) -> None:
    async with watching() as (watcher, follow):
        await follow(sockets)
        changes = watcher.follow(sockets)
        assert await anext(changes) == RESCAN
        for number in range(directory._PENDING_LIMIT + 10):
            os.mkdir(sockets / str(number))  # noqa: PTH102 -- many, quickly
        other = await follow(sockets / "0")
        (sockets / "0" / "last").touch()
        await other.told(Change(Kind.APPEARED, "last"))
        assert await anext(changes) == RESCAN
        (sockets / "after").touch()
        async with asyncio.timeout(LIMIT):
            async for change in changes:
                if change == Change(Kind.APPEARED, "after"):
                    break


async def test_two_followers_of_one_directory_share_a_watch_and_leave_each_other_alone(sockets: Path) -> None:
    async with watching() as (watcher, follow):
        all_of_it = await follow(sockets)
        entries_alone = await follow(sockets, contents=False)
        assert _kernel_watches(watcher) == 1
        (sockets / "a").write_text("x", encoding="ascii")
        (sockets / "b").mkdir()
        for follower in (all_of_it, entries_alone):
            await follower.knows("a", "b")
        assert Change(Kind.WRITTEN, "a") in all_of_it.changes
        assert Change(Kind.WRITTEN, "a") not in entries_alone.changes

        await entries_alone.leave()
        assert _kernel_watches(watcher) == 1
        (sockets / "c").mkdir()
        await all_of_it.told(Change(Kind.APPEARED, "c"))


async def test_who_wants_contents_gets_them_though_another_came_first_who_does_not(sockets: Path) -> None:
    async with watching() as (_, follow):
        await follow(sockets, contents=False)
        follower = await follow(sockets)
        (sockets / "a").write_text("x", encoding="ascii")
        await follower.told(Change(Kind.WRITTEN, "a"))


async def test_to_leave_gives_the_watch_back(sockets: Path) -> None:
    async with watching() as (watcher, follow):
        for _ in range(3):
            follower = await follow(sockets)
            assert _kernel_watches(watcher) == 1
            await follower.leave()
            assert not watcher._followers
            assert _kernel_watches(watcher) == 0


async def test_the_end_gives_the_instance_back(sockets: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- names, not paths
    for _ in range(3):
        async with watching() as (_, follow):
            await follow(sockets)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208 -- names, not paths


async def test_a_watcher_that_is_run_again_follows_again(sockets: Path) -> None:
    watcher = DirectoryWatcher(poll_interval=NEVER)
    follower = Follower(watcher, sockets)
    for turn in range(2):
        running = asyncio.create_task(watcher.run())
        await until(lambda: watcher._inotify is not None)
        (sockets / f"entry{turn}").touch()
        await follower.knows(f"entry{turn}")
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
async def test_without_inotify_it_is_said_once_and_polled_until_there_is_some_again(
    what: str, advice: str, scarce: type[Scarce], sockets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    setattr(scarce, what, True)
    async with watching(poll=0.002, retry=0.02) as (watcher, _):
        follower = Follower(watcher, sockets)
        await until(lambda: watcher.polling_because is not None)
        for turn in range(10):
            (sockets / f"polled{turn}").touch()
            await follower.knows(f"polled{turn}")
        assert advice in (watcher.polling_because or "")
        assert [record.message for record in caplog.records] == ["no inotify, polling instead"]

        setattr(scarce, what, False)
        await until(lambda: watcher.polling_because is None)
        assert [record.message for record in caplog.records][1:] == ["no inotify, polling instead: over"]
        await until(lambda: _kernel_watches(watcher) == 1)
        (sockets / "watched").touch()
        await follower.told(Change(Kind.APPEARED, "watched"))
        await follower.leave()


async def test_what_is_refused_for_one_directory_is_over_when_nobody_follows_it(
    scarce: type[Scarce], sockets: Path
) -> None:
    async with watching(poll=0.002) as (watcher, follow):
        watched = await follow(sockets)
        scarce.no_watches = True
        (sockets / "below").mkdir()
        polled = await follow(sockets / "below")
        await until(lambda: watcher.polling_because is not None)
        (sockets / "below" / "entry").touch()
        await polled.knows("entry")
        await watched.told(Change(Kind.APPEARED, "below"))
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
@settings(max_examples=40, deadline=None, derandomize=True)
@given(steps=_STEPS, data=st.data())
def test_followers_come_to_know_the_entries_whatever_happens(
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
                await follower.knows_only(*_names(path))
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
