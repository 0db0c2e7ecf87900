"""The headings of the status page's groups, which count what stands under them. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from exporter.core.model import Device
from exporter.core.state import State
from exporter.web.links import device_link, pod_link
from exporter.web.pages.grouping import Cluster
from exporter.web.pages.rows import UNHEALTHY_HELD, row_key, workload
from exporter.web.pages.sorting import Entry
from exporter.web.words import Text, counted, listed, text


@dataclass(frozen=True, slots=True)
class Header:
    """A group's heading: what `kind` it is (device, pod, free), its name with a part set back before it, its
    page ("" where it has none), what it belongs to, and its rows counted in words.
    """

    key: str
    kind: str
    before: Text | None
    name: Text
    address: str
    of: Text | None
    counts: str
    continued: bool


def header(cluster: Cluster, state: State) -> Header | None:
    """The heading of `cluster`; None where its rows are of no group."""
    if not cluster.key:
        return None
    kind, *names = cluster.key
    key, first = row_key("group", *cluster.key), cluster.every[0]
    if kind == "pod":
        namespace, pod = names
        return Header(
            key=key,
            kind=kind,
            before=text(namespace),
            name=text(pod),
            address=pod_link(namespace, pod),
            of=workload(state.pods, first.holders[0]),
            counts=_by_resource(cluster.every),
            continued=cluster.continued,
        )
    if kind == "free":
        return Header(
            key, kind, None, Text("Held by no pod"), "", None, _by_resource(cluster.every), cluster.continued
        )
    _, name = names
    whole = [e for e in cluster.every if isinstance(e.item, Device) and e.item.key.device == name]
    return Header(
        key=key,
        kind=kind,
        before=None,
        name=text(name),
        address=device_link(*whole[0].item.key[:2]) if whole else _behind(first, name),
        of=None,
        counts=f"{_by_resource(cluster.every)}: {_by_state(cluster.every, state)}",
        continued=cluster.continued,
    )


def _behind(first: Entry, name: str) -> str:
    """The page of what is behind shares: it is no device of its own, but explained as one is."""
    item = first.item
    return device_link(item.key.resource, name) if isinstance(item, Device) else ""


def _by_resource(entries: Iterable[Entry]) -> str:
    """`3 devices of nvidia.com/gpu, 1 of example.com/nic`"""
    counts = Counter(
        entry.item.key.resource if isinstance(entry.item, Device) else entry.item.key.driver
        for entry in entries
    )
    told = [f"{number} of {text(name).shown}" for name, number in sorted(counts.items())]
    first = next(iter(sorted(counts.items())))
    told[0] = f"{counted(first[1], 'device')} of {text(first[0]).shown}"
    return listed(told, limit=4)


def _by_state(entries: Iterable[Entry], state: State) -> str:
    counts = Counter(_state(entry, complete=state.snapshot.complete) for entry in entries)
    return " · ".join(
        f"{counts[name]} {name}" for name in (UNHEALTHY_HELD, "unhealthy", "held", "free") if counts[name]
    )


def _state(entry: Entry, *, complete: bool) -> str:
    item = entry.item
    if complete and isinstance(item, Device) and not item.allocatable:
        return UNHEALTHY_HELD if item.holders else "unhealthy"
    return "held" if item.holders else "free"
