"""Entries of the JSON API's documents: what plugins tell, and what is wrong. Pure."""

from exporter.core.advertised import Advertised, Telling
from exporter.core.anomalies import Anomaly
from exporter.core.model import DeviceKey
from exporter.web.api.schema import AnomalyEntry, AnomalyHolderEntry, PluginEntry, PluginStatusEntry, PodName
from exporter.web.words import rfc3339, spelled


def of_plugin(key: DeviceKey, advertised: Advertised) -> PluginEntry | None:
    """What its plugin tells of a device; None where none does."""
    told, word = advertised.devices.get(key), advertised.resources.get(key.resource)
    if told is None or word is None:
        return None
    return PluginEntry(
        source=word.telling.source,
        answers=word.telling.answers,
        health="Healthy" if told.healthy else "Unhealthy",
        reason=told.reason or None,
        since=_at(told.since),
        attributes=dict(told.attributes),
        last_allocated=_at(told.last_allocated),
    )


def plugins(advertised: Advertised) -> tuple[PluginStatusEntry, ...]:
    """Every plugin that is asked."""
    return tuple(map(_plugin, advertised.tellings))


def _plugin(telling: Telling) -> PluginStatusEntry:
    return PluginStatusEntry(
        source=telling.source,
        answers=telling.answers,
        resources=tuple(sorted(telling.resources)),
        told_at=_at(telling.told_at),
        silent_since=_at(telling.silent_since),
        problem=telling.problem or None,
    )


def anomaly(found: Anomaly) -> AnomalyEntry:
    """One thing that is wrong."""
    h = found.holder
    return AnomalyEntry(
        kind=found.kind,
        resource=found.resource or None,
        device=found.device or None,
        holder=None if h is None else AnomalyHolderEntry(h.namespace, h.pod, h.container, h.pod_uid or None),
        evidence=spelled(found.evidence),
        since=_at(found.since),
        devices=found.devices,
        pods=tuple(PodName(namespace, pod) for namespace, pod in found.pods),
        numa_nodes=found.numa_nodes,
    )


def _at(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)
