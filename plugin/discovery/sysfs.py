"""The source `sysfs`: directories that match a pattern and whose files have the expected contents."""

import errno
import re
from collections.abc import Iterable, Iterator
from stat import S_ISDIR
from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from plugin.discovery import selectors
from plugin.discovery.glob import MAX_FOUND, matches
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Candidates, Findings, Found, Mismatch, SourceConfig, selected
from plugin.discovery.sysfs_tree import SysfsDirectory, SysfsTree, children, clean
from plugin.discovery.usb import PORT
from plugin.fields import AttributeName, ConfigStruct, HostGlob, Problem, Regex
from plugin.names import in_order, natural
from runtime.patterns import compiled, fullmatch

_PSEUDO: Final = ("/sys/", "/proc/")
"""File systems without inotify events."""
_SUBSYSTEM: Final = re.compile(r"/sys/(?:bus|class)/([^/*?\[]+)/")


def _relative_problem(path: str) -> str | None:
    if path.startswith("/") or "\0" in path or "**" in path:
        return "expected a path below the device's directory, such as state or ../vendor"
    return None


RelativePath = Annotated[str, Meta(min_length=1, max_length=512, extra={"check": _relative_problem})]
"""A path below a device's directory, or beside it (`../vendor`); of a pattern the first match counts."""
RelativePaths = Annotated[list[RelativePath], Meta(min_length=1, max_length=16)]
"""Alternatives: the first that exists counts."""
Attributes = Annotated[dict[AttributeName, RelativePath | RelativePaths], Meta(max_length=64)]


class SysfsFile(ConfigStruct, frozen=True):
    """A condition on a file, or on the name of a link's target."""

    file: RelativePath
    """The file, below the directory or beside it (`../vendor`)."""
    equals: str | UnsetType = UNSET
    """The expected text, without surrounding white space."""
    one_of: Annotated[list[str], Meta(min_length=1, max_length=256)] | UnsetType = UNSET
    """Possible texts."""
    matches: Regex | UnsetType = UNSET
    """A regular expression for the whole text; its named groups become attributes."""

    def contradictions(self) -> Iterator[Problem]:
        if self.equals is not UNSET and self.one_of is not UNSET:
            yield ("one_of",), "found equals and one_of, expected one of them"


