"""The source `glob`: every path that matches a pattern is a device."""

import errno
import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from plugin.discovery.host import HostRoot, node_of
from plugin.discovery.source import Findings, Found, SourceConfig
from plugin.fields import HostGlob
from plugin.names import natural

MAX_FOUND: Final = 50_000
_NONE: Final[Mapping[str, str]] = {}
"""The attributes of paths without any: one object for thousands."""


NODE_ATTRIBUTES: Final = frozenset({"type", "major", "minor", "target"})
"""Attributes of a device that is a path: of its device node, and the target of its link."""


class Glob(SourceConfig, frozen=True):
    """Every path that matches a pattern is a device, named after its last component.

    Attributes: `type`, `major` and `minor` of a device node; `target` of a link.

    Nodes: the path, if it is a device node.
    """

    checks_paths: ClassVar[bool] = True

    paths: Annotated[list[HostGlob], Meta(min_length=1, max_length=64)]
    """Absolute patterns with `*`, `?` and `[…]`, which match no slash."""

    def attributes(self) -> frozenset[str]:
        return NODE_ATTRIBUTES

    def host_paths(self) -> Iterable[str]:
        return self.paths

    def scan(self, host: HostRoot) -> Findings:
        """The matching paths. A link counts under its own name, unless it dangles."""
        found: dict[str, Found] = {}
        follow: dict[tuple[str, str], None] = {}
        for pattern in self.paths:
            parts = [part for part in pattern.split("/") if part]
            for path, status in matches(host, "", parts, follow):
                if path not in found:
                    found[path] = found_at(host, path, status)
                if len(found) > MAX_FOUND:
                    raise OSError(errno.EFBIG, f"more than {MAX_FOUND} paths match", pattern)
        notes = () if found else (f"nothing matches {', '.join(self.paths)}",)
        ordered = sorted(found.values(), key=lambda item: natural(item.path))
        return Findings(tuple(ordered), tuple(follow), notes, entrywise=frozenset(self._directories()))

    def scan_entry(self, host: HostRoot, directory: str, name: str) -> Found | None:
        """The device at that path, if the path matches."""
        if not any(compiled(last).match(name) for last in self._directories().get(directory, ())):
            return None
        return path_now(host, f"{directory.rstrip('/')}/{name}")

    def _directories(self) -> dict[str, list[str]]:
        """The directories whose entries decide, with the patterns of their names."""
        found: dict[str, list[str]] = {}
        others = False
        for pattern in self.paths:
            *directories, last = [part for part in pattern.split("/") if part]
            if any(map(_is_pattern, directories)):
                others = True
            else:
                found.setdefault("/" + "/".join(directories), []).append(last)
        # With a wildcard in a directory, a change of any directory may matter.
        return {} if others else found

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The device at the same path: the target of a link or the numbers of a node may be others."""
        now = path_now(host, found.path)
        return found if now == found else now


def matches(
    host: HostRoot, base: str, parts: list[str], follow: dict[tuple[str, str], None]
) -> Iterator[tuple[str, os.stat_result]]:
    """Each path below `base` that matches the remaining components `parts`, with its status.

    The directories that decide are added to `follow`.
    """
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
    """The device at `path`; None if nothing is there."""
    try:
        return found_at(host, path, host.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def found_at(host: HostRoot, path: str, status: os.stat_result) -> Found:
    """The device at `path`, named after the last component."""
    node = node_of(status)
    attrs: Mapping[str, str] = _NONE
    if node is not None:
        attrs = {"type": node[0], "major": str(node[1]), "minor": str(node[2])}
    target = host.real(path)
    if target != path:
        attrs = {**attrs, "target": target}
    return Found(path.rpartition("/")[2], path, attrs, rdev=node, nodes=(path,) if node else ())


def _is_pattern(part: str) -> bool:
    return any(character in part for character in "*?[")


@lru_cache(maxsize=256)
def compiled(part: str) -> re.Pattern[str]:
    """The expression of one component of a pattern. As in a shell, a leading wildcard matches no dot."""
    dots = "" if part.startswith(".") else r"(?!\.)"
    return re.compile(dots + fnmatch.translate(part))
