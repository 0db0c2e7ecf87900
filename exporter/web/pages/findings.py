"""Anomalies as plain sentences. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from exporter.core.anomalies import Anomaly
from exporter.core.model import Holder
from exporter.web.pages.rows import row_key
from exporter.web.pages.whens import When, later
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
    """One thing that is wrong: what `kind` it is, a sentence, the address that shows the rows, and since when
    it was seen. `key` is the same for as long as it is the same thing.
    """

    key: str
    kind: str
    sentence: str
    address: str
    since: When | None = None


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
            sentence = f"{who} {verb} {resource} {device}, which is no longer healthy{why}."
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
        sentence=sentence,
        address=address(filters),
        since=None if since is None else later(since, now),
    )


def _of_one(group: list[Anomaly], field: str) -> str:
    """The holder's namespace or pod, where the finding is of one holder and of no device."""
    holder = group[0].holder
    return "" if holder is None or group[0].device else spelled(getattr(holder, field))


def _holder(holder: Holder) -> str:
    return f"{text(holder.namespace).shown}/{text(holder.pod).shown} ({text(holder.container).shown})"


def _evidence(anomaly: Anomaly) -> str:
    return text(anomaly.evidence, limit=300).shown
