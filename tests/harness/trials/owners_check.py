"""Compares all holders that an exporter reports with the true ones."""

from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from harness import owners
from harness.truth import Owner

_HELD_BY = ("resource", "device", "namespace", "pod", "container")


def owner_of(labels: Mapping[str, Any], **more: Any) -> Owner:
    """The owner that labels, or an entry of the API, name."""
    names = {**labels, **more}
    return Owner(*(names[name] for name in _HELD_BY))._replace(uid=names["pod_uid"] or "")


def owners_in(document: Any) -> list[Owner]:
    """The owners in /api/v1/devices, with duplicates."""
    return [
        owner_of(holder, resource=device["resource"], device=device["device"])
        for device in document["devices"]
        for holder in device["holders"]
    ]


async def check_metrics(url: str, wanted: frozenset[Owner], healthy: Mapping[tuple[str, str], bool]) -> None:
    """/metrics has these owners, each once, this health, and no anomaly.

    Devices that the kubelet offered before are not healthy, and may be an anomaly of their own.
    """
    _, text = await owners.get(url, "/metrics")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = [owner_of(s.labels) for s in samples if s.name == "devicelens_device_owner_info"]
    assert sorted(found) == sorted(wanted)
    reported = {
        (s.labels["resource"], s.labels["device"]): s.value == 1
        for s in samples
        if s.name == "devicelens_device_healthy"
    }
    assert reported == {**dict.fromkeys(reported, False), **healthy}, "health"
    anomalies = [s.labels for s in samples if s.name == "devicelens_anomaly_info"]
    assert [one for one in anomalies if one["kind"] != "no_longer_offered"] == []


async def check_api(url: str, wanted: frozenset[Owner]) -> None:
    """The API lists these owners, each once, and is fresh."""
    document = await owners.get_json(url, "/api/v1/devices")
    assert document["freshness"] == "fresh"
    assert sorted(owners_in(document)) == sorted(wanted)


async def check_history(url: str, wanted: frozenset[Owner], now: float) -> None:
    """The open rows of history at Unix time `now` are these owners, kept in its file."""
    document = await owners.get_json(url, f"/api/v1/history?from={now:.3f}&limit=1000")
    assert (document["kept_in"], document["trouble"]) == ("file", None)
    found = [owner_of(row) for row in document["holdings"] if row["end"] is None]
    assert sorted(found) == sorted(wanted)
