"""The worst that is known about a device or a pod, in one word and one sentence. Pure.

Pages, the API and the commands share it: a page's colour is the severity, the first sentence the verdict's.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from exporter.mapping.device_health import NOT_OFFERED, NOT_REPORTED, TAINTED
from exporter.mapping.device_status import DeviceStatus
from exporter.mapping.model import Anomaly, Container
from exporter.mapping.state import Freshness
from exporter.views.claimed import holdings
from exporter.views.explain import DeviceFacts
from exporter.views.wording import counted, listed, size, text
from runtime.text import shortened


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    UNKNOWN = "unknown"
    """The health is unknown, or the mapping is stale."""
    WARNING = "warning"
    """A holder that the kubelet has not confirmed, or an anomaly other than an unhealthy device."""
    CRITICAL = "critical"
    """A device is unhealthy."""


_ORDER: Final = tuple(Severity)


class Verdict(Struct, frozen=True):
    """The severity, and the sentence that says it first."""

    severity: Severity
    sentence: str

    def on(self, name: str) -> str:
        """The sentence with the name of its subject: `GPU-1: unhealthy; held by 1 pod.`"""
        return f"{shortened(name)}: {self.sentence[:1].lower()}{self.sentence[1:]}"


def worst(severities: Iterable[Severity]) -> Severity:
    """The worst of several severities; OK for none."""
    return max(severities, key=_ORDER.index, default=Severity.OK)


_OF_HEALTH: Final = {
    "healthy": Severity.OK,
    "unknown": Severity.UNKNOWN,
    "unhealthy": Severity.CRITICAL,
}


def device_verdict(facts: DeviceFacts, freshness: Freshness) -> Verdict:
    """The verdict on a device, or on a physical device behind shares or slices."""
    health = facts.health
    found = [_of(freshness), *(Severity.WARNING for _ in facts.anomalies), _confirmed(facts.unconfirmed)]
    lead = ""
    if health is not None:
        found.append(_OF_HEALTH[health.kind])
        if health.kind == "unhealthy":
            plain = health.words.endswith("unhealthy") or health.words in {NOT_OFFERED, TAINTED}
            lead = health.words if plain else "unhealthy"
        elif health.words == NOT_REPORTED:
            lead = health.words
    return Verdict(worst(found), _sentence(lead, f"{_held(facts)}{_doubt(facts.unconfirmed)}", freshness))


def _held(facts: DeviceFacts) -> str:
    device = facts.device
    if device is not None:
        claims = {one[1:3] for one in holdings(device.claimed)}
        through = f" through {counted(len(claims), 'claim')}" if claims else ""
        return f"held by {_pods(len({holder[:2] for holder in device.holders}))}{through}"
    alternatives = sum(part.alternative for part in facts.parts)
    held, count = sum(bool(part.holders) for part in facts.parts), len(facts.parts) - alternatives
    some = "all" if held == count > 1 else held or "none"
    more = f", and {counted(alternatives, 'alternative')}" if alternatives else ""
    return f"divided into {counted(count, 'device')}, {some} held{more}"


def _pods(number: int) -> str:
    return counted(number, "pod") if number else "no pod"


def _confirmed(unconfirmed: bool) -> Severity:  # noqa: FBT001 -- a private helper
    return Severity.WARNING if unconfirmed else Severity.OK


def _doubt(unconfirmed: bool) -> str:  # noqa: FBT001 -- a private helper
    return ", not confirmed since the kubelet restarted" if unconfirmed else ""


def _of(freshness: Freshness) -> Severity:
    return Severity.UNKNOWN if freshness in {Freshness.STALE, Freshness.UNKNOWN} else Severity.OK


def _sentence(lead: str, rest: str, freshness: Freshness) -> str:
    """`Unhealthy; held by 1 pod.`, `Last known: held by 1 pod.`"""
    words = f"{lead}; {rest}" if lead else rest
    if freshness is Freshness.STALE:
        words = f"last known: {words[0].lower()}{words[1:]}"
    return f"{words[0].upper()}{words[1:]}."


def pod_verdict(
    containers: Sequence[Container],
    devices: Sequence[DeviceStatus],
    anomalies: Iterable[Anomaly],
    *,
    freshness: Freshness,
    administers: int = 0,
    unconfirmed: bool = False,
) -> Verdict:
    """The verdict on a pod that holds `devices`, and CPUs and memory of its `containers`, and uses some more
    devices for administration. `unconfirmed` as in DeviceFacts.
    """
    bad = [one for one in devices if one.healthy is False]
    found = [_of(freshness), *(Severity.WARNING for _ in anomalies), _confirmed(unconfirmed)]
    found += [Severity.CRITICAL] if bad else []
    found += [Severity.UNKNOWN] if any(one.healthy is None for one in devices) else []
    lead = ""
    if bad:
        some = f"{len(bad)} of its {counted(len(devices), 'device')}"
        lead = f"{'its device' if len(devices) == 1 else some} {'is' if len(bad) == 1 else 'are'} unhealthy"
    words = f"it holds {_everything(containers, devices)}{_doubt(unconfirmed)}"
    if administers:
        words += f"; it uses {counted(administers, 'device')} for administration"
    if silent := sum(one.healthy is None and one.device.claimed is not None for one in devices):
        of_all = "its health" if silent == 1 else "the health of all"
        words += f"; {of_all if silent == len(devices) else f'the health of {silent}'} is not reported"
    return Verdict(worst(found), _sentence(lead, words, freshness))


def _everything(containers: Sequence[Container], devices: Sequence[DeviceStatus]) -> str:
    held = [counted(len(devices), "device")] if devices else []
    cpus = sum(len(container.cpu_ids) for container in containers)
    held += [counted(cpus, "exclusive CPU")] if cpus else []
    memory: dict[str, int] = {}
    for block in (block for container in containers for block in container.memory):
        memory[block.memory_type] = memory.get(block.memory_type, 0) + block.size_bytes
    held += [f"{size(total)} {text(kind, limit=40).shown}" for kind, total in sorted(memory.items())]
    return listed(held, limit=8) or "nothing"
