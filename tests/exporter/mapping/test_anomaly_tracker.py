"""exporter.mapping.anomaly_tracker: since when an anomaly lasts, and those that depend on time."""

from msgspec.structs import replace

from exporter.mapping.anomaly_tracker import AnomalyTracker
from exporter.mapping.model import AdvertisedDevice, Holder, PluginReports, Snapshot
from harness import scene
from harness.scene import device, reported

P = Holder("n", "p", "c")
ILL, WELL, EMPTY = (
    scene.snapshot(device("a", *who, resource="r", ok=ok), device("b", resource="r"))
    for who, ok in (((P,), False), ((P,), True), ((), True))
)


def _report(reason: str = "", last_allocated: float | None = None) -> PluginReports:
    return reported({"a": AdvertisedDevice(not reason, reason, last_allocated=last_allocated)}, resource="r")


def test_since_is_the_first_sighting_of_each_occurrence() -> None:
    tracker = AnomalyTracker()
    assert tracker.advance(scene.statuses(WELL), asked=100, now=100.1) == ()
    (first,) = tracker.advance(scene.statuses(ILL), asked=110, now=110.1)
    assert (first.kind, first.since) == ("unhealthy_held", 110.1)
    (second,) = tracker.advance(scene.statuses(replace(ILL, pods=3)), asked=120, now=120.1)
    assert second == first
    assert tracker.advance(scene.statuses(WELL), asked=130, now=130.1) == ()
    (again,) = tracker.advance(scene.statuses(ILL), asked=140, now=140.1)
    assert again.since == 140.1


def test_evidence_and_uid_do_not_change_identity() -> None:
    tracker = AnomalyTracker()
    tracker.advance(scene.statuses(ILL), asked=100, now=100)
    (found,) = tracker.advance(scene.statuses(ILL, _report("dust")), asked=110, now=110)
    assert found.since == 100
    assert found.evidence.endswith("dust")
    named = P._replace(pod_uid="u")
    known = Snapshot((replace(ILL.devices[0], holders=(named,)), ILL.devices[1]))
    (learned,) = tracker.advance(scene.statuses(known, _report("dust")), asked=120, now=120)
    assert (learned.holder, learned.since) == (named, 100)


def test_unchanged_anomalies_are_the_same_object() -> None:
    tracker = AnomalyTracker()
    report = _report("dust")
    found = tracker.advance(scene.statuses(ILL, report), asked=100, now=100)
    assert tracker.advance(scene.statuses(ILL, report), asked=105, now=105) is found
    assert tracker.advance(scene.statuses(replace(ILL, pods=1), report), asked=110, now=110) is found


def test_unattributed_begins_by_time_and_ends_with_a_holder() -> None:
    tracker = AnomalyTracker()
    tracker.advance(scene.statuses(EMPTY, _report()), asked=99, now=99)
    given = _report(last_allocated=100.0)
    assert tracker.advance(scene.statuses(EMPTY, given), asked=100.1, now=100.2) == ()
    assert tracker.advance(scene.statuses(EMPTY, given), asked=129, now=129.1) == ()
    (found,) = tracker.advance(scene.statuses(EMPTY, given), asked=130, now=130.1)
    assert (found.kind, found.resource, found.device, found.holder) == ("unattributed", "r", "a", None)
    assert found.since == 130.1
    assert found.evidence.startswith(
        "its plugin allocated it at 1970-01-01 00:01:40 UTC, and no pod has listed"
    )
    assert tracker.advance(scene.statuses(EMPTY, given), asked=500, now=500) == (found,)
    assert tracker.advance(scene.statuses(WELL, given), asked=501, now=501) == ()
    assert tracker.advance(scene.statuses(EMPTY, given), asked=502, now=502) == ()


def test_numa_split_is_found_and_dated() -> None:
    def snapshot(*holders: tuple[Holder, ...]) -> Snapshot:
        nodes = zip("abc", (0, 1, 1), holders, strict=True)
        return scene.snapshot(*(device(name, *who, resource="r", numa=(node,)) for name, node, who in nodes))

    tracker = AnomalyTracker()
    tracker.advance(scene.statuses(snapshot((), (), ())), asked=1, now=1)
    (found,) = tracker.advance(scene.statuses(snapshot((P,), (P,), ())), asked=2, now=2)
    assert (found.kind, found.since, found.numa_nodes) == ("numa_split", 2, (1,))
    full = snapshot((P,), (P,), (Holder("n", "q", "c"),))
    assert tracker.advance(scene.statuses(full), asked=9, now=9) == (found,)
