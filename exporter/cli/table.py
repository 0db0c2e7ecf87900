"""Tables of holders and holdings: `terminal` draws them on a terminal, a pipe gets plain aligned text.

Ids are shortened in the middle to ID_LIMIT. Control characters, bidirectional marks and stacked combining
marks from outside are spelled out.
"""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TextIO

from rich.cells import cell_len

from exporter.cli.common import OutputFlags, claims_of, taints_of, unconfirmed
from exporter.cli.select import (
    CPU,
    CpusEntry,
    HolderQuery,
    MappingAnswer,
    NodeDocument,
    is_alternative,
    is_free,
    knows_free,
)
from exporter.views.schema import (
    AnomaliesDocument,
    AnomalyEntry,
    DeviceEntry,
    Envelope,
    HolderEntry,
)
from exporter.views.wording import (
    clock_time,
    count_states,
    counted,
    lasting,
    listed,
    ranges,
    rfc3339,
    spelled,
)
from runtime.text import shortened, visible

_COLUMNS: Final = ("RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER", "SINCE")
_WIDE_COLUMNS: Final = (*_COLUMNS, "PARENT", "NUMA", "UID", "WORKLOAD", "CLAIM", "REQUESTED AS", "REASON")
_REASON_LIMIT: Final = 80
"""Characters of a reason; -o wide has all."""
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


class Table(NamedTuple):
    """The names of the columns, the rows, and a line with counts."""

    names: tuple[str, ...]
    rows: Sequence[Row]
    counts: str = ""


def print_table(table: Table, out: TextIO, output: OutputFlags) -> None:
    """Write a table on `out`, and its counts after an empty line."""
    names, rows, counts = table
    if out.isatty() or coloured(out):
        from exporter.cli.terminal import drawn_lines  # noqa: PLC0415 -- imports rich, a pipe needs none

        lines = drawn_lines(names, rows, out, unlimited=output.wide, headers=not output.no_headers)
    else:
        headers = [] if output.no_headers else [names]
        texts = [*headers, *(tuple(cell.text for cell in row) for row in rows)]
        widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
        lines = [
            "  ".join(text + " " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True))
            for line in texts
        ]
    closing = ["", counts] if counts and not output.no_headers else []
    out.writelines(f"{line.rstrip()}\n" for line in (*lines, *closing))


class SortedRow(NamedTuple):
    """A row, and what --sort-by compares: a device's id, a pod ("" for none), and unix time."""

    row: Row
    device: str
    pod: str
    since: float | None

    def key(self, sort_by: str) -> tuple[object, ...]:
        """The sort key: rows without a pod or a start come last, and numbers within ids count as numbers."""
        match sort_by:
            case "since":
                return self.since is None, self.since or 0.0
            case "pod":
                return not self.pod, self.pod
            case _:
                parts = re.split(r"([0-9]{1,18})", self.device)
                return tuple((int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts))


def sorted_rows(found: Iterable[SortedRow], sort_by: str | None) -> list[Row]:
    """The rows in the order of --sort-by; None leaves them as they are."""
    return [one.row for one in (sorted(found, key=lambda one: one.key(sort_by)) if sort_by else found)]


def holders_table(
    answer: MappingAnswer, query: HolderQuery, *, wide: bool = False, sort_by: str | None = None
) -> Table:
    """One row for each holder (only the pod's, if `query` has one) and for each free device. Exclusive CPUs
    have rows if `query` has a pod or a resource.

    A fleet's table begins with distinguishing labels and the node; Prometheus has only the time at which an
    exporter first saw a holder. The narrow table has reasons if a device is unhealthy.
    """
    labels = sorted({name for node in answer.nodes for name in node.labels})
    names: tuple[str, ...] = _WIDE_COLUMNS
    if answer.fleet:
        names = (*(name.upper() for name in labels), "NODE", *names)
        names = tuple("FIRST SEEN" if name == "SINCE" else name for name in names)
    rows = sorted_rows(_rows(answer, labels, query, wide=wide), sort_by)
    if not wide:
        base = len(names) - len(_WIDE_COLUMNS) + len(_COLUMNS)
        reasons = any(row[-1].text for row in rows)
        names = (*names[:base], *names[-1:] * reasons)
        rows = [(*row[:base], *row[-1:] * reasons) for row in rows]
    return Table(names, rows, _counts(answer, cpus=_shows_cpus(query)))


