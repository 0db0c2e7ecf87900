"""What Allocate answers, against the host as it is at this moment. Nothing here writes, but `make`."""

import errno
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from plugin.config.plan import ResourcePlan
from plugin.devices.allocation import ContainerAnswer, Refusal, RefusedError, Request, answer, unavailable
from plugin.devices.cdi import Edits
from plugin.devices.device import Device
from plugin.devices.rendering import Mount, Node, RenderError
from plugin.discovery.host import HostRoot, os_problem
from plugin.serving.scan import DeviceScanner
from runtime.config_file import quoted


@dataclass(frozen=True, slots=True)
class Given:
    """The answers, one for each request, and the devices in them as they are now, by id.

    `dropped`: optional paths that the host does not have and that were left out, for each request.
    """

    answers: tuple[ContainerAnswer, ...]
    devices: Mapping[str, Device]
    dropped: tuple[tuple[str, ...], ...]


def answers(plan: ResourcePlan, scanner: DeviceScanner, host: HostRoot, requests: Sequence[Request]) -> Given:
    """What each container would get. Blocking. Raises RefusedError for all where one cannot be served.

    A device node that is missing is worth a refusal: the container runtime would refuse the container,
    again and again, in words of its own. A mount is not: runtimes make a missing directory.
    """
    with refused(plan, "the host"):
        present = _resolved(plan, scanner, requests)
    rendered = [answer(plan, asked.ids, [present[d.id] for d in asked.devices]) for asked in requests]
    with refused(plan, "allocate.devices"):
        fitted = [_fit(host, made) for made in rendered]
        refuse_missing(plan, (path for _, missing, _ in fitted for path in missing))
    return Given(
        tuple(made for made, _, _ in fitted), present, tuple(tuple(dropped) for _, _, dropped in fitted)
    )


def _resolved(plan: ResourcePlan, scanner: DeviceScanner, requests: Sequence[Request]) -> dict[str, Device]:
    devices = {device.id: device for asked in requests for device in asked.devices}
    resolved = scanner.resolve(tuple(devices.values()))
    if resolved.faults:
        raise unavailable(plan, [f"{quoted(i)} is unhealthy ({reason})" for i, reason in resolved.faults])
    return {device.id: device for device in resolved.devices}


def _fit(host: HostRoot, made: ContainerAnswer) -> tuple[ContainerAnswer, list[str], list[str]]:
    """(the answer without what is optional and not there, nodes that should be there, what was dropped)."""
    nodes, missing = _nodes(host, made.devices)
    mounts, dropped = _mounts(host, made.mounts)
    return (
        replace(made, devices=nodes, mounts=mounts),
        [node.host for node in missing if not node.optional and _shows(host, node.host)],
        [*(node.host for node in missing if node.optional), *dropped],
    )


def refuse_missing(plan: ResourcePlan, paths: Iterable[str]) -> None:
    """Raises RefusedError that names the device nodes at `paths`, if there are any."""
    missing = [f"the host has no {quoted(path)}" for path in dict.fromkeys(paths)]
    if missing:
        raise unavailable(plan, missing)


@contextmanager
def refused(plan: ResourcePlan, place: str) -> Generator[None]:
    """What fails within refuses the allocation, in words that say where."""
    try:
        yield
    except RenderError as error:
        raise RefusedError(Refusal.INTERNAL, f"{plan.name}: {error}") from None
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        refusal = Refusal.RESOURCE_EXHAUSTED if full else Refusal.FAILED_PRECONDITION
        raise RefusedError(refusal, f"{plan.name}: {place}: {os_problem(error)}") from None


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


def named_by(plan: ResourcePlan, made: ContainerAnswer, listed: frozenset[str]) -> ContainerAnswer:
    """The answer without those names of the resource's own CDI specification that are not in it.

    A device that has nothing to add on this host is not: CDI does not allow that.
    """
    if plan.cdi is None:
        return made
    own = f"{plan.cdi.kind}="
    return replace(made, cdi=tuple(n for n in made.cdi if n in listed or not n.startswith(own)))


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
