"""The source `group`: several paths together are one device.

Paths put together into devices: which path of each member goes with which.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import UNSET

from plugin.config.model import Group
from plugin.discovery.glob import GlobSource
from plugin.discovery.host import HostRoot, node_of
from plugin.discovery.source import Findings, Found, Memory
from plugin.names import natural

Key = tuple[str, int]
"""What a group is known by: its leading path, and which use of that path it is; without one, its number."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member: how many groups may have the same path, and whether a group is complete without."""

    limit: int = 1
    optional: bool = False


def leader_of(members: Sequence[Member]) -> int | None:
    """The member whose path says which group it is: the first that is needed, if possible not shared."""
    needed = [index for index, member in enumerate(members) if not member.optional]
    alone = [index for index in needed if members[index].limit == 1]
    return next(iter(alone or needed), None)


def complete(members: Sequence[Member], paths: Sequence[str]) -> bool:
    """Whether a group has all that it needs."""
    return all(path or member.optional for member, path in zip(members, paths, strict=True)) and any(paths)


def assign(
    members: Sequence[Member], present: Sequence[Sequence[str]], before: Mapping[Key, Sequence[str]]
) -> dict[Key, tuple[str, ...]]:
    """The groups of the paths that are `present`, in order, for each member.

    `before` are the groups that there were, each complete once: they keep the paths that are still
    there, and come first in taking free ones. A group that is left is among them as it is, incomplete,
    for as long as its leading path is there; a new one only when it is complete. An empty path: none.
    """
    leader = leader_of(members)
    there = [set(paths) for paths in present]
    groups: dict[Key, list[str]] = {}
    for key, paths in before.items():
        kept = [path if path in there[index] else "" for index, path in enumerate(paths)]
        if any(kept) if leader is None else key[0] in there[leader]:
            groups[key] = kept
    for key in _keys(members, present, leader):
        groups.setdefault(key, [""] * len(members))
    uses = [
        Counter(paths[index] for paths in groups.values() if paths[index]) for index in range(len(members))
    ]
    made: dict[Key, tuple[str, ...]] = {}
    for key, paths in groups.items():
        taken: list[int] = []
        for index, member in enumerate(members):
            if index == leader:
                paths[index] = key[0]
            elif not paths[index] and (path := _free(present[index], uses[index], member.limit)):
                paths[index] = path
                uses[index][path] += 1
                taken.append(index)
        if key in before or complete(members, paths):
            made[key] = tuple(paths)
        else:
            for index in taken:
                uses[index][paths[index]] -= 1
    return made


def _keys(members: Sequence[Member], present: Sequence[Sequence[str]], leader: int | None) -> list[Key]:
    """The groups that there could be, if there is enough of everything."""
    if leader is None:
        return [("", number) for number in range(max(map(len, present)))]
    paths, limit = present[leader], members[leader].limit
    if limit == 1:
        return [(path, 0) for path in paths]
    # All that is needed is shared: as many groups as the member with the most paths has.
    most = max(len(present[index]) for index, member in enumerate(members) if not member.optional)
    return [(path, use) for use in range(limit) for path in paths][:most]


def _free(paths: Sequence[str], uses: Counter[str], limit: int) -> str:
    """The first of the paths that are used least, if one more may use it; empty: none may."""
    least = min(paths, key=lambda path: uses[path], default="")
    return least if least and uses[least] < limit else ""


@dataclass(slots=True, weakref_slot=True)
class _Groups:
    """The groups that there were at the last look."""

    paths: Mapping[Key, Sequence[str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_MEMORY: Final = Memory(_Groups)


class GroupSource:
    """The devices that `written`'s members make."""

    def __init__(self, written: Group) -> None:
        self._patterns = tuple(member.path for member in written.members)
        self._globs = tuple(GlobSource((pattern,)) for pattern in self._patterns)
        self._members = tuple(Member(member.limit, member.optional) for member in written.members)
        self._names = tuple(
            f"member{index}" if member.name is UNSET else member.name
            for index, member in enumerate(written.members)
        )
        self._count = written.count
        self._leader = leader_of(self._members)
        self._memory: _Groups | None = None

    def scan(self, host: HostRoot) -> Findings:
        """The groups that are complete, and, as absent, those that were and are not now."""
        looks = [glob.scan(host) for glob in self._globs]
        present = [{item.path: item for item in look.found} for look in looks]
        self._memory = memory = _MEMORY.of(host, (self._patterns, self._members))
        with memory.lock:
            groups = assign(self._members, [tuple(items) for items in present], memory.paths)
            memory.paths = groups
        found = [
            copy
            for key in sorted(groups, key=lambda key: (natural(key[0]), key[1]))
            for copy in self._copies(self._found(key, groups[key], present))
        ]
        follow = dict.fromkeys(pair for look in looks for pair in look.follow)
        return Findings(tuple(found), tuple(follow), () if found else self._notes(present))

    def _found(self, key: Key, paths: Sequence[str], present: Sequence[Mapping[str, Found]]) -> Found:
        items = [present[index][path] for index, path in enumerate(paths) if path]
        first = items[0] if self._leader is None else present[self._leader][key[0]]
        name = self._name(key)
        attrs = dict(zip(self._names, paths, strict=True))
        nodes = tuple(item.path for item in items if item.rdev is not None)
        absent = ""
        if not complete(self._members, paths):
            missing = [
                p
                for p, m, path in zip(self._patterns, self._members, paths, strict=True)
                if not path and not m.optional
            ]
            absent = f"{missing[0]}: nothing is free of what matches"
        return Found(name, first.path, attrs, absent, rdev=first.rdev, nodes=nodes)

    def _name(self, key: Key) -> str:
        """The leading path below the directory that its pattern names, and which use of it this is."""
        if self._leader is None:
            return str(key[1])
        fixed = self._patterns[self._leader]
        for wildcard in "*?[":
            fixed = fixed.partition(wildcard)[0]
        name = key[0][fixed.rfind("/") + 1 :]
        return name if self._members[self._leader].limit == 1 else f"{name}-{key[1]}"

    def _copies(self, found: Found) -> Iterator[Found]:
        if self._count == 1:
            yield found
        else:
            for number in range(self._count):
                yield replace(found, name=f"{found.name}-{number}")

    def _notes(self, present: Sequence[Mapping[str, Found]]) -> tuple[str, ...]:
        missing = [
            pattern
            for pattern, member, there in zip(self._patterns, self._members, present, strict=True)
            if not there and not member.optional
        ]
        return (f"nothing matches {', '.join(missing or self._patterns)}",)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The group while all its paths that are needed are there; without the others that are gone."""
        attrs = dict(found.attrs)
        nodes: list[str] = []
        for name, member in zip(self._names, self._members, strict=True):
            path = attrs.get(name, "")
            if not path:
                if not member.optional:
                    return found
                continue
            try:
                status = host.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                if not member.optional:
                    return None
                attrs[name] = ""
                continue
            if node_of(status) is not None:
                nodes.append(path)
        if not any(attrs[name] for name in self._names):
            return None
        now = replace(found, attrs=attrs, nodes=tuple(nodes))
        return found if now == found else now
