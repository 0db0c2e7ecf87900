"""The source `sysfs`: directories that match a pattern, kept where their files say what is wanted."""

import errno
import re
from collections.abc import Iterator
from stat import S_ISDIR
from typing import Final

from msgspec import UNSET

from plugin.config import selectors
from plugin.config.model import Sysfs as Written
from plugin.config.model import SysfsFile
from plugin.discovery.glob import MAX_FOUND, matches
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Findings, Found
from plugin.discovery.sysfs_tree import Directory, Sysfs, children, clean
from plugin.discovery.usb import PORT
from plugin.names import natural
from plugin.patterns import fullmatch

_PSEUDO: Final = ("/sys/", "/proc/")
"""File systems that tell inotify nothing."""
_SUBSYSTEM: Final = re.compile(r"/sys/(?:bus|class)/([^/*?\[]+)/")


class SysfsSource:
    """The directories that `written` selects."""

    def __init__(self, written: Written) -> None:
        self._written = written
        self._subsystems = frozenset(
            [
                *written.subsystems,
                *(found[1] for path in written.paths if (found := _SUBSYSTEM.match(path)) is not None),
            ]
        )

    def scan(self, host: HostRoot) -> Findings:
        """The directories as they are now, each once however many patterns match it."""
        sysfs = Sysfs(host)
        follow: dict[tuple[str, str], None] = {}
        found: dict[str, Found] = {}
        subsystems = set(self._subsystems)
        seen = 0
        for pattern in self._written.paths:
            for path, status in matches(host, "", [p for p in pattern.split("/") if p], follow):
                directory = sysfs.directory(path) if S_ISDIR(status.st_mode) else None
                if directory is None or directory.path in found:
                    continue
                seen += 1
                if seen > MAX_FOUND:
                    raise OSError(errno.EFBIG, f"more than {MAX_FOUND} directories match", pattern)
                item = self._found(host, sysfs, path, directory)
                if item is not None:
                    found[directory.path] = item
                    subsystems.add(directory.link("subsystem"))
        ordered = sorted(found.values(), key=lambda item: (natural(item.name), item.path))
        watched = tuple(pair for pair in follow if not f"{pair[0]}/".startswith(_PSEUDO))
        notes: tuple[str, ...] = ()
        if not found:
            notes = (
                f"none of {seen} directories is kept"
                if seen
                else f"nothing matches {', '.join(self._written.paths)}",
            )
        return Findings(tuple(ordered), watched, notes, frozenset(subsystems - {""}))

    def _found(self, host: HostRoot, sysfs: Sysfs, path: str, directory: Directory) -> Found | None:
        attrs: dict[str, str] = {}
        if self._written.pattern is not UNSET:
            match = fullmatch(self._written.pattern, path)
            if match is None:
                return None
            attrs.update({name: text or "" for name, text in match.groupdict().items()})
        for file in self._written.keep:
            paths = _expanded(host, directory.path, file.file)
            text = next((text for path in paths if (text := _text(sysfs, path)) is not None), None)
            captured = None if text is None else _holds(file, text)
            if captured is None:
                return None
            attrs.update(captured)
        for name, relative in self._written.attrs.items():
            texts = (_text(sysfs, path) for path in _expanded(host, directory.path, relative))
            attrs[name] = next((text for text in texts if text is not None), "")
        for name, relative in self._written.locate.items():
            paths = _expanded(host, directory.path, relative)
            attrs[name] = next((sysfs.real(path) for path in paths if host.exists(path)), "")
        kinds = children(host, sysfs, directory, self._written.depth)
        nodes = sorted({child.path for child in kinds if child.path}, key=natural)
        name = path.rpartition("/")[2]
        return Found(name, path, attrs, nodes=tuple(nodes), sysfs=directory.path, claim=_claim(directory))

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The directory as it is now; None where it is gone or not kept any more."""
        sysfs = Sysfs(host)
        directory = sysfs.directory(found.path)
        if directory is None or directory.path != found.sysfs:
            return None
        return self._found(host, sysfs, found.path, directory)


def _claim(directory: Directory) -> str:
    """PCI functions and USB devices are called as all sources call them; everything else by its directory."""
    subsystem = directory.link("subsystem")
    if subsystem == "pci" and selectors.ADDRESS.fullmatch(directory.name):
        return f"pci:{directory.name}"
    if subsystem == "usb" and PORT.fullmatch(directory.name):
        return f"usb:{directory.name}"
    return f"sysfs:{directory.path}"


def _holds(file: SysfsFile, text: str) -> dict[str, str] | None:
    """What an entry of `keep` captures from a file that is as expected; None for one that is not."""
    if file.equals is not UNSET and text != file.equals:
        return None
    if file.one_of is not UNSET and text not in file.one_of:
        return None
    if file.matches is UNSET:
        return {}
    match = fullmatch(file.matches, text)
    return None if match is None else {name: part or "" for name, part in match.groupdict().items()}


def _text(sysfs: Sysfs, path: str) -> str | None:
    """A file's text, or what a link's target is called; None where there is neither."""
    parent, _, name = path.rpartition("/")
    directory = sysfs.directory(parent)
    if directory is None:
        return None
    target = directory.link(name)
    if target and directory.sub(name) is not None:
        return target
    try:
        return clean(sysfs.read(path))
    except OSError:
        return None


def _expanded(host: HostRoot, base: str, relative: str | list[str]) -> Iterator[str]:
    """The paths that `relative` may mean, in natural order; itself, where it has no wildcards."""
    for text in [relative] if isinstance(relative, str) else relative:
        if set(text) & set("*?["):
            parts = [part for part in text.split("/") if part not in {"", "."}]
            yield from sorted((path for path, _ in matches(host, base, parts, {})), key=natural)
        else:
            yield f"{base}/{text}"
