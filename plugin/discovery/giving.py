"""What Allocate answers, against the host as it is at this moment."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from plugin.core.allocation import ContainerAnswer
from plugin.core.cdi import Edits
from plugin.core.rendering import Mount, Node
from plugin.discovery.host import HostRoot


@dataclass(frozen=True, slots=True)
class Fitted:
    """An answer without the optional things that the host does not have.

    `missing`: device nodes that it has not and that were not optional. `dropped`: the optional ones.
    """

    answer: ContainerAnswer
    missing: tuple[str, ...]
    dropped: tuple[str, ...]


def fit(host: HostRoot, answer: ContainerAnswer) -> Fitted:
    """Leave out what is optional and not there. Blocking. Raises OSError where that cannot be known.

    A device node that is missing is worth a refusal: the container runtime would refuse the container,
    again and again, in words of its own. A mount is not: runtimes make a missing directory.
    """
    nodes, missing_nodes = _nodes(host, answer.devices)
    mounts, missing_mounts = _mounts(host, answer.mounts)
    return Fitted(
        replace(answer, devices=nodes, mounts=mounts),
        missing=tuple(n.host for n in missing_nodes if not n.optional and _shows(host, n.host)),
        dropped=(*(n.host for n in missing_nodes if n.optional), *missing_mounts),
    )


def fit_edits(host: HostRoot, edits: Edits) -> Edits:
    """The edits of a CDI specification without the optional things that the host does not have."""
    if not any(thing.optional for things in (edits.nodes, edits.mounts) for thing in things):
        return edits
    return replace(edits, nodes=_nodes(host, edits.nodes)[0], mounts=_mounts(host, edits.mounts)[0])


def missing_edits(host: HostRoot, edits: Edits) -> tuple[str, ...]:
    """Device nodes among the edits that are not there, and should be."""
    return tuple(
        node.host
        for node in edits.nodes
        if not node.optional and not host.exists(node.host) and _shows(host, node.host)
    )


def make(host: HostRoot, mounts: Iterable[Mount]) -> None:
    """Make what is to be made where nothing is. Raises OSError."""
    for path, kind in {mount.host: mount.create for mount in mounts if mount.create}.items():
        host.make(path, kind)


def _nodes(host: HostRoot, nodes: Iterable[Node]) -> tuple[tuple[Node, ...], list[Node]]:
    """(what is there, or not optional; what is missing)."""
    given: list[Node] = []
    missing: list[Node] = []
    for node in nodes:
        there = host.exists(node.host)
        if there or not node.optional:
            given.append(node)
        if not there:
            missing.append(node)
    return tuple(given), missing


def _mounts(host: HostRoot, mounts: Iterable[Mount]) -> tuple[tuple[Mount, ...], list[str]]:
    given: list[Mount] = []
    dropped: list[str] = []
    for mount in mounts:
        if mount.optional and not host.exists(mount.host):
            dropped.append(mount.host)
        else:
            given.append(mount)
    return tuple(given), dropped


def _shows(host: HostRoot, path: str) -> bool:
    """Whether the host's root shows the part of the host that `path` is in, such as /dev.

    A plugin needs to see no more of the host than it looks for: of what it cannot see nothing follows.
    """
    return host.exists("/" + path.lstrip("/").partition("/")[0])
