"""Directories followed by inotify, or by polling where the kernel gives no inotify instance.

A process has one DirectoryWatcher with one inotify instance (they are few: 128 a user by default),
whatever number of directories it follows. A directory may be missing, may come and go, may be
replaced by another of the same name: it is found again, and its followers are told to look anew.

What can be told of a directory by looking at it twice: the part of following it that needs no inotify.
"""

import asyncio
import errno
import os
import stat
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from asyncinotify import Event, Inotify, Mask, Watch

from runtime.log import Episode, Log


class Kind(Enum):
    """What happened to an entry of a directory."""

    APPEARED = "appeared"
    VANISHED = "vanished"
    WRITTEN = "written"
    ATTRIBUTES = "attributes"
    RESCAN = "rescan"
    """Anything may have changed: at the start, when the directory came or went, when events were lost."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change: `name` is the entry's file name, empty for RESCAN."""

    kind: Kind
    name: str = ""


class Facts(NamedTuple):
    """What an entry is known by. `being` tells whether it is still the same one: a file system gives a
    freed inode's number to the next file, so a socket, which is never written to, is another one when
    its modification time is another.
    """

    being: tuple[int, int, int]
    contents: tuple[int, int]
    changed: int


@dataclass(frozen=True, slots=True)
class Listing:
    """A directory at one moment: when it was `modified` (nanoseconds of unix time), and its entries by name.

    One that is missing, or cannot be read, has no `entries`, and was `modified` when the nearest
    directory above it was: it may have come and gone since then, but not later.
    """

    modified: int
    entries: dict[str, Facts] | None


def identity_of(directory: Path) -> tuple[int, int] | None:
    """Device and inode of what is at the path; None where nothing can be seen."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def look(directory: Path) -> Listing:
    """The directory at this moment."""
    # Before the entries: what changes while they are read shows as another time at the next look.
    above = _modified_above(directory)
    found: dict[str, Facts] = {}
    try:
        modified = directory.stat().st_mtime_ns
        with os.scandir(directory) as scanned:
            for entry in scanned:
                try:
                    found[entry.name] = _facts(entry.stat(follow_symlinks=False))
                except OSError:
                    continue  # gone since
    except OSError:
        return Listing(above, None)
    return Listing(modified, found)


def differences(old: Listing, new: Listing) -> Iterator[Change]:
    """The changes that make `new` of `old`. RESCAN where the directory came or went, and where it was
    modified though its entries are the same: something came and went between the two looks.
    """
    if old == new or (old.entries is None and new.entries is None):
        return
    if old.entries is None or new.entries is None or old.entries == new.entries:
        yield Change(Kind.RESCAN)
        return
    for name in old.entries.keys() - new.entries.keys():
        yield Change(Kind.VANISHED, name)
    for name, facts in new.entries.items():
        before = old.entries.get(name)
        if before is None or before.being != facts.being:
            yield Change(Kind.APPEARED, name)
        elif before.contents != facts.contents:
            yield Change(Kind.WRITTEN, name)
        elif before.changed != facts.changed:
            yield Change(Kind.ATTRIBUTES, name)


def _modified_above(directory: Path) -> int:
    for parent in directory.parents:
        try:
            return parent.stat().st_mtime_ns
        except OSError:
            continue
    return 0


def _facts(status: os.stat_result) -> Facts:
    written = status.st_mtime_ns
    return Facts(
        being=(status.st_ino, stat.S_IFMT(status.st_mode), written if stat.S_ISSOCK(status.st_mode) else 0),
        contents=(written, status.st_size),
        changed=status.st_ctime_ns,
    )


__all__ = ["Change", "DirectoryWatcher", "Kind"]

_log = Log("directory")

_ENTRIES: Final = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.MOVED_FROM
_CONTENTS: Final = Mask.CLOSE_WRITE | Mask.ATTRIB
_ITSELF: Final = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
_LOST: Final = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.IGNORED | Mask.UNMOUNT

_FILE_CLOCK: Final = 0.02
"""Seconds, amply, by which the kernel tells the times of two changes apart: its tick is 1 to 10 ms."""

_PENDING_LIMIT: Final = 4096
"""Changes kept for a follower that is busy; more become one RESCAN."""


_OF_CONTENTS: Final = frozenset({Kind.WRITTEN, Kind.ATTRIBUTES})
_RESCAN: Final = Change(Kind.RESCAN)
_NEVER: Final = Listing(-1, {})
"""No directory's: equal to none that is looked at."""


