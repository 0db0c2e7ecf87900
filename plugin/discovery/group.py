"""The source `group`: several paths together are one device."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from plugin.discovery.glob import Glob
from plugin.discovery.host import HostRoot, node_of
from plugin.discovery.source import (
    Candidates,
    Findings,
    Found,
    NotSelected,
    Scanner,
    Shared,
    SharedState,
    SourceConfig,
)
from plugin.fields import AttributeName, ConfigStruct, HostGlob, Problem
from plugin.names import natural
from runtime.text import quoted

Key = tuple[str, int]
"""Identifies a group: its leading path and the use of that path; without one, its number."""


class GroupMember(ConfigStruct, frozen=True):
    """Paths of which each device of the group gets one."""

    path: HostGlob
    """Absolute pattern, as in `glob`."""
    name: AttributeName | UnsetType = UNSET
    """The attribute that holds the path; `member0`, `member1` and so on by default."""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """The number of devices that may share one path."""
    optional: bool = False
    """A device is complete without it."""


class Group(SourceConfig, frozen=True):
    """Several paths together are one device: the n-th path of each member makes the n-th device.

    The first required member whose paths are not shared names the devices. A device keeps its paths while
    they exist. When one vanishes, the next free path replaces it; until there is one, the device is absent.

    Attributes: one for each member, its path; empty for an optional member without a path.

    Nodes: the paths that are device nodes.
    """

    members: Annotated[list[GroupMember], Meta(min_length=1, max_length=64)]
    """The parts of each device."""
    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Devices made of each complete group: `name-0`, `name-1`, …"""

    def contradictions(self) -> Iterator[Problem]:
        names = self.names()
        for index, name in enumerate(names):
            if name in names[:index]:
                yield ("members", index, "name"), f"found {quoted(name)}, which another member is called"

    def names(self) -> tuple[str, ...]:
        """The members' attributes."""
        return tuple(
            f"member{index}" if member.name is UNSET else member.name
            for index, member in enumerate(self.members)
        )

    def scanner(self) -> Scanner:
        return GroupScanner(self)

    def attributes(self) -> frozenset[str]:
        return frozenset(self.names())

    def host_paths(self) -> Iterable[str]:
        return [member.path for member in self.members]


def leader_of(members: Sequence[GroupMember]) -> int | None:
    """The member whose path identifies a group: the first required one, preferably with paths of its own."""
    needed = [index for index, member in enumerate(members) if not member.optional]
    alone = [index for index in needed if members[index].limit == 1]
    return next(iter(alone or needed), None)


def complete(members: Sequence[GroupMember], paths: Sequence[str]) -> bool:
    """Whether a group has a path of each required member."""
    return all(path or member.optional for member, path in zip(members, paths, strict=True)) and any(paths)


def assign(
    members: Sequence[GroupMember], present: Sequence[Sequence[str]], before: Mapping[Key, Sequence[str]]
) -> dict[Key, tuple[str, ...]]:
    """Assign the `present` paths of each member, in order, to groups; an empty path means none.

    Groups of `before` keep their paths that still exist and are the first to get free ones. An incomplete
    group of `before` stays while its leading path exists; a new group must be complete.
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


def lacking(
    members: Sequence[GroupMember], present: Sequence[Sequence[str]], groups: Mapping[Key, Sequence[str]]
) -> tuple[tuple[Key, ...], tuple[str, ...]]:
    """The groups that `assign` could not complete, and the patterns of the members that they lack."""
    leader = leader_of(members)
    keys = tuple(key for key in _keys(members, present, leader) if key not in groups)
    patterns = [
        member.path
        for index, member in enumerate(members)
        if index != leader
        and not member.optional
        and not _free(present[index], Counter(paths[index] for paths in groups.values()), member.limit)
    ]
    return keys, tuple(patterns)


def _keys(members: Sequence[GroupMember], present: Sequence[Sequence[str]], leader: int | None) -> list[Key]:
    """The groups that are possible if there are enough paths of each member."""
    if leader is None:
        return [("", number) for number in range(max(map(len, present)))]
    paths, limit = present[leader], members[leader].limit
    if limit == 1:
        return [(path, 0) for path in paths]
    # All required members share paths: there are as many groups as the longest member has paths.
    most = max(len(present[index]) for index, member in enumerate(members) if not member.optional)
    return [(path, use) for use in range(limit) for path in paths][:most]


def _free(paths: Sequence[str], uses: Counter[str], limit: int) -> str:
    """The first of the least used paths, if it may be used once more; otherwise empty."""
    least = min(paths, key=lambda path: uses[path], default="")
    return least if least and uses[least] < limit else ""


_STATE: Final[SharedState[Mapping[Key, tuple[str, ...]]]] = SharedState(dict)
"""The groups of the last scan."""


class GroupScanner:
    """Combines the members' paths into devices."""

    def __init__(self, config: Group) -> None:
        self._members = tuple(config.members)
        self._names = config.names()
        self._count = config.count
        self._globs = tuple(Glob([member.path]) for member in self._members)
        self._leader = leader_of(self._members)
        self._state: Shared[Mapping[Key, tuple[str, ...]]] | None = None

    def scan(self, host: HostRoot) -> Findings:
        """The complete groups, and as absent those that were complete before."""
        scans = [glob.scan(host) for glob in self._globs]
        present = [{item.path: item for item in each.found} for each in scans]
        self._state = state = _STATE.of(host, self._members)
        paths = [tuple(items) for items in present]
        with state.lock:
            groups = assign(self._members, paths, state.value)
            state.value = groups
        found = [
            copy
            for key in sorted(groups, key=lambda key: (natural(key[0]), key[1]))
            for copy in self._copies(self._found(key, groups[key], present))
        ]
        follow = dict.fromkeys(pair for each in scans for pair in each.follow)
        notes = () if found else self._notes(present)
        others = self._incomplete(paths, groups)
        return Findings(tuple(found), tuple(follow), notes, not_selected=others)

    def _incomplete(
        self, present: Sequence[Sequence[str]], groups: Mapping[Key, Sequence[str]]
    ) -> NotSelected:
        """The groups that lack a member's path, by the names that they would have."""
        keys, patterns = lacking(self._members, present, groups)
        candidates = Candidates()
        for key in keys:
            candidates.add(self._name(key), f"nothing is free of what matches {', '.join(patterns)}")
        return candidates.not_selected

    def _found(self, key: Key, paths: Sequence[str], present: Sequence[Mapping[str, Found]]) -> Found:
        items = [present[index][path] for index, path in enumerate(paths) if path]
        first = items[0] if self._leader is None else present[self._leader][key[0]]
        name = self._name(key)
        attrs = dict(zip(self._names, paths, strict=True))
        nodes = tuple(item.path for item in items if item.rdev is not None)
        absent = ""
        if not complete(self._members, paths):
            missing = [
                member.path
                for member, path in zip(self._members, paths, strict=True)
                if not path and not member.optional
            ]
            absent = f"{missing[0]}: nothing is free of what matches"
        return Found(name, first.path, attrs, absent, rdev=first.rdev, nodes=nodes)

    def _name(self, key: Key) -> str:
        """The leading path below the fixed part of its pattern, with the number of its use if shared."""
        if self._leader is None:
            return str(key[1])
        fixed = self._members[self._leader].path
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
            member.path
            for member, there in zip(self._members, present, strict=True)
            if not there and not member.optional
        ]
        return (f"nothing matches {', '.join(missing or [member.path for member in self._members])}",)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The group while its required paths exist, without optional paths that are gone."""
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
