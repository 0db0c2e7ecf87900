"""What can be told of a directory by looking at it twice: the part of following it that needs no inotify."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple


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
