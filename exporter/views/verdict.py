"""The worst that is known about a device or a pod, in one word and one sentence. Pure.

Pages, the API and the commands share it: a page's colour is the severity, the first sentence the verdict's.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from exporter.mapping.device_health import NOT_OFFERED
from exporter.mapping.model import Anomaly, ClaimDevice, Container, Device
from exporter.mapping.state import Freshness
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
    """The verdict on a device, on a physical device behind shares or slices, or on a claimed device."""
    health = facts.health
    found = [_of(freshness), *(Severity.WARNING for _ in facts.anomalies), _confirmed(facts.unconfirmed)]
    lead = ""
    if health is not None:
        found.append(_OF_HEALTH[health.kind])
        if health.kind == "unhealthy":
            plain = health.words.endswith("unhealthy") or health.words == NOT_OFFERED
            lead = health.words if plain else "unhealthy"
    return Verdict(worst(found), _sentence(lead, f"{_held(facts)}{_doubt(facts.unconfirmed)}", freshness))


def _held(facts: DeviceFacts) -> str:
    device = facts.device
    if device is not None:
        return f"held by {_pods(len({holder[:2] for holder in device.holders}))}"
    if facts.parts:
        held, count = sum(bool(part.holders) for part in facts.parts), len(facts.parts)
        some = "all" if held == count > 1 else held or "none"
        return f"divided into {counted(count, 'device')}, {some} held"
    return _claimed(facts.claimed)


def claim_verdict(
    claimed: Sequence[ClaimDevice], freshness: Freshness, *, unconfirmed: bool = False
) -> Verdict:
    """The verdict on the shares of one claimed device. The kubelet does not report its health.

    `unconfirmed` as in DeviceFacts.
    """
    words = f"{_claimed(claimed)}{_doubt(unconfirmed)}"
    return Verdict(worst((_of(freshness), _confirmed(unconfirmed))), _sentence("", words, freshness))


def _claimed(claimed: Sequence[ClaimDevice]) -> str:
    holders = [through for one in claimed for through in one.holders]
    claims = {(through.claim_namespace, through.claim) for through in holders}
    pods = {through.holder[:2] for through in holders}
    return f"held by {_pods(len(pods))} through {counted(len(claims), 'claim')}"


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
    devices: Sequence[Device],
    claimed: Sequence[ClaimDevice],
    anomalies: Iterable[Anomaly],
    *,
    complete: bool,
    freshness: Freshness,
    unconfirmed: bool = False,
) -> Verdict:
    """The verdict on a pod that holds `devices`, `claimed` devices, and CPUs and memory of its `containers`.

    `complete` as in Snapshot, `unconfirmed` as in DeviceFacts.
    """
    bad = [device for device in devices if complete and not device.allocatable]
    found = [_of(freshness), *(Severity.WARNING for _ in anomalies), _confirmed(unconfirmed)]
    found += [Severity.CRITICAL] if bad else [Severity.UNKNOWN] if devices and not complete else []
    lead = ""
    if bad:
        some = f"{len(bad)} of its {counted(len(devices), 'device')}"
        lead = f"{'its device' if len(devices) == 1 else some} {'is' if len(bad) == 1 else 'are'} unhealthy"
    return Verdict(
        worst(found),
        _sentence(
            lead, f"it holds {_everything(containers, devices, claimed)}{_doubt(unconfirmed)}", freshness
        ),
    )


def _everything(
    containers: Sequence[Container], devices: Sequence[Device], claimed: Sequence[ClaimDevice]
) -> str:
    held = [counted(len(devices), "device")] if devices else []
    held += [counted(len(claimed), "claimed device")] if claimed else []
    cpus = sum(len(container.cpu_ids) for container in containers)
    held += [counted(cpus, "exclusive CPU")] if cpus else []
    memory: dict[str, int] = {}
    for block in (block for container in containers for block in container.memory):
        memory[block.memory_type] = memory.get(block.memory_type, 0) + block.size_bytes
    held += [f"{size(total)} {text(kind, limit=40).shown}" for kind, total in sorted(memory.items())]
    return listed(held, limit=8) or "nothing"
