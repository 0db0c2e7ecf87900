"""exporter.mapping.anomalies: conditions that are anomalies, and similar ones that are not."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.anomalies import find
from exporter.mapping.device_ids import IdReader, rule
from exporter.mapping.model import (
    NO_REPORTS,
    AdvertisedDevice,
    Anomaly,
    Device,
    Holder,
    PluginReports,
    Snapshot,
)
from exporter.mapping.snapshot import build
from harness import scene
from harness.answers import allocatables, listings
from harness.scene import device, reported
from kubelet.pb.podresources.v1 import api_pb2

QUICK = settings(max_examples=40, deadline=None, derandomize=True)

P, P2, Q = Holder("n", "p", "c"), Holder("n", "p", "d"), Holder("n", "q", "c")


def _device(name: str, *holders: Holder, ok: bool = True, resource: str = "r", parent: str = "") -> Device:
    return device(name, *holders, ok=ok, resource=resource, parent=parent)


def _found(*devices: Device, **changes: Any) -> list[tuple[str, str, str, Holder | None]]:
    found = find(scene.snapshot(*devices, **changes))
    return [(one.kind, one.resource, one.device, one.holder) for one in found]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([], []),
        ([_device("a"), _device("b", P)], []),
        # Held but not allocatable, while others of the resource are.
        ([_device("a"), _device("b", P, ok=False)], [("unhealthy_held", "r", "b", P)]),
        # A free device that is not allocatable is nobody's trouble.
        ([_device("a"), _device("b", ok=False)], []),
        # None of the resource is allocatable: one anomaly for the plugin.
        ([_device("a", P, ok=False), _device("b", Q, ok=False)], [("plugin_gone", "r", "", None)]),
        ([_device("a", ok=False)], []),
        # Each resource for itself.
        (
            [
                _device("a", P, ok=False),
                _device("b", resource="other"),
                _device("c", Q, ok=False, resource="other"),
            ],
            [("plugin_gone", "r", "", None), ("unhealthy_held", "other", "c", Q)],
        ),
        # Two pods at once; two containers of one pod are no trouble, nor are shares.
        ([_device("a", P, Q)], [("double_held", "r", "a", P), ("double_held", "r", "a", Q)]),
        ([_device("a", P, P2)], []),
        ([_device("GPU-1::0", P), _device("GPU-1::1", Q)], []),
        ([_device("GPU-1::0", P, Q)], []),
    ],
)
def test_anomalies_are_found(
    devices: list[Device], expected: list[tuple[str, str, str, Holder | None]]
) -> None:
    assert _found(*devices) == expected


def test_no_health_without_an_allocatable_answer() -> None:
    assert _found(_device("a", P), complete=False) == []
    assert [kind for kind, *_ in _found(_device("a", P, ok=False), complete=False)] == ["unhealthy_held"]


def test_evidence_names_the_facts() -> None:
    (gone,) = find(scene.snapshot(*(_device("a", P, ok=False), _device("b", Q, ok=False))))
    assert gone.evidence == "none is allocatable, while 2 of its devices are held by n/p, n/q"
    assert (gone.devices, gone.pods) == (("a", "b"), (("n", "p"), ("n", "q")))
    double = find(scene.snapshot(*(_device("a", P, Q),)))
    assert {found.evidence for found in double} == {"2 pods hold it: n/p, n/q"}
    assert {found.pods for found in double} == {(("n", "p"), ("n", "q"))}


def test_names_beyond_the_first_are_counted() -> None:
    pods = [Holder("n", f"p{i}", "c") for i in range(80)]
    (found, *others) = find(scene.snapshot(*(_device("a", *pods),)))
    assert found.evidence == "80 pods hold it: n/p0, n/p1, n/p10, n/p11, n/p12 and 75 more"
    assert len(found.pods) == 64
    assert len(others) == 79


@pytest.mark.parametrize(
    ("uids", "expected"),
    [(("", ""), []), (("u1", ""), []), (("u1", "u1"), []), (("u1", "u2"), ["double_held", "double_held"])],
)
def test_pods_of_one_name_with_two_uids_are_two(uids: tuple[str, str], expected: list[str]) -> None:
    one, other = Holder("n", "p", "c", uids[0]), Holder("n", "p", "d", uids[1])
    found = find(scene.snapshot(*(_device("a", one, other),)))
    assert [anomaly.kind for anomaly in found] == expected
    assert {anomaly.evidence for anomaly in found} <= {"2 pods hold it under one name: n/p"}


@pytest.mark.parametrize(
    ("devices", "hit"),
    [
        # Left from before the plugin was configured to share; under NVIDIA's other name for it; a slice.
        ([_device("GPU-1", P), _device("GPU-1::0", Q, parent="GPU-1")], ["GPU-1"]),
        ([_device("GPU-1", P), _device("GPU-1::0", Q, parent="GPU-1", resource="r.shared")], ["GPU-1"]),
        ([_device("nvidia0", P), _device("nvidia0/gi1", Q, parent="nvidia0")], ["nvidia0"]),
        # Free, of the same pod, of another resource: no trouble.
        ([_device("GPU-1", P), _device("GPU-1::0", parent="GPU-1")], []),
        ([_device("GPU-1"), _device("GPU-1::0", P, parent="GPU-1")], []),
        ([_device("GPU-1", P), _device("GPU-1::0", P2, parent="GPU-1")], []),
        ([_device("0", P), _device("0::0", Q, parent="0", resource="s")], []),
        ([_device("GPU-1::0", P, parent="GPU-1"), _device("GPU-1::1", Q, parent="GPU-1")], []),
    ],
)
def test_device_held_whole_and_in_parts_is_held_twice(devices: list[Device], hit: list[str]) -> None:
    found = find(scene.snapshot(*devices))
    assert [(anomaly.kind, anomaly.device) for anomaly in found] == [("double_held", name) for name in hit]
    for anomaly in found:
        assert anomaly.holder == P
        assert anomaly.evidence.startswith("n/p holds it as a whole, n/q a part of it: ")
        assert anomaly.pods == (("n", "p"), ("n", "q"))


def test_each_holder_has_one_anomaly_of_a_kind() -> None:
    """Two pods hold the whole device, and a third one a part of it."""
    third = Holder("n", "r", "c")
    snapshot = scene.snapshot(_device("GPU-1", P, Q), _device("GPU-1::0", third, parent="GPU-1"))
    assert [(one.kind, one.holder) for one in find(snapshot)] == [("double_held", P), ("double_held", Q)]


def _report(
    reason: str = "",
    *,
    parent: str = "",
    name: str = "a",
    **changes: Any,
) -> PluginReports:
    devices = {name: AdvertisedDevice(not reason, reason, 90.0, parent=parent)}
    return reported(devices, resource="r", **changes)


@pytest.mark.parametrize(
    ("advertised", "kind", "evidence"),
    [
        (NO_REPORTS, "plugin_gone", "none is allocatable, while 1 of its devices are held by n/p"),
        # The plugin is there and followed: the device itself is ill.
        (_report("dust"), "unhealthy_held", "it is held but not allocatable; its plugin says why: dust"),
        (_report(), "unhealthy_held", "it is held but not allocatable; its plugin says that it is healthy"),
        (
            _report("dust", streams=0),
            "plugin_gone",
            "; its plugin answers, but the kubelet no longer watches it",
        ),
        (
            _report(streams=0, registered=False),
            "plugin_gone",
            "; its plugin answers, but is not registered with the kubelet",
        ),
        (_report("dust", problem="refused"), "plugin_gone", "; its plugin does not answer: refused"),
    ],
)
def test_plugin_gone_differs_from_unhealthy_devices(
    advertised: PluginReports, kind: str, evidence: str
) -> None:
    (found,) = find(scene.snapshot(*(_device("a", P, ok=False),)), advertised)
    assert found.kind == kind
    assert found.evidence.endswith(evidence)


def test_last_report_of_a_silent_plugin_is_marked() -> None:
    snapshot = scene.snapshot(_device("a", P, ok=False), _device("b"))
    (found,) = find(snapshot, _report("dust", problem="refused"))
    assert (found.kind, found.device) == ("unhealthy_held", "a")
    assert found.evidence == "it is held but not allocatable; its plugin last said why: dust"


def test_share_may_have_several_holders() -> None:
    """By its plugin's report, or by its id."""
    snapshot = scene.snapshot(_device("acc0-1", P, Q))
    reader = IdReader([rule("mine", r"(?P<parent>acc\d+)-(?P<replica>\d+)", resource="r")])
    assert len(find(snapshot)) == 2
    assert find(snapshot, _report(parent="gpu", name="acc0-1")) == ()
    assert find(snapshot, reader=reader) == ()
    assert len(find(scene.snapshot(_device("acc0-1", P, Q, resource="s")), reader=reader)) == 2


