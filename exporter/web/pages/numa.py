"""Where a pod's devices, CPUs and memory are: a drawing with a box for each NUMA node, and words. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exporter.mapping.model import Container, Device
from exporter.views.links import device_link
from exporter.views.wording import Text, counted, listed, ranges, size, text
from exporter.web.pages.parts import row_key

BOXES: Final = 16
"""NUMA nodes in the drawing; the pod's own come first."""
ITEMS: Final = 48
"""Items in one box."""

_TOP: Final = 34
_ITEM: Final = 30
_GAP: Final = 6
_CELL: Final = 15
_CELLS: Final = 16
_ROWS: Final = 4
_SHOWN: Final = 34


@dataclass(frozen=True, slots=True)
class NumaItem:
    """A device, CPUs or memory (`kind`: device, cpus, memory) of a container, and its NUMA nodes."""

    kind: str
    name: str
    detail: str
    nodes: tuple[int, ...]
    href: str = ""
    cpus: tuple[int, ...] = ()

    @property
    def shown(self) -> Text:
        """The name, cut to the width of a box."""
        return text(self.name, limit=_SHOWN)


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """An item in a box: `y` and `height` in pixels; `cells` are its CPUs (x, y, number)."""

    key: str
    item: NumaItem
    y: int
    height: int
    cells: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class NumaBox:
    """A NUMA node, the items on several nodes, or those on an unknown node; `left_out` items do not fit."""

    key: str
    name: str
    kind: str
    items: tuple[PlacedItem, ...]
    height: int
    left_out: int


@dataclass(frozen=True, slots=True)
class Alignment:
    """Whether a container is on one NUMA node: `kind` is aligned, split or unknown; why, in `words`."""

    key: str
    container: Text
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class NumaPicture:
    """The drawing and the words."""

    boxes: tuple[NumaBox, ...]
    verdicts: tuple[Alignment, ...]

    @property
    def drawn(self) -> bool:
        """Whether any box has an item."""
        return any(box.items for box in self.boxes)


def numa_picture(
    containers: Sequence[Container],
    devices: Iterable[Device],
    cpu_nodes: Mapping[int, int],
    nodes: Iterable[int] = (),
) -> NumaPicture:
    """The drawing of a pod's `containers`, which hold `devices`. `cpu_nodes` maps CPUs to NUMA nodes, `nodes`
    are the machine's known nodes.
    """
    held = tuple(devices)
    items_of = {c.holder: _items(c, held, cpu_nodes, several=len(containers) > 1) for c in containers}
    items = [item for own in items_of.values() for item in own]
    used = sorted({node for item in items for node in item.nodes})
    others = [node for node in sorted(set(nodes)) if node not in used][: max(0, BOXES - len(used))]
    boxes = [
        _box(f"node-{node}", f"NUMA node {node}", "one", [t for t in items if t.nodes == (node,)])
        for node in sorted({*used, *others})[:BOXES]
    ]
    across = [item for item in items if len(item.nodes) > 1]
    nowhere = [item for item in items if not item.nodes]
    if across:
        boxes.append(_box("across", "Across several nodes", "across", across))
    if nowhere:
        boxes.append(_box("nowhere", "Unknown node", "nowhere", nowhere))
    verdicts = (_alignment(c, items_of[c.holder]) for c in containers if items_of[c.holder])
    return NumaPicture(tuple(boxes), tuple(verdicts))


def _items(
    container: Container, devices: Iterable[Device], cpu_nodes: Mapping[int, int], *, several: bool
) -> list[NumaItem]:
    """What a container has; with `several` containers, details name it."""
    holder = container.holder
    of = f" of {text(holder.container, limit=30).shown}" if several else ""
    found = [
        NumaItem(
            "device",
            device.key.device,
            f"{text(device.key.resource).shown}{of}{_across(device.numa_nodes)}",
            device.numa_nodes,
            device_link(*device.key),
        )
        for device in devices
        if holder in device.holders
    ]
    cpus: dict[tuple[int, ...], list[int]] = {}
    for cpu in container.cpu_ids:
        node = cpu_nodes.get(cpu)
        cpus.setdefault(() if node is None else (node,), []).append(cpu)
    for nodes, own in sorted(cpus.items()):
        name, detail = (
            f"{'CPU' if len(own) == 1 else 'CPUs'} {ranges(own)}",
            counted(len(own), "exclusive CPU"),
        )
        found.append(NumaItem("cpus", name, f"{detail}{of}", nodes, cpus=tuple(own)))
    for m in container.memory:
        name = f"{size(m.size_bytes)} {m.memory_type}"
        found.append(NumaItem("memory", name, f"pinned{of}{_across(m.numa_nodes)}", m.numa_nodes))
    return found


def _across(nodes: tuple[int, ...]) -> str:
    return f", on NUMA nodes {ranges(nodes)}" if len(nodes) > 1 else ""


def _box(key: str, name: str, kind: str, items: Sequence[NumaItem]) -> NumaBox:
    placed: list[PlacedItem] = []
    y = _TOP
    for number, item in enumerate(items[:ITEMS]):
        cells = tuple(
            (10 + _CELL * (i % _CELLS), y + 26 + _CELL * (i // _CELLS), cpu)
            for i, cpu in enumerate(item.cpus[: _CELLS * _ROWS])
        )
        height = _ITEM + (_CELL * -(-len(cells) // _CELLS) + 2 if cells else 0)
        placed.append(PlacedItem(row_key("numa", key, str(number), item.name), item, y, height, cells))
        y += height + _GAP
    left_out = max(0, len(items) - ITEMS)
    return NumaBox(key, name, kind, tuple(placed), y + (18 if left_out or not placed else 4), left_out)


def _alignment(container: Container, items: Sequence[NumaItem]) -> Alignment:
    """Whether a container is on one node. A device that several nodes reach does not split it; memory from
    several nodes does.
    """
    key, name = row_key("numa", *container.holder), text(container.holder.container)
    known = [item for item in items if item.nodes]
    if not known:
        return Alignment(key, name, "unknown", "the NUMA nodes of its devices, CPUs and memory are unknown")
    common = set[int].intersection(*(set(item.nodes) for item in known))
    unknown = [item for item in items if not item.nodes]
    rest = f"; unknown: {_names(unknown)}" if unknown else ""
    spread = any(item.kind == "memory" and len(item.nodes) > 1 for item in known)
    if common and not spread:
        named = f"{_names(known)} {'is' if len(known) == 1 else 'are'}"
        what = "everything is" if len(known) > 1 and not rest else named
        return Alignment(key, name, "aligned", f"aligned: {what} on NUMA node {min(common)}{rest}")
    nodes = sorted({node for item in known for node in item.nodes})
    by_nodes: dict[tuple[int, ...], list[NumaItem]] = {}
    for item in known:
        by_nodes.setdefault(item.nodes, []).append(item)
    where = "; ".join(f"{_names(own)} on {ranges(at)}" for at, own in sorted(by_nodes.items()))
    return Alignment(
        key, name, "split", f"split over NUMA nodes {listed([str(n) for n in nodes])}: {where}{rest}"
    )


def _names(items: Iterable[NumaItem]) -> str:
    return listed([item.shown.shown for item in items], limit=3)
