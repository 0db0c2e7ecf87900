"""What is kept of claims, resources and anomalies, read from an address. Pure.

As everywhere in the API: `device` and `pod` are parts of names and `q` is part of any text, these three
without regard to case; all other names are whole. Text is compared as it is shown (exporter.web.query).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from exporter.core.anomalies import Anomaly
from exporter.core.model import ClaimDevice, Holder
from exporter.web.api.schema import KINDS
from exporter.web.matching import folded
from exporter.web.query import Pairs, QueryError, single
from exporter.web.words import spelled

CLAIMS: Final = ("q", "driver", "pool", "device", "claim", "namespace", "pod")
RESOURCES: Final = ("q", "resource")
ANOMALIES: Final = ("q", "kind", "resource", "device", "namespace", "pod")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to keep; "" keeps all."""

    q: str = ""
    resource: str = ""
    driver: str = ""
    pool: str = ""
    claim: str = ""
    device: str = ""
    namespace: str = ""
    pod: str = ""
    kind: str = ""

    def claimed(self, device: ClaimDevice) -> bool:
        """Whether a claimed device is kept: by itself, and by one of its holders and that one's claim."""
        key = device.key
        if not (_whole(key.driver, self.driver) and _whole(key.pool, self.pool)):
            return False
        if not _part(key.device, self.device):
            return False
        through = [
            one
            for one in device.holders
            if _whole(one.claim, self.claim) and self._names(one.holder.namespace, one.holder.pod)
        ]
        if (self.claim or self.namespace or self.pod) and not through:
            return False
        texts = [key.driver, key.pool, key.device, key.share_id]
        texts += [
            text for one in device.holders for text in (f"{one.claim_namespace}/{one.claim}", one.claim)
        ]
        return self._says(*texts, *(text for one in device.holders for text in _texts(one.holder)))

    def counted(self, resource: str) -> bool:
        """Whether a resource is kept."""
        return _whole(resource, self.resource) and self._says(resource)

    def wrong(self, anomaly: Anomaly) -> bool:
        """Whether an anomaly is kept: by what it is, and by any of the devices and pods that it is about."""
        if self.kind and anomaly.kind != self.kind:
            return False
        if not _whole(anomaly.resource, self.resource):
            return False
        devices = {anomaly.device, *anomaly.devices} - {""}
        if self.device and not any(_part(device, self.device) for device in devices):
            return False
        pods = set(anomaly.pods)
        if anomaly.holder is not None:
            pods.add((anomaly.holder.namespace, anomaly.holder.pod))
        if (self.namespace or self.pod) and not any(self._names(*pod) for pod in pods):
            return False
        holder = () if anomaly.holder is None else tuple(_texts(anomaly.holder))
        named = (f"{namespace}/{pod}" for namespace, pod in pods)
        return self._says(anomaly.kind, anomaly.resource, anomaly.evidence, *devices, *named, *holder)

    def _names(self, namespace: str, pod: str) -> bool:
        return _whole(namespace, self.namespace) and _part(pod, self.pod)

    def _says(self, *texts: str) -> bool:
        return not self.q or any(_part(text, self.q) for text in texts)


def parse_claims(pairs: Pairs) -> Wanted:
    """Which claimed devices. Raises QueryError."""
    return _wanted(pairs, CLAIMS)


def parse_resources(pairs: Pairs) -> Wanted:
    """Which resources. Raises QueryError."""
    return _wanted(pairs, RESOURCES)


def parse_anomalies(pairs: Pairs) -> Wanted:
    """Which anomalies. Raises QueryError."""
    wanted = _wanted(pairs, ANOMALIES)
    if wanted.kind and wanted.kind not in KINDS:
        raise QueryError("kind", wanted.kind, f"one of {', '.join(KINDS)}")
    return wanted


def _wanted(pairs: Pairs, known: tuple[str, ...]) -> Wanted:
    return Wanted(**{name: spelled(value.strip()) for name, value in single(pairs, known).items()})


def _whole(raw: str, asked: str) -> bool:
    return not asked or spelled(raw) == asked


def _part(raw: str, asked: str) -> bool:
    return not asked or asked.casefold() in folded(raw)


def _texts(holder: Holder) -> Iterator[str]:
    yield f"{holder.namespace}/{holder.pod}"
    yield holder.container
    yield holder.pod_uid