@QUICK
@given(listings(), st.none() | allocatables())
def test_each_anomaly_is_one_of_the_snapshot_and_none_is_left_out(
    listed: api_pb2.ListPodResourcesResponse, offered: api_pb2.AllocatableResourcesResponse | None
) -> None:
    snapshot = build(listed, offered)
    found = find(snapshot)
    assert len(set(found)) == len(found)
    gone = {anomaly.resource for anomaly in found if anomaly.kind == "plugin_gone"}
    counts = snapshot.resources()
    assert gone == {
        resource
        for resource, count in counts.items()
        if snapshot.complete and count.allocatable == 0 and count.allocated
    }
    assert {(a.resource, a.device, a.holder) for a in found if a.kind == "unhealthy_held"} == {
        (*device.key, holder)
        for device in snapshot.devices
        for holder in device.holders
        if not device.allocatable and device.key.resource not in gone
    }
    assert all(_holds(anomaly, snapshot) for anomaly in found)


def _holds(anomaly: Anomaly, snapshot: Snapshot) -> bool:
    """Whether the holder that an anomaly names holds what it says."""
    return anomaly.holder is None or any(
        anomaly.holder in device.holders
        for device in snapshot.devices
        if device.key.resource == anomaly.resource and anomaly.device in {"", device.key.device}
    )
