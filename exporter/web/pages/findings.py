"""Anomalies as plain sentences, in which pods and devices are links. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from exporter.mapping.anomalies import Anomaly
from exporter.mapping.model import Holder
from exporter.views.links import device_link, pod_link
from exporter.views.query import Filters, address
from exporter.views.wording import listed, spelled, text
from exporter.web.pages.periods import When, later
from exporter.web.pages.rows import UNHEALTHY_HELD, row_key

_FIRST: Final = 6
"""Sentences that are seen at once."""
_LIMIT: Final = 100
"""Sentences on the page; the API has all."""

_END: Final = r"(?![\w/-]|[.:]+\w)"
"""Behind a name: nothing that would make it another one."""

_KINDS: Final = {
    "unhealthy_held": UNHEALTHY_HELD,
    "plugin_gone": "plugin gone",
    "double_held": "held twice",
    "unattributed": "held by no pod",
    "numa_split": "split across NUMA nodes",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a sentence; `href` is the page of whom it names, "" where it names nobody."""

    shown: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what `kind` it is, a sentence in pieces, the address that shows the rows, and
    since when it was seen. `key` is the same for as long as it is the same thing.
    """

    key: str
    kind: str
    pieces: tuple[Piece, ...]
    address: str
    since: When | None = None

    @property
    def sentence(self) -> str:
        """The whole of it."""
        return "".join(piece.shown for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Findings:
    """All that is wrong: what is seen at once, what is folded away, and how much is left out."""

    first: tuple[Finding, ...] = ()
    further: tuple[Finding, ...] = ()
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.first) + len(self.further) + self.left_out


def findings(anomalies: Iterable[Anomaly], now: float) -> Findings:
    """Anomalies as sentences: one for each device, where several holders are hit by the same; at unix time
    `now`.
    """
    grouped: dict[tuple[str, str, str, Holder | None], list[Anomaly]] = {}
    for anomaly in anomalies:
        # What concerns no device is told of each holder by itself.
        holder = None if anomaly.device else anomaly.holder
        grouped.setdefault((anomaly.kind, anomaly.resource, anomaly.device, holder), []).append(anomaly)
    groups = list(grouped.values())
    told = tuple(_finding(group, now) for group in groups[:_LIMIT])
    return Findings(told[:_FIRST], told[_FIRST:], len(groups) - len(told))


def _finding(group: list[Anomaly], now: float) -> Finding:
    first = group[0]
    resource, device = text(first.resource).shown, text(first.device).shown
    holders = [_holder(a.holder) for a in group if a.holder is not None]
    who = listed(holders, limit=3)
    match first.kind:
        case "unhealthy_held":
            verb = "holds" if len(holders) == 1 else "hold"
            told = _evidence(first).partition("; ")[2]
            why = f"; {told}" if told else ""
            sentence = f"{who} {verb} {resource} {device}, which is unhealthy{why}."
        case "plugin_gone":
            evidence = _evidence(first)
            guess = "" if "; " in evidence else " Its plugin is gone, or none of them is healthy."
            sentence = f"{resource}: {evidence}.{guess}"
        case "double_held" if len(first.devices) < 2:
            sentence = f"{resource} {device} is not shared, yet {who} hold it."
        case "double_held":
            sentence = f"{resource} {device}: {_evidence(first)}."
        case "numa_split":
            sentence = f"{', '.join(part for part in (who, resource) if part)}: {_evidence(first)}."
        case _:
            sentence = " ".join(
                part for part in (f"{resource} {device}:", who, f"{_evidence(first)}.") if part
            )
    filters = Filters(
        resource=spelled(first.resource)[:512] if not first.device else "",
        device=spelled(first.device)[:512],
        namespace=_of_one(group, "namespace"),
        pod=_of_one(group, "pod"),
    )
    since = min((anomaly.since for anomaly in group if anomaly.since is not None), default=None)
    owner = () if first.device or first.holder is None else tuple(first.holder)
    return Finding(
        key=row_key(first.kind, first.resource, first.device, *owner),
        kind=_KINDS.get(first.kind, text(first.kind).shown),
        pieces=tuple(_pieces(sentence, group)),
        address=address(filters),
        since=None if since is None else later(since, now),
    )


def _pieces(sentence: str, group: list[Anomaly]) -> Iterator[Piece]:
    """`sentence` with those that it names set apart: every pod, and the device behind its resource, for by
    itself an id may be any word.
    """
    first = group[0]
    pages: dict[str, str] = {}
    patterns: list[str] = []
    for anomaly in group:
        own = () if anomaly.holder is None else (anomaly.holder[:2],)
        for namespace, pod in (*own, *anomaly.pods):
            for name in (f"{text(namespace).shown}/{text(pod).shown}", spelled(f"{namespace}/{pod}")):
                pages[name] = pod_link(namespace, pod)
    patterns.extend(rf"(?<![^\s(]){re.escape(name)}" for name in sorted(pages, key=len, reverse=True))
    if first.device:
        device = text(first.device).shown
        pages[device] = device_link(first.resource, first.device)
        patterns.append(rf"(?<={re.escape(text(first.resource).shown)} ){re.escape(device)}")
    at = 0
    for found in re.finditer(rf"(?:{'|'.join(patterns)}){_END}", sentence) if patterns else ():
        if found.start() > at:
            yield Piece(sentence[at : found.start()])
        yield Piece(found[0], pages[found[0]])
        at = found.end()
    if at < len(sentence):
        yield Piece(sentence[at:])


def _of_one(group: list[Anomaly], field: str) -> str:
    """The holder's namespace or pod, where the finding is of one holder and of no device."""
    holder = group[0].holder
    return "" if holder is None or group[0].device else spelled(getattr(holder, field))


def _holder(holder: Holder) -> str:
    return f"{text(holder.namespace).shown}/{text(holder.pod).shown} ({text(holder.container).shown})"


def _evidence(anomaly: Anomaly) -> str:
    return text(anomaly.evidence, limit=300).shown
