"""The source `glob`: every path that matches a pattern is a device, named by its last component."""

import errno
import fnmatch
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from plugin.discovery.host import HostRoot, node_of
from plugin.discovery.source import Findings, Found
from plugin.names import natural

MAX_FOUND: Final = 50_000


@dataclass(frozen=True, slots=True)
class GlobSource:
    """The paths that match one of `patterns`. As in a shell, `*` matches no leading dot."""

    patterns: tuple[str, ...]

    def scan(self, host: HostRoot) -> Findings:
        """The matching paths as they are now; links are kept as they are named, dangling ones are not."""
        found: dict[str, Found] = {}
        follow: dict[tuple[str, str], None] = {}
        for pattern in self.patterns:
            parts = [part for part in pattern.split("/") if part]
            for path, status in matches(host, "", parts, follow):
                if path not in found:
                    found[path] = found_at(host, path, status)
                if len(found) > MAX_FOUND:
                    raise OSError(errno.EFBIG, f"more than {MAX_FOUND} paths match", pattern)
        notes = () if found else (f"nothing matches {', '.join(self.patterns)}",)
        ordered = sorted(found.values(), key=lambda item: natural(item.path))
        return Findings(tuple(ordered), tuple(follow), notes, entrywise=frozenset(self._directories()))

    def scan_entry(self, host: HostRoot, directory: str, name: str) -> Found | None:
        """What is at that path, where it is one that matches."""
        if not any(compiled(last).match(name) for last in self._directories().get(directory, ())):
            return None
        return path_now(host, f"{directory.rstrip('/')}/{name}")

    def _directories(self) -> dict[str, list[str]]:
        """The directories whose entries alone decide, with what their names are to match."""
        found: dict[str, list[str]] = {}
        others = False
        for pattern in self.patterns:
            *directories, last = [part for part in pattern.split("/") if part]
            if any(map(_is_pattern, directories)):
                others = True
            else:
                found.setdefault("/" + "/".join(directories), []).append(last)
        # One whose directories are patterns too may go through any of them.
        return {} if others else found

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """What is at its path now: a link may lead elsewhere, a node have other numbers."""
        now = path_now(host, found.path)
        return found if now == found else now


def matches(
    host: HostRoot, base: str, parts: list[str], follow: dict[tuple[str, str], None]
) -> Iterator[tuple[str, os.stat_result]]:
    """Every path below `base` that matches the remaining components, with its status."""
    part, rest = parts[0], parts[1:]
    if rest and not _is_pattern(part):
        yield from matches(host, f"{base}/{part}", rest, follow)
        return
    follow[base or "/", part] = None
    if not _is_pattern(part):
        path = f"{base}/{part}"
        with suppress(FileNotFoundError, NotADirectoryError):
            yield path, host.stat(path)
        return
    pattern = compiled(part)
    try:
        for entry in host.entries(base or "/"):
            if entry.status is None or pattern.match(entry.name) is None:
                continue
            path = f"{base}/{entry.name}"
            if not rest:
                yield path, entry.status
            else:
                yield from matches(host, path, rest, follow)
    except (FileNotFoundError, NotADirectoryError):
        return


def path_now(host: HostRoot, path: str) -> Found | None:
    """What is at `path` now; None where there is nothing."""
    try:
        return found_at(host, path, host.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def found_at(host: HostRoot, path: str, status: os.stat_result) -> Found:
    """What is at `path`, named by its last component."""
    node = node_of(status)
    attrs: dict[str, str] = {}
    if node is not None:
        attrs = {"type": node[0], "major": str(node[1]), "minor": str(node[2])}
    target = host.real(path)
    if target != path:
        attrs["target"] = target
    return Found(path.rpartition("/")[2], path, attrs, rdev=node, nodes=(path,) if node else ())


def _is_pattern(part: str) -> bool:
    return any(character in part for character in "*?[")


@lru_cache(maxsize=256)
def compiled(part: str) -> re.Pattern[str]:
    """One component of a pattern; a wildcard at its start matches no dot."""
    dots = "" if part.startswith(".") else r"(?!\.)"
    return re.compile(dots + fnmatch.translate(part))
