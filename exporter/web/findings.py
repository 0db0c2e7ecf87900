"""Anomalies as plain sentences. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from exporter.core.anomalies import Anomaly
from exporter.core.model import Holder
from exporter.web.query import Filters, address
from exporter.web.words import listed, spelled, text

_FIRST: Final = 6
"""Sentences that are seen at once."""
_LIMIT: Final = 100
"""Sentences on the page; the API has all."""

_KINDS: Final = {
    "unhealthy_held": "held, not healthy",
    "plugin_gone": "plugin gone",
    "double_held": "held twice",
    "unattributed": "held by no pod",
    "numa_split": "split across NUMA nodes",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what `kind` it is, a sentence, and the address that shows the rows."""

    kind: str
    sentence: str
    address: str


@dataclass(frozen=True, slots=True)
class Findings:
    """All that is wrong: what is seen at once, what is folded away, and how much is left out."""

    first: tuple[Finding, ...] = ()
    further: tuple[Finding, ...] = ()
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.first) + len(self.further) + self.left_out


def findings(anomalies: Iterable[Anomaly]) -> Findings:
    """Anomalies as sentences: one for each device, where several holders are hit by the same."""
    grouped: dict[tuple[str, str, str, Holder | None], list[Anomaly]] = {}
    for anomaly in anomalies:
        # What concerns no device is told of each holder by itself.
        holder = None if anomaly.device else anomaly.holder
        grouped.setdefault((anomaly.kind, anomaly.resource, anomaly.device, holder), []).append(anomaly)
    groups = list(grouped.values())
    told = tuple(_finding(group) for group in groups[:_LIMIT])
    return Findings(told[:_FIRST], told[_FIRST:], len(groups) - len(told))


def _finding(group: list[Anomaly]) -> Finding:
    first = group[0]
    resource, device = text(first.resource).shown, text(first.device).shown
    holders = [_holder(a.holder) for a in group if a.holder is not None]
    who = listed(holders, limit=3)
    match first.kind:
        case "unhealthy_held":
            verb = "holds" if len(holders) == 1 else "hold"
            sentence = f"{who} {verb} {resource} {device}, which is no longer healthy."
        case "plugin_gone":
            sentence = f"{resource}: {_evidence(first)}. Its plugin is gone, or none of them is healthy."
        case "double_held":
            sentence = f"{resource} {device} is not shared, yet {who} hold it."
        case "numa_split":
            sentence = f"{who}, {resource}: {_evidence(first)}."
        case _:
            sentence = " ".join(part for part in (f"{resource} {device}:", who, _evidence(first)) if part)
    filters = Filters(
        resource=spelled(first.resource) if not first.device else "",
        device=spelled(first.device)[:512],
        namespace=_of_one(group, "namespace"),
        pod=_of_one(group, "pod"),
    )
    return Finding(_KINDS.get(first.kind, text(first.kind).shown), sentence, address(filters))


def _of_one(group: list[Anomaly], field: str) -> str:
    """The holder's namespace or pod, where the finding is of one holder and of no device."""
    holder = group[0].holder
    return "" if holder is None or group[0].device else spelled(getattr(holder, field))


def _holder(holder: Holder) -> str:
    return f"{text(holder.namespace).shown}/{text(holder.pod).shown} ({text(holder.container).shown})"


def _evidence(anomaly: Anomaly) -> str:
    return text(anomaly.evidence, limit=300).shown
