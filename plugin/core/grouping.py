"""Paths put together into devices: which path of each member goes with which."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