def _counts(answer: MappingAnswer, *, cpus: bool) -> str:
    """`4 devices: 2 held, 1 free, 1 unavailable; 2 exclusive CPUs`. Alternatives are counted apart."""
    every = [device for node in answer.nodes for device in node.devices]
    devices = [device for device in every if not is_alternative(device)]
    held = [device for device in devices if device.holders]
    others = Counter(device_state(device) for device in devices if not device.holders)
    states = count_states(
        held=len(held),
        held_unhealthy=sum(device.healthy is False for device in held),
        free=others["free"] if any(map(knows_free, devices)) else None,
        unavailable=sum(others[state] for state in ("unhealthy", "reserved", "unavailable")),
        alternatives=len(every) - len(devices),
    )
    unknown = f", {others['unknown']} unknown" if others["unknown"] else ""
    counts = [f"{counted(len(devices), 'device')}: {states}{unknown}"] if every else []
    if exclusive := sum(entry.count for node in answer.nodes for entry in node.cpus) if cpus else 0:
        counts.append(counted(exclusive, "exclusive CPU"))
    return "; ".join(counts)


def _rows(
    answer: MappingAnswer, labels: Sequence[str], query: HolderQuery, *, wide: bool
) -> Iterator[SortedRow]:
    resources = {device.resource for node in answer.nodes for device in node.devices}
    endings = Counter(name.rpartition("/")[2] for name in resources)
    short = {name: end for name in resources if endings[end := name.rpartition("/")[2]] == 1}
    for node in answer.nodes:
        prefix: Row = ()
        if answer.fleet:
            places = (*(node.labels.get(name, "") for name in labels), node.node)
            prefix = tuple(map(Cell.raw, places))
        for found in _node_rows(node, query, short, wide=wide, exact=not answer.fleet):
            yield found._replace(row=(*prefix, *found.row))


def _shows_cpus(query: HolderQuery) -> bool:
    return query.pod is not None or bool(query.resource)


def _node_rows(
    node: NodeDocument, query: HolderQuery, short: Mapping[str, str], *, wide: bool, exact: bool
) -> Iterator[SortedRow]:
    pod, now = query.pod, _now(node)

    def sortable(row: Row, device: str, holder: HolderEntry | CpusEntry | None) -> SortedRow:
        if holder is None:
            return SortedRow(row, device, "", None)
        since = None if isinstance(holder, CpusEntry) else unix_time(holder.since)
        return SortedRow(row, device, f"{holder.namespace}/{holder.pod}", since)

    for device in node.devices:
        resource = Cell.raw(device.resource, short.get(device.resource, ""))
        health = Cell.raw(_reason(device, node) if wide else _short_reason(device, node))
        holders: list[HolderEntry | None] = [
            h for h in device.holders if pod is None or pod.holds(h.namespace, h.pod)
        ]
        for holder in holders or [None]:
            since = _since(holder, now, wide=wide, exact=exact)
            yield sortable(_device_row(device, resource, holder, since, health), device.device, holder)
    if _shows_cpus(query):
        yield from (sortable(_cpus_row(entry), "", entry) for entry in node.cpus)


def _device_row(
    device: DeviceEntry, resource: Cell, holder: HolderEntry | None, since: Cell, health: Cell
) -> Row:
    what = (resource, Cell.of_id(device.device), Cell(f"{device_state(device)}{unconfirmed(holder)}"))
    parent, numa = Cell.of_id(device.parent or ""), Cell(ranges(device.numa_nodes))
    if holder is None:
        return (*what, NO_CELL, NO_CELL, since, parent, numa, *[NO_CELL] * 4, health)
    workload = holder.workload
    return (
        *what,
        Cell.raw(f"{holder.namespace}/{holder.pod}"),
        *(Cell.raw(holder.container), since, parent, numa, Cell.raw(holder.pod_uid or "")),
        NO_CELL if workload is None else Cell.raw(f"{workload.kind}/{workload.name}"),
        *(Cell.raw(claims_of(device, holder)), Cell.raw(_asked_as(device, holder)), health),
    )


def _asked_as(device: DeviceEntry, holder: HolderEntry) -> str:
    """What `holder` asked for, where the resource does not say so."""
    return "" if holder.requested_as == device.resource else holder.requested_as or ""


def _cpus_row(entry: CpusEntry) -> Row:
    ids = counted(entry.count, "CPU") if entry.cpu_ids is None else ranges(entry.cpu_ids)
    return (
        *(Cell(CPU), Cell(ids), Cell("held"), Cell.raw(f"{entry.namespace}/{entry.pod}")),
        *(Cell.raw(entry.container), NO_CELL, NO_CELL, Cell(ranges(entry.numa_nodes))),
        *(Cell.raw(entry.pod_uid or ""), *[NO_CELL] * 4),
    )


