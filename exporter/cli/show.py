"""The answer as a table or as JSON. Everything from outside is spelled out; JSON is pure ASCII."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, TextIO

import msgspec

from exporter.cli.select import (
    CPU,
    Answer,
    CpusEntry,
    FleetDocument,
    MappingDocument,
    NodeDocument,
    Question,
    Told,
    of_claim,
    of_pod,
)
from exporter.cli.table.draw import cut, lines, table
from exporter.cli.table.fit import Cell, Column
from exporter.cli.table.terminal import Look
from exporter.cli.table.width import tame
from exporter.views.schema import ClaimEntry, ClaimHolderEntry, DeviceEntry, HolderEntry, WorkloadEntry
from exporter.views.wording import clock_time, lasting, ranges, rfc3339, spelled

_NODE: Final = Column("NODE", drop=1, least=8)
_PLAIN: Final = (
    Column("RESOURCE", drop=4, least=8),
    Column("DEVICE", least=10),
    Column("STATE", drop=2),
    Column("NAMESPACE/POD", least=13),
    Column("CONTAINER", drop=5, least=9),
    Column("SINCE", drop=3),
)
_FURTHER: Final = (
    *(Column("PARENT"), Column("NUMA"), Column("UID"), Column("WORKLOAD"), Column("CLAIM")),
    Column("REASON"),
)
"""Of the wide table, which is never made narrower."""


def as_json(document: msgspec.Struct) -> str:
    """The document in the API's shape. What is not ASCII is escaped, for a terminal may act upon it."""
    plain = json.dumps(msgspec.to_builtins(document), indent=2, ensure_ascii=True)
    return plain.replace("\x7f", "\\u007f")


def document_of(answer: Answer) -> msgspec.Struct:
    """The document that says all of `answer`: one node's, or a fleet's."""
    if not answer.fleet:
        return answer.told[0].document
    return FleetDocument(
        prometheus=answer.origin,
        at=rfc3339(answer.at or 0.0),
        notes=answer.notes,
        nodes=tuple(
            NodeDocument(
                **{name: getattr(told.document, name) for name in MappingDocument.__struct_fields__},
                labels=dict(told.labels),
                anomalies=told.anomalies,
            )
            for told in answer.told
        ),
    )


def columns(answer: Answer, *, wide: bool) -> tuple[Column, ...]:
    """The table's columns. A fleet's begin with the node and what tells it from others; since when it is held
    is there when it was first seen, for more is not told.
    """
    own = (*_PLAIN, *(_FURTHER if wide else ()))
    if not answer.fleet:
        return own
    own = tuple(replace(column, name="FIRST SEEN") if column.name == "SINCE" else column for column in own)
    names = _labels(answer)
    return (*(Column(name.upper(), drop=6, least=6) for name in names), _NODE, *own)


def _labels(answer: Answer) -> tuple[str, ...]:
    return tuple(sorted({name for told in answer.told for name in told.labels}))


def rows(answer: Answer, question: Question, *, wide: bool) -> list[tuple[Cell, ...]]:
    """The table's cells: a row for each holder (of the pod only, if one is asked for), one for each device
    that nobody holds. Exclusive CPUs are there where a pod is asked for, or they are.
    """
    names = _labels(answer)
    short = _short(answer)
    found: list[tuple[Cell, ...]] = []
    for told in answer.told:
        place = (*(_cell(told.labels.get(name, "")) for name in names), _cell(told.document.node))
        told_of = _of_node(told, question, short, wide=wide, fleet=answer.fleet)
        found.extend((*place, *cells) if answer.fleet else cells for cells in told_of)
    return found


def _short(answer: Answer) -> Mapping[str, str]:
    """The part after its slash of each resource, where no other one ends so."""
    names = {device.resource for told in answer.told for device in told.document.devices}
    counts = Counter(name.rpartition("/")[2] for name in names)
    return {name: last for name in names if counts[last := name.rpartition("/")[2]] == 1}


def _of_node(
    told: Told, question: Question, short: Mapping[str, str], *, wide: bool, fleet: bool
) -> Iterator[tuple[Cell, ...]]:
    document = told.document
    now = _now(document)
    keep = len(_PLAIN) + (len(_FURTHER) if wide else 0)
    for device in document.devices:
        reason = _reason(device, told)
        holders: list[HolderEntry | None] = [
            h for h in device.holders if question.pod is None or of_pod(h.namespace, h.pod, question.pod)
        ]
        for holder in holders or [None]:
            since = _since(holder, now, wide=wide, exact=not fleet)
            yield _row(device, holder, since, reason, short.get(device.resource, ""))[:keep]
    for claim in document.claims:
        for through in claim.holders:
            if question.pod is None or of_pod(through.namespace, through.pod, question.pod):
                since = _since(through, now, wide=wide, exact=not fleet)
                yield _of_claim(claim, through, since)[:keep]
    if question.pod is not None or question.resource:
        yield from (_of_cpus(entry)[:keep] for entry in document.cpus)