class Sysfs(SourceConfig, frozen=True):
    """Directories of sysfs (or elsewhere) that match a pattern and whose files have the expected contents.

    Named after the path's last component.

    Attributes: one for each named group of `pattern` and `matches`, and for each key of `attrs` and `locate`.

    Nodes: those of the directory and of those below it, down to `depth` levels, by their files `dev`.
    """

    paths: Annotated[list[HostGlob], Meta(min_length=1, max_length=64)]
    """Absolute patterns with `*`, `?` and `[…]`, which match no slash."""
    pattern: Regex | UnsetType = UNSET
    """A regular expression for the whole path."""
    keep: Annotated[list[SysfsFile], Meta(max_length=64)] = []
    """Conditions, all of which must hold."""
    attrs: Attributes = {}
    """Attributes by the file with the value; of a list, the first that exists. The value of a link is the
    name of its target.
    """
    locate: Attributes = {}
    """Attributes that hold host paths of files, for probes and templates; empty if no file exists."""
    depth: Annotated[int, Meta(ge=0, le=4)] = 1
    """Levels below the directory that are searched for device nodes."""
    subsystems: Annotated[list[str], Meta(max_length=16)] = []
    """More subsystems of the kernel whose uevents cause a scan."""

    def contradictions(self) -> Iterator[Problem]:
        for name in [name for name in self.locate if name in self.attrs]:
            yield ("locate", name), "found an attribute that attrs has too"

    def attributes(self) -> frozenset[str]:
        patterns = [self.pattern, *(file.matches for file in self.keep)]
        groups = (frozenset(compiled(pattern).groupindex) for pattern in patterns if pattern is not UNSET)
        return frozenset({*self.attrs, *self.locate}).union(*groups)

    def host_paths(self) -> Iterable[str]:
        return self.paths

    def scan(self, host: HostRoot) -> Findings:
        """The directories, each once, however many patterns match it."""
        sysfs = SysfsTree(host)
        follow: dict[tuple[str, str], None] = {}
        seen: set[str] = set()
        candidates = Candidates()
        of_paths = (_SUBSYSTEM.match(path) for path in self.paths)
        subsystems = {*self.subsystems, *(match[1] for match in of_paths if match is not None)}
        for pattern in self.paths:
            for path, status in matches(host, "", [p for p in pattern.split("/") if p], follow):
                directory = sysfs.directory(path) if S_ISDIR(status.st_mode) else None
                if directory is None or directory.path in seen:
                    continue
                seen.add(directory.path)
                if len(seen) > MAX_FOUND:
                    raise OSError(errno.EFBIG, f"more than {MAX_FOUND} directories match", pattern)
                item = self._found(host, sysfs, path, directory)
                candidates.add(path, item)
                if isinstance(item, Found):
                    subsystems.add(directory.link("subsystem"))
        ordered = sorted(candidates.found, key=lambda item: (natural(item.name), item.path))
        watched = tuple(pair for pair in follow if not f"{pair[0]}/".startswith(_PSEUDO))
        notes: tuple[str, ...] = ()
        if not ordered:
            none = f"none of {len(seen)} directories is kept"
            notes = (none if seen else f"nothing matches {', '.join(self.paths)}",)
        others = candidates.not_selected
        return Findings(tuple(ordered), watched, notes, frozenset(subsystems - {""}), not_selected=others)

    def _found(
        self, host: HostRoot, sysfs: SysfsTree, path: str, directory: SysfsDirectory
    ) -> Found | Mismatch | str:
        attrs: dict[str, str] = {}
        if self.pattern is not UNSET:
            match = fullmatch(self.pattern, path)
            if match is None:
                return Mismatch("pattern", (self.pattern,))
            attrs.update({name: text or "" for name, text in match.groupdict().items()})
        for file in self.keep:
            paths = _expanded(host, directory.path, file.file)
            text = next((text for path in paths if (text := _text(sysfs, path)) is not None), None)
            if text is None:
                return f"keep: {file.file} is not there"
            captured = _matched(file, text)
            if captured is None:
                return Mismatch(f"keep: {file.file}", _wanted(file), (text,))
            attrs.update(captured)
        for name, relative in self.attrs.items():
            texts = (_text(sysfs, path) for path in _expanded(host, directory.path, relative))
            attrs[name] = next((text for text in texts if text is not None), "")
        for name, relative in self.locate.items():
            paths = _expanded(host, directory.path, relative)
            attrs[name] = next((sysfs.real(path) for path in paths if host.exists(path)), "")
        kinds = children(host, sysfs, directory, self.depth)
        nodes = in_order({child.path for child in kinds if child.path})
        name = path.rpartition("/")[2]
        return Found(name, path, attrs, nodes=tuple(nodes), sysfs=directory.path, claim=_claim(directory))

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The directory; None if it is gone or its files no longer have the expected contents."""
        sysfs = SysfsTree(host)
        directory = sysfs.directory(found.path)
        if directory is None or directory.path != found.sysfs:
            return None
        return selected(self._found(host, sysfs, found.path, directory))


def _claim(directory: SysfsDirectory) -> str:
    """PCI functions and USB devices have the same claims as in their own sources."""
    subsystem = directory.link("subsystem")
    if subsystem == "pci" and selectors.ADDRESS.fullmatch(directory.name):
        return f"pci:{directory.name}"
    if subsystem == "usb" and PORT.fullmatch(directory.name):
        return f"usb:{directory.name}"
    return f"sysfs:{directory.path}"


def _matched(file: SysfsFile, text: str) -> dict[str, str] | None:
    """The named groups of a text that meets a condition; None for a text that does not."""
    if file.equals is not UNSET and text != file.equals:
        return None
    if file.one_of is not UNSET and text not in file.one_of:
        return None
    if file.matches is UNSET:
        return {}
    match = fullmatch(file.matches, text)
    return None if match is None else {name: part or "" for name, part in match.groupdict().items()}


def _wanted(file: SysfsFile) -> tuple[str, ...]:
    texts = () if file.one_of is UNSET else file.one_of
    return (*texts, *(text for text in (file.equals, file.matches) if text is not UNSET))


def _text(sysfs: SysfsTree, path: str) -> str | None:
    """The text of a file, or the name of a link's target; None if there is neither."""
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
    """The paths that `relative` matches, in natural order; without wildcards the path itself."""
    for text in [relative] if isinstance(relative, str) else relative:
        if set(text) & set("*?["):
            parts = [part for part in text.split("/") if part not in {"", "."}]
            yield from in_order(path for path, _ in matches(host, base, parts, {}))
        else:
            yield f"{base}/{text}"
