"""Tables of holders and holdings: `terminal` draws them on a terminal, a pipe gets plain aligned text.

Ids are shortened in the middle to ID_LIMIT. A terminal shows other texts whole: short forms are used if the
table is wider than the terminal, then long texts continue on the next line, up to 300 characters. Control
characters, bidirectional marks and stacked combining marks from outside are spelled out.
"""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TextIO

from rich.cells import cell_len

from exporter.cli.select import (
    CPU,
    CpusEntry,
    HolderQuery,
    MappingAnswer,
    MappingDocument,
    NodeDocument,
    claimed_device,
)
from exporter.views.schema import ClaimEntry, ClaimHolderEntry, DeviceEntry, HolderEntry
from exporter.views.wording import clock_time, lasting, ranges, rfc3339, spelled
from runtime.text import shortened

_COLUMNS: Final = ("RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER", "SINCE")
_WIDE_COLUMNS: Final = (*_COLUMNS, "PARENT", "NUMA", "UID", "WORKLOAD", "CLAIM", "REASON")
_COMBINING: Final = 3
"""Combining marks on one character that are shown; more of them reach into other lines."""


class Cell(NamedTuple):
    """A text, and a shorter form ("" for none)."""

    text: str
    short: str = ""

    @classmethod
    def raw(cls, text: str, short: str = "") -> "Cell":
        """A cell of texts from outside, made harmless."""
        return cls(_harmless(text), _harmless(short))

    @classmethod
    def of_id(cls, text: str) -> "Cell":
        """A cell of a device's id, made harmless and shortened."""
        return cls(shortened(_harmless(text)))


NO_CELL: Final = Cell("")
Row = tuple[Cell, ...]


def _harmless(raw: str) -> str:
    """`raw` with control characters, bidirectional marks and stacked combining marks spelled out."""
    text = spelled(raw)
    if text.isascii():
        return text
    parts: list[str] = []
    stacked = _COMBINING
    for character in text:
        stacked = stacked + 1 if unicodedata.category(character) in {"Mn", "Me"} else 0
        parts.append(character if stacked <= _COMBINING else f"\\U{ord(character):08x}")
    return "".join(parts)


def coloured(out: TextIO) -> bool:
    """Whether `out` gets colours, as https://no-color.org and https://bixense.com/clicolors have it."""
    environment = os.environ
    colours = out.isatty() and environment.get("TERM") != "dumb" and environment.get("CLICOLOR") != "0"
    forced = environment.get("CLICOLOR_FORCE", "0") not in {"", "0"}
    return (colours or forced) and not environment.get("NO_COLOR")


def print_table(names: Sequence[str], rows: Sequence[Row], out: TextIO, *, unlimited: bool = False) -> None:
    """Write a table on `out`."""
    if out.isatty() or coloured(out):
        from exporter.cli.terminal import drawn_lines  # noqa: PLC0415 -- imports rich, a pipe needs none

        lines = drawn_lines(names, rows, out, unlimited=unlimited)
    else:
        texts = [tuple(names), *(tuple(cell.text for cell in row) for row in rows)]
        widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
        lines = [
            "  ".join(text + " " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True))
            for line in texts
        ]
    out.writelines(f"{line.rstrip()}\n" for line in lines)


def columns(answer: MappingAnswer, *, wide: bool) -> tuple[str, ...]:
    """The names of the columns. A fleet's table begins with distinguishing labels and the node; Prometheus
    has only the time at which an exporter first saw a holder.
    """
    own: tuple[str, ...] = _WIDE_COLUMNS if wide else _COLUMNS
    if not answer.fleet:
        return own
    own = tuple("FIRST SEEN" if name == "SINCE" else name for name in own)
    return (*(name.upper() for name in _labels(answer)), "NODE", *own)


def _labels(answer: MappingAnswer) -> list[str]:
    return sorted({name for node in answer.nodes for name in node.labels})


def rows(answer: MappingAnswer, query: HolderQuery, *, wide: bool) -> list[Row]:
    """One row for each holder (only the pod's, if `query` has one) and for each free device. Exclusive CPUs
    have rows if `query` has a pod or a resource.
    """
    labels = _labels(answer)
    resources = {device.resource for node in answer.nodes for device in node.devices}
    endings = Counter(name.rpartition("/")[2] for name in resources)
    short = {name: end for name in resources if endings[end := name.rpartition("/")[2]] == 1}
    found: list[Row] = []
    for node in answer.nodes:
        prefix: Row = ()
        if answer.fleet:
            places = (*(node.labels.get(name, "") for name in labels), node.node)
            prefix = tuple(map(Cell.raw, places))
        found.extend(
            (*prefix, *(row if wide else row[: len(_COLUMNS)]))
            for row in _node_rows(node, query, short, wide=wide, exact=not answer.fleet)
        )
    return found