def _row(
    device: DeviceEntry, holder: HolderEntry | None, since: Cell, reason: str, short: str
) -> tuple[Cell, ...]:
    state = state_of(device)
    return (
        Cell(tame(spelled(device.resource)), tame(spelled(short))),
        *(_cell(device.device), Cell(state, style=state)),
        _cell("" if holder is None else f"{holder.namespace}/{holder.pod}"),
        _cell("" if holder is None else holder.container),
        since,
        *(_cell(device.parent or ""), Cell(ranges(device.numa_nodes))),
        _cell((holder.pod_uid if holder is not None else None) or ""),
        _cell(_workload(holder.workload if holder is not None else None)),
        *(Cell(""), _cell(reason)),
    )


def _of_claim(claim: ClaimEntry, holder: ClaimHolderEntry, since: Cell) -> tuple[Cell, ...]:
    return (
        *(_cell(claim.driver), _cell(of_claim(claim)), Cell("held", style="held")),
        *(_cell(f"{holder.namespace}/{holder.pod}"), _cell(holder.container), since),
        *(Cell(""), Cell(""), _cell(holder.pod_uid or ""), Cell("")),
        *(_cell(f"{holder.claim_namespace}/{holder.claim}"), Cell("")),
    )


def _of_cpus(entry: CpusEntry) -> tuple[Cell, ...]:
    which = f"{entry.count} of them" if entry.cpu_ids is None else ranges(entry.cpu_ids)
    return (
        *(Cell(CPU), Cell(which), Cell("held", style="held")),
        *(_cell(f"{entry.namespace}/{entry.pod}"), _cell(entry.container), Cell("")),
        *(Cell(""), Cell(ranges(entry.numa_nodes)), _cell(entry.pod_uid or ""), Cell(""), Cell(""), Cell("")),
    )


def _cell(raw: str) -> Cell:
    return Cell(tame(spelled(raw)))


def _workload(workload: WorkloadEntry | None) -> str:
    return "" if workload is None else f"{workload.kind}/{workload.name}"


def _reason(device: DeviceEntry, told: Told) -> str:
    """Why it is not well: its plugin's word, or else what is found to be wrong with it."""
    plugin = device.plugin
    if plugin is not None and plugin.health == "Unhealthy":
        return plugin.reason or "its plugin gives no reason"
    kinds = [
        a.kind for a in told.anomalies if a.resource == device.resource and a.device in {None, device.device}
    ]
    return ", ".join(dict.fromkeys(kinds))


def state_of(device: DeviceEntry) -> str:
    """unhealthy, held or free, in one word; who holds it stands beside."""
    if device.healthy is False:
        return "unhealthy"
    return "held" if device.holders else "free"


def _since(holder: HolderEntry | ClaimHolderEntry | None, now: float, *, wide: bool, exact: bool) -> Cell:
    if holder is None or holder.since is None:
        return Cell("")
    at = unix(holder.since)
    if at is None:
        return _cell(holder.since)
    before = "" if holder.since_exact or not exact else "before "
    clock = spelled(holder.since) if wide else f"{clock_time(at, now)}Z"
    return Cell(f"{before}{clock} ({lasting(now - at)})", lasting(now - at))


def unix(stamp: str) -> float | None:
    """Unix time of an RFC 3339 text, None for any other."""
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


def _now(document: MappingDocument) -> float:
    """The exporter's present, by its own clock: this machine's may differ."""
    taken = unix(document.taken_at or "")
    return (taken or 0.0) + max(0.0, document.age_seconds or 0.0)


def print_answer(answer: Answer, question: Question, *, wide: bool, out: TextIO, look: Look) -> str:
    """A table of `answer` on `out`. Returns what it does not show, in a sentence, "" for nothing."""
    return print_rows(
        columns(answer, wide=wide), rows(answer, question, wide=wide), out, free(look, wide=wide)
    )


def free(look: Look, *, wide: bool) -> Look:
    """The wide table has all the room it takes."""
    return replace(look, room=None) if wide else look


def print_rows(names: Sequence[Column], cells: Sequence[Sequence[Cell]], out: TextIO, look: Look) -> str:
    """A table on `out`, as wide as there is room. Returns what it does not show."""
    shown = table(names, cells, look)
    out.writelines(f"{line}\n" for line in lines(shown, look))
    return cut(shown, look)
