"""Where a pod's devices, CPUs and memory lie: a drawing with a box for each NUMA node, and words. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exporter.mapping.model import Container, Device
from exporter.views.links import device_link
from exporter.views.wording import Text, counted, listed, ranges, size, text
from exporter.web.pages.rows import row_key

BOXES: Final = 16
"""NUMA nodes that are drawn; a pod's own come first."""
ITEMS: Final = 48
"""Things drawn in one box."""

_TOP: Final = 34
_ITEM: Final = 30
_GAP: Final = 6
_CELL: Final = 15
_CELLS: Final = 16
_ROWS: Final = 4
_SHOWN: Final = 34


@dataclass(frozen=True, slots=True)
class Cell:
    """One CPU: where it is drawn, and its number."""

    x: int
    y: int
    number: int


@dataclass(frozen=True, slots=True)
class Item:
    """A device, CPUs or memory: `kind` is device, cpus or memory. `y` and `height` in pixels."""

    key: str
    kind: str
    name: Text
    detail: str
    href: str
    y: int
    height: int
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """A NUMA node, or what lies on several, or on nobody knows which. `empty`: nothing of the pod."""

    key: str
    name: str
    kind: str
    items: tuple[Item, ...]
    height: int
    left_out: int

    @property
    def empty(self) -> bool:
        """Whether nothing of the pod is in it."""
        return not self.items


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of one container: `kind` is aligned, split or unknown."""

    key: str
    container: Text
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The drawing and the words; `drawn` is false where nothing is known of any node."""

    boxes: tuple[Box, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def drawn(self) -> bool:
        """Whether there is anything to be seen."""
        return any(box.items for box in self.boxes)


@dataclass(frozen=True, slots=True)
class _Thing:
    kind: str
    name: str
    detail: str
    nodes: tuple[int, ...]
    href: str = ""
    cpus: tuple[int, ...] = ()


def picture(
    containers: Sequence[Container],
    devices: Iterable[Device],
    cpu_nodes: Mapping[int, int],
    nodes: Iterable[int] = (),
) -> Picture:
    """The drawing of a pod's `containers`, of which `devices` are those that it holds. `cpu_nodes` maps CPUs
    to NUMA nodes, `nodes` are all that this machine is known to have.
    """
    held = tuple(devices)
    by_container = {c.holder: _things(c, held, cpu_nodes, several=len(containers) > 1) for c in containers}
    things = [thing for own in by_container.values() for thing in own]
    used = sorted({node for thing in things for node in thing.nodes})
    shown = sorted({*used, *[n for n in sorted(set(nodes)) if n not in used][: max(0, BOXES - len(used))]})
    boxes = [
        _box(f"node-{node}", f"NUMA node {node}", "one", [t for t in things if t.nodes == (node,)])
        for node in shown[:BOXES]
    ]
    across = [thing for thing in things if len(thing.nodes) > 1]
    nowhere = [thing for thing in things if not thing.nodes]
    if across:
        boxes.append(_box("across", "Across several nodes", "across", across))
    if nowhere:
        boxes.append(_box("nowhere", "Node not told", "nowhere", nowhere))
    verdicts = tuple(
        _verdict(container, by_container[container.holder])
        for container in containers
        if by_container[container.holder]
    )
    return Picture(tuple(boxes), verdicts)


def _things(
    container: Container, devices: Iterable[Device], cpu_nodes: Mapping[int, int], *, several: bool
) -> list[_Thing]:
    """What a container has; `several`: it is to be told from others."""
    holder = container.holder
    of = f" of {text(holder.container, limit=30).shown}" if several else ""
    found = [
        _Thing(
            "device",
            device.key.device,
            f"{text(device.key.resource).shown}{of}{_across(device.numa_nodes)}",
            device.numa_nodes,
            device_link(device.key.resource, device.key.device),
        )
        for device in devices
        if holder in device.holders
    ]
    cpus: dict[tuple[int, ...], list[int]] = {}
    for cpu in container.cpu_ids:
        node = cpu_nodes.get(cpu)
        cpus.setdefault(() if node is None else (node,), []).append(cpu)
    found += [
        _Thing(
            "cpus",
            f"{'CPU' if len(own) == 1 else 'CPUs'} {ranges(own)}",
            f"{counted(len(own), 'exclusive CPU')}{of}",
            nodes,
            "",
            tuple(own),
        )
        for nodes, own in sorted(cpus.items())
    ]
    found += [
        _Thing(
            "memory",
            f"{size(m.size_bytes)} {m.memory_type}",
            f"pinned{of}{_across(m.numa_nodes)}",
            m.numa_nodes,
        )
        for m in container.memory
    ]
    return found


def _across(nodes: tuple[int, ...]) -> str:
    return f", on NUMA nodes {ranges(nodes)}" if len(nodes) > 1 else ""


def _box(key: str, name: str, kind: str, things: Sequence[_Thing]) -> Box:
    items: list[Item] = []
    y = _TOP
    for number, thing in enumerate(things[:ITEMS]):
        cells = tuple(
            Cell(10 + _CELL * (i % _CELLS), y + 26 + _CELL * (i // _CELLS), cpu)
            for i, cpu in enumerate(thing.cpus[: _CELLS * _ROWS])
        )
        height = _ITEM + (_CELL * -(-len(cells) // _CELLS) + 2 if cells else 0)
        items.append(
            Item(
                key=row_key("numa", key, str(number), thing.name),
                kind=thing.kind,
                name=text(thing.name, limit=_SHOWN),
                detail=thing.detail,
                href=thing.href,
                y=y,
                height=height,
                cells=cells,
            )
        )
        y += height + _GAP
    left_out = max(0, len(things) - ITEMS)
    return Box(key, name, kind, tuple(items), y + (18 if left_out or not items else 4), left_out)


def _verdict(container: Container, things: Sequence[_Thing]) -> Verdict:
    """Whether a container lies on one node. A device that several nodes reach is no split by itself; memory
    that is taken from several is.
    """
    key = row_key("numa", *container.holder)
    name = text(container.holder.container)
    known = [thing for thing in things if thing.nodes]
    if not known:
        return Verdict(key, name, "unknown", "nobody tells on which NUMA node anything of it lies")
    common = set[int].intersection(*(set(thing.nodes) for thing in known))
    rest = "" if len(known) == len(things) else f"; of {_told(t for t in things if not t.nodes)} nobody tells"
    spread = any(thing.kind == "memory" and len(thing.nodes) > 1 for thing in known)
    if common and not spread:
        node = f"NUMA node {min(common)}"
        what = "everything of it" if len(known) > 1 and not rest else _told(known)
        lies = "lies" if len(known) == 1 or not rest else "lie"
        return Verdict(key, name, "aligned", f"aligned: {what} {lies} on {node}{rest}")
    nodes = sorted({node for thing in known for node in thing.nodes})
    where = "; ".join(f"{_told(own)} on {ranges(at)}" for at, own in sorted(_by_nodes(known).items()))
    return Verdict(
        key, name, "split", f"split over NUMA nodes {listed([str(n) for n in nodes])}: {where}{rest}"
    )


def _by_nodes(things: Iterable[_Thing]) -> dict[tuple[int, ...], list[_Thing]]:
    found: dict[tuple[int, ...], list[_Thing]] = {}
    for thing in things:
        found.setdefault(thing.nodes, []).append(thing)
    return found


def _told(things: Iterable[_Thing]) -> str:
    return listed([text(thing.name, limit=_SHOWN).shown for thing in things], limit=3)