def _node_rows(
    node: NodeDocument, query: HolderQuery, short: Mapping[str, str], *, wide: bool, exact: bool
) -> Iterator[Row]:
    pod, now = query.pod, _now(node)
    for device in node.devices:
        resource = Cell.raw(device.resource, short.get(device.resource, ""))
        health = Cell.raw(_reason(device, node))
        holders: list[HolderEntry | None] = [
            h for h in device.holders if pod is None or pod.holds(h.namespace, h.pod)
        ]
        for holder in holders or [None]:
            yield _device_row(device, resource, holder, _since(holder, now, wide=wide, exact=exact), health)
    for claim in node.claims:
        for claimer in claim.holders:
            if pod is None or pod.holds(claimer.namespace, claimer.pod):
                yield _claim_row(claim, claimer, _since(claimer, now, wide=wide, exact=exact))
    if pod is not None or query.resource:
        yield from map(_cpus_row, node.cpus)


def _device_row(
    device: DeviceEntry, resource: Cell, holder: HolderEntry | None, since: Cell, health: Cell
) -> Row:
    what = (resource, Cell.of_id(device.device), Cell(device_state(device)))
    parent, numa = Cell.of_id(device.parent or ""), Cell(ranges(device.numa_nodes))
    if holder is None:
        return (*what, NO_CELL, NO_CELL, since, parent, numa, NO_CELL, NO_CELL, NO_CELL, health)
    workload = holder.workload
    return (
        *what,
        Cell.raw(f"{holder.namespace}/{holder.pod}"),
        *(Cell.raw(holder.container), since, parent, numa, Cell.raw(holder.pod_uid or "")),
        *(NO_CELL if workload is None else Cell.raw(f"{workload.kind}/{workload.name}"), NO_CELL, health),
    )


def _claim_row(claim: ClaimEntry, holder: ClaimHolderEntry, since: Cell) -> Row:
    return (
        *(Cell.raw(claim.driver), Cell.of_id(claimed_device(claim)), Cell("held")),
        *(Cell.raw(f"{holder.namespace}/{holder.pod}"), Cell.raw(holder.container), since),
        *(NO_CELL, NO_CELL, Cell.raw(holder.pod_uid or ""), NO_CELL),
        *(Cell.raw(f"{holder.claim_namespace}/{holder.claim}"), NO_CELL),
    )


def _cpus_row(entry: CpusEntry) -> Row:
    ids = f"{entry.count} of them" if entry.cpu_ids is None else ranges(entry.cpu_ids)
    return (
        *(Cell(CPU), Cell(ids), Cell("held"), Cell.raw(f"{entry.namespace}/{entry.pod}")),
        *(Cell.raw(entry.container), NO_CELL, NO_CELL, Cell(ranges(entry.numa_nodes))),
        *(Cell.raw(entry.pod_uid or ""), NO_CELL, NO_CELL, NO_CELL),
    )


def _reason(device: DeviceEntry, node: NodeDocument) -> str:
    """Why the device is unhealthy: its plugin's reason, or else the kinds of its anomalies."""
    plugin = device.plugin
    if plugin is not None and plugin.health == "Unhealthy":
        return plugin.reason or "its plugin gives no reason"
    kinds = [
        a.kind for a in node.anomalies if a.resource == device.resource and a.device in {None, device.device}
    ]
    return ", ".join(dict.fromkeys(kinds))


def device_state(device: DeviceEntry) -> str:
    """unhealthy, held or free."""
    if device.healthy is False:
        return "unhealthy"
    return "held" if device.holders else "free"


def _since(holder: HolderEntry | ClaimHolderEntry | None, now: float, *, wide: bool, exact: bool) -> Cell:
    if holder is None or holder.since is None:
        return NO_CELL
    at = unix_time(holder.since)
    if at is None:
        return Cell.raw(holder.since)
    before = "" if holder.since_exact or not exact else "before "
    clock = rfc3339(at) if wide else f"{clock_time(at, now)}Z"
    return Cell(f"{before}{clock} ({lasting(now - at)})", lasting(now - at))


def unix_time(stamp: str | None) -> float | None:
    """Unix time of an RFC 3339 text; None for anything else."""
    try:
        moment = datetime.fromisoformat(stamp or "")
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


def _now(document: MappingDocument) -> float:
    """The present by the exporter's clock: this machine's may differ."""
    return (unix_time(document.taken_at) or 0.0) + max(0.0, document.age_seconds or 0.0)
