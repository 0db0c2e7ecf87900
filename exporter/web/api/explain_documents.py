"""The document of /api/v1/explain, made of the state. Pure."""

from typing import Final

from exporter.core.explain import Findings, explain
from exporter.core.explain_words import sentences, why_nobody
from exporter.core.ids import Reader, Reading
from exporter.core.model import Device
from exporter.web.api import entries
from exporter.web.api.documents import Moment, claim_entry, device_entry, envelope
from exporter.web.api.explain_schema import ExplainDocument, NumaEntry, ReadingEntry

_RELATIVES: Final = 100
"""Siblings and parts that are told, of each."""


def explained(moment: Moment, device: str, resource: str, *, reader: Reader) -> ExplainDocument:
    """The device that is asked for. Raises UnknownDevice and AmbiguousDevice of exporter.core.explain."""
    state = moment.state
    found = explain(state, device, resource, reader=reader)
    nobody = why_nobody(found, state)
    return ExplainDocument(
        **envelope(moment),
        sentences=sentences(found, state, now=moment.now, stale_after=moment.stale_after),
        subject=found.subject.value,
        resource=found.key.resource or None,
        device=found.key.device,
        reading=_reading(found.reading),
        parent=found.parent or None,
        parent_reading=None if found.parent_reading is None else _reading(found.parent_reading),
        elsewhere=found.elsewhere,
        entry=None if found.device is None else device_entry(found.device, state),
        numa=None if found.device is None else _numa(found.device, found),
        attributed=bool(found.claimed) if found.device is None else bool(found.device.holders),
        why_nobody=nobody or None,
        siblings=tuple(device_entry(d, state) for d in found.siblings[:_RELATIVES]),
        parts=tuple(device_entry(d, state) for d in found.parts[:_RELATIVES]),
        claims=tuple(claim_entry(claim, moment.state) for claim in found.claimed),
        anomalies=tuple(map(entries.anomaly, found.anomalies)),
    )


def _reading(reading: Reading) -> ReadingEntry:
    return ReadingEntry(
        rule=reading.rule,
        kind=reading.kind.value,
        parent=reading.parent or None,
        replica=reading.replica or None,
        partition=reading.partition or None,
    )


def _numa(device: Device, found: Findings) -> NumaEntry:
    if not device.numa_nodes:
        return NumaEntry((), None)
    return NumaEntry(device.numa_nodes, "plugin" if found.numa_by_plugin else "kubelet")