def _reason(device: DeviceEntry, node: NodeDocument) -> str:
    """Why the device is unhealthy: no longer offered, its plugin's reason, its taints, or its anomalies."""
    gone = unix_time(device.no_longer_offered_since)
    if gone is not None:
        return f"no longer offered since {clock_time(gone, _now(node))}Z"
    plugin = device.plugin
    if plugin is not None and plugin.health == "Unhealthy":
        return plugin.reason or "its plugin gives no reason"
    if taints := taints_of(device):
        return ", ".join(taints)
    kinds = [
        a.kind
        for a in node.anomalies
        if a.resource == device.resource
        and (a.device == device.device or (a.device is None and a.kind != "no_longer_offered"))
    ]
    return ", ".join(dict.fromkeys(kinds))


def _short_reason(device: DeviceEntry, node: NodeDocument) -> str:
    """The reason of an unhealthy device for the narrow table."""
    if device.healthy is not False:
        return ""
    return visible(spelled(_reason(device, node)), _REASON_LIMIT)


def device_state(device: DeviceEntry) -> str:
    """unhealthy, held, alternative, free, reserved for a claim without a container, unavailable (Prometheus
    does not say why), or unknown where only held devices are known.
    """
    if device.healthy is False:
        return "unhealthy"
    if device.holders:
        return "held"
    if is_alternative(device):
        return "alternative"
    if is_free(device):
        return "free"
    if device.free is None:
        return "unknown"
    return "unavailable" if device.claimed is None else "reserved"


def _since(holder: HolderEntry | None, now: float, *, wide: bool, exact: bool) -> Cell:
    if holder is None:
        return NO_CELL
    before = "" if holder.since_exact or not exact else "before "
    return _time_cell(holder.since, now, wide=wide, before=before)


def _time_cell(stamp: str | None, now: float, *, wide: bool, before: str = "") -> Cell:
    at = unix_time(stamp)
    if at is None:
        return Cell.raw(stamp or "")
    clock = rfc3339(at) if wide else f"{clock_time(at, now)}Z"
    return Cell(f"{before}{clock} ({lasting(now - at)})", lasting(now - at))


_ANOMALY_COLUMNS: Final = ("KIND", "RESOURCE", "DEVICE", "NAMESPACE/POD", "SINCE", "EVIDENCE")
_WIDE_ANOMALY_COLUMNS: Final = (*_ANOMALY_COLUMNS[:-1], "CONTAINER", "UID", "NUMA", "EVIDENCE")
_EVIDENCE_LIMIT: Final = 200
"""Characters of the evidence; -o wide has all."""


def anomalies_table(document: AnomaliesDocument, *, wide: bool = False, sort_by: str | None = None) -> Table:
    """One row for each anomaly. Where several devices or pods take part, the first one and their number."""
    now = _now(document)
    found = [_anomaly_row(entry, now, wide=wide) for entry in document.anomalies]
    kinds = Counter(entry.kind for entry in document.anomalies)
    counts = ", ".join(f"{count} {spelled(kind)}" for kind, count in sorted(kinds.items()))
    names = _WIDE_ANOMALY_COLUMNS if wide else _ANOMALY_COLUMNS
    total = counted(len(found), "anomaly", "anomalies")
    return Table(names, sorted_rows(found, sort_by), f"{total}: {counts}")


def _anomaly_row(entry: AnomalyEntry, now: float, *, wide: bool) -> SortedRow:
    holder = entry.holder
    pods = [f"{one.namespace}/{one.pod}" for one in (entry.pods if holder is None else (holder,))]
    devices = entry.devices if entry.device is None else (entry.device,)
    resource = entry.resource or ""
    since = _time_cell(entry.since, now, wide=wide)
    evidence = spelled(entry.evidence)
    named = (
        *(Cell.raw(entry.kind), Cell.raw(resource, resource.rpartition("/")[2])),
        *(Cell(listed([Cell.of_id(device).text for device in devices], 1)), Cell.raw(listed(pods, 1)), since),
    )
    row: Row = (*named, Cell.raw(visible(evidence, _EVIDENCE_LIMIT)))
    if wide:
        container, uid = ("", "") if holder is None else (holder.container, holder.pod_uid or "")
        numa = Cell(ranges(entry.numa_nodes))
        row = (*named, Cell.raw(container), Cell.raw(uid), numa, Cell.raw(evidence))
    return SortedRow(row, "".join(devices[:1]), "".join(pods[:1]), unix_time(entry.since))


def unix_time(stamp: str | None) -> float | None:
    """Unix time of an RFC 3339 text; None for anything else."""
    try:
        moment = datetime.fromisoformat(stamp or "")
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


def _now(document: Envelope) -> float:
    """The present by the exporter's clock: this machine's may differ."""
    return (unix_time(document.taken_at) or 0.0) + max(0.0, document.age_seconds or 0.0)