@dataclass(slots=True, eq=False)
class _Follower:
    """One subscription: what it follows, what it has not been told yet, and how it is followed now."""

    directory: Path
    contents: bool
    pending: deque[Change] = field(default_factory=lambda: deque([_RESCAN]))
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    watch: Watch | None = None
    identity: tuple[int, int] | None = None
    refused: str | None = None
    settled: bool = False
    listing: Listing = _NEVER

    def tell(self, change: Change) -> None:
        if change.kind is Kind.RESCAN or len(self.pending) >= _PENDING_LIMIT:
            self.pending.clear()
            change = _RESCAN
        elif self.pending and self.pending[-1].kind is Kind.RESCAN:
            self.wake.set()
            return
        self.pending.append(change)
        self.wake.set()


class DirectoryWatcher:
    """Follows directories for a whole process. Run `run()` as an actor; `follow()` from anywhere."""

    def __init__(
        self,
        *,
        poll_interval: float = 1.0,
        use_inotify: bool = True,
        retry_interval: float = 30.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`poll_interval`: seconds between looks at what inotify cannot tell (and at all, without it);
        `retry_interval`: seconds between two tries to have an inotify instance; `wall`: unix time in
        seconds, as files have it.
        """
        self._wall = wall
        self._poll_interval = poll_interval
        self._retry_interval = retry_interval
        self._use_inotify = use_inotify
        self._inotify: Inotify | None = None
        self._followers: set[_Follower] = set()
        self._episode = Episode(_log, "no inotify, polling instead", interval_seconds=poll_interval)

    @property
    def polling_because(self) -> str | None:
        """Why directories are polled rather than followed by inotify; None while inotify works."""
        return self._episode.reason if self._use_inotify else "inotify is switched off"

    async def run(self) -> None:
        """Deliver changes to every follower until cancelled."""
        try:
            while True:
                inotify = self._open()
                if inotify is None:
                    await self._poll_for(self._retry_interval)
                    continue
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._read(inotify))
                    group.create_task(self._poll_for(None))
        finally:
            for follower in self._followers:
                follower.watch = follower.identity = None
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None

    async def follow(self, directory: Path, *, contents: bool = True) -> AsyncIterator[Change]:
        """Every change in `directory`, RESCAN first. A directory that is missing is waited for.

        Without `contents` only what appears and vanishes is told: a follower of /dev would otherwise be
        woken whenever somebody closes /dev/null.
        """
        with self._following(directory, contents=contents) as follower:
            while True:
                while follower.pending:
                    change = follower.pending.popleft()
                    # It will look for itself, and may see what comes and goes between two looks here.
                    follower.settled &= change.kind is not Kind.RESCAN
                    yield change
                    follower.settled &= change.kind is not Kind.RESCAN
                follower.wake.clear()
                await follower.wake.wait()

    @contextmanager
    def _following(self, directory: Path, *, contents: bool) -> Generator[_Follower]:
        follower = _Follower(directory, contents)
        self._followers.add(follower)
        self._attach(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            self._detach(follower)
            self._judge()

    def _open(self) -> Inotify | None:
        if self._inotify is None and self._use_inotify:
            try:
                self._inotify = Inotify()
            except OSError as error:
                self._episode.failed(_inotify_advice(error))
                return None
            for follower in self._followers:
                follower.settled, follower.listing = False, _NEVER
                self._attach(follower)
            self._judge()
        return self._inotify

    async def _read(self, inotify: Inotify) -> None:
        while True:
            event = await inotify.get()
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        if Mask.Q_OVERFLOW in event.mask:
            _log.warn("inotify events were lost, looking at every directory anew")
            # The end of a directory may be among what was lost: its watch cannot be relied upon either.
            for follower in self._followers:
                follower.tell(_RESCAN)
                self._detach(follower)
                self._attach(follower)
            return
        watch = event.watch
        for follower in [f for f in self._followers if f.watch is not None and f.watch is watch]:
            if event.mask & _LOST:
                follower.tell(_RESCAN)
                self._detach(follower)
                self._attach(follower)
            elif event.name is not None:
                kind = _kind(event.mask)
                if kind is not None and (follower.contents or kind not in _OF_CONTENTS):
                    follower.tell(Change(kind, str(event.name)))

    async def _poll_for(self, seconds: float | None) -> None:
        """Look at what inotify does not tell, for `seconds` (None: until cancelled)."""
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        while end is None or loop.time() < end:
            for follower in tuple(self._followers):
                self._look(follower)
            await asyncio.sleep(self._poll_interval)

    def _look(self, follower: _Follower) -> None:
        """One look: attach to a directory that came, notice one that was replaced, list the unwatched."""
        if follower.watch is not None:
            if identity_of(follower.directory) != follower.identity:
                follower.tell(_RESCAN)
                self._detach(follower)
                self._attach(follower)
            return
        self._attach(follower)
        if follower.watch is None:
            self._compare(follower)

    def _attach(self, follower: _Follower) -> None:
        if self._inotify is None or follower.watch is not None:
            return
        follower.refused = None
        identity = identity_of(follower.directory)
        if identity is None:
            self._judge()
            return
        # MASK_ADD: a directory has one watch, which other followers may want more of.
        mask = _ENTRIES | _ITSELF | Mask.MASK_ADD | (_CONTENTS if follower.contents else Mask(0))
        try:
            follower.watch = self._inotify.add_watch(follower.directory, mask)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                follower.refused = _inotify_advice(error)
            self._judge()
            return
        follower.identity = identity
        follower.settled, follower.listing = False, _NEVER
        follower.tell(_RESCAN)
        self._judge()

    def _judge(self) -> None:
        """Tell when inotify is refused for a directory, and when it is for none any more."""
        if self._inotify is None:
            return
        reasons = sorted({follower.refused for follower in self._followers if follower.refused is not None})
        if reasons:
            self._episode.failed(reasons[0])
        else:
            self._episode.recovered()

    def _detach(self, follower: _Follower) -> None:
        """Give the follower's watch back, unless another follows the same directory by it."""
        watch, follower.watch, follower.identity = follower.watch, None, None
        if watch is None or self._inotify is None or any(f.watch is watch for f in self._followers):
            return
        try:
            self._inotify.rm_watch(watch)
        except OSError as error:
            # EINVAL: the kernel dropped the watch together with its directory.
            if error.errno != errno.EINVAL:
                raise

    def _compare(self, follower: _Follower) -> None:
        new = look(follower.directory)
        old, follower.listing = follower.listing, new
        if not follower.settled:
            # What the follower saw may lie between these two looks. It is well only if they are equal, and
            # if a change between them would have shown as another time.
            follower.settled = new == old and abs(self._wall() - new.modified / 1e9) > _FILE_CLOCK
            if not follower.settled:
                follower.tell(_RESCAN)
            return
        for change in differences(old, new):
            if follower.contents or change.kind not in _OF_CONTENTS:
                follower.tell(change)


def _kind(mask: Mask) -> Kind | None:
    if mask & (Mask.CREATE | Mask.MOVED_TO):
        return Kind.APPEARED
    if mask & (Mask.DELETE | Mask.MOVED_FROM):
        return Kind.VANISHED
    if mask & Mask.CLOSE_WRITE:
        return Kind.WRITTEN
    if mask & Mask.ATTRIB:
        return Kind.ATTRIBUTES
    return None


def _inotify_advice(error: OSError) -> str:
    if error.errno == errno.EMFILE:
        return "no inotify instance is left for this user, raise fs.inotify.max_user_instances"
    if error.errno == errno.ENOSPC:
        return "no inotify watch is left for this user, raise fs.inotify.max_user_watches"
    return error.strerror or str(error)
