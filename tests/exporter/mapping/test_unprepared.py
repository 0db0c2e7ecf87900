"""exporter.mapping.unprepared: claims of pods of this node that List does not name."""

import pytest

from exporter.mapping.anomaly_tracker import AnomalyTracker
from exporter.mapping.claimed_devices import ClaimFacts
from exporter.mapping.dra import (
    AllocatedDevice,
    Claim,
    ClaimName,
    ContainerClaim,
    DraView,
    PodClaim,
    PodDevices,
    PublishedName,
)
from exporter.mapping.identity import PodIdentity, PodRecord, PodView
from exporter.mapping.model import Anomaly, ClaimHolding, DeviceKey, Holder, Snapshot
from exporter.mapping.unattributed import PodsSeen
from exporter.mapping.unprepared import UnpreparedTracker
from harness import scene

DRIVER, NODE = "gpu.example.com", "node-1"
NAME = ClaimName("ml", "mine-x7k")
P = Holder("ml", "p-0", "main", "uid-p")


def _claim(*devices: str, admin: bool = False, pods: tuple[str, ...] = ("uid-p",)) -> Claim:
    names = [PublishedName(DRIVER, NODE, device) for device in devices]
    return Claim(
        *(NAME, "uid-c"),
        tuple([AllocatedDevice(name, "", "r", "gpu", admin) for name in names]),
        frozenset(pods),
    )


def _facts(*claims: Claim) -> ClaimFacts:
    return ClaimFacts(NODE, DraView(claims={one.name: one for one in claims}))


def _view(
    phase: str = "Running", uid: str = "uid-p", over: float | None = None, used: str = "gpu"
) -> PodView:
    devices = PodDevices((PodClaim("gpu", NAME.name),), uses=(ContainerClaim("main", used, ""),))
    record = PodRecord(PodIdentity("ml", "p-0", uid, phase, devices=devices), 0.0)
    record = record if over is None else record._replace(over=over)
    return PodView({("ml", "p-0"): (record,)}, connected=True)


def _listed(*devices: str, claim: str = NAME.name) -> Snapshot:
    through = ClaimHolding(P, "ml", claim)
    return scene.snapshot(*[scene.claimed(one, through, pool=NODE) for one in devices])


def _keys(found: tuple[Anomaly, ...]) -> list[DeviceKey]:
    return [DeviceKey(one.resource, one.device) for one in found]


EMPTY, ONE = Snapshot(), DeviceKey(DRIVER, "gpu-0")


def test_a_device_is_unprepared_after_a_minute_until_list_names_it() -> None:
    tracker, facts, view = UnpreparedTracker(), _facts(_claim("gpu-0", "gpu-1")), _view()
    some = _listed("gpu-1")
    for now, snapshot, found in (
        (100.0, EMPTY, []),
        (159.9, some, []),
        (160.0, some, [ONE]),
        (170.0, EMPTY, [ONE]),
        (230.0, EMPTY, [ONE, DeviceKey(DRIVER, "gpu-1")]),
        (240.0, _listed("gpu-0", "gpu-1"), []),
    ):
        assert _keys(tracker.advance(snapshot, facts, view, now=now)) == found
    assert tracker.advance(EMPTY, facts, view, now=250.0) == ()
    (first, _) = tracker.advance(EMPTY, facts, view, now=310.0)
    assert (first.holder, first.pods) == (None, (("ml", "p-0"),))
    assert first.evidence == (
        "claim ml/mine-x7k reserves it for ml/p-0, and the kubelet does not list it after 60 s: its driver "
        "has not prepared it, or the pod waits for something else, or an init container uses it"
    )


@pytest.mark.parametrize(
    ("claim", "view", "snapshot", "waits"),
    [
        (_claim("gpu-0"), _view(), EMPTY, True),
        (_claim("gpu-0"), _view("Pending"), EMPTY, True),
        (_claim("gpu-0"), _view("Succeeded"), EMPTY, False),
        (_claim("gpu-0"), _view("Running", over=5.0), EMPTY, False),
        (_claim("gpu-0"), _view(uid="uid-q"), EMPTY, False),
        (_claim("gpu-0"), PodView(), EMPTY, False),
        (_claim("gpu-0"), _view(used="another"), EMPTY, False),
        (_claim("gpu-0", pods=()), _view(), EMPTY, False),
        (_claim("gpu-0", admin=True), _view(), EMPTY, False),
        (_claim(), _view(), EMPTY, False),
        (_claim("gpu-0"), _view(), _listed("gpu-0"), False),
        (_claim("gpu-0"), _view(), _listed("gpu-0", claim="another"), True),
    ],
)
def test_which_claims_wait(claim: Claim, view: PodView, snapshot: Snapshot, waits: bool) -> None:
    tracker = UnpreparedTracker()
    assert tracker.advance(snapshot, _facts(claim), view, now=0.0) == ()
    assert bool(tracker.advance(snapshot, _facts(claim), view, now=60.0)) is waits
    assert tracker.advance(snapshot, _facts(), view, now=61.0) == ()


def test_time_alone_makes_the_anomaly() -> None:
    tracker, facts, statuses = AnomalyTracker(), _facts(_claim("gpu-0")), scene.statuses(EMPTY)
    pods = PodsSeen(_view())
    for now, kinds in ((0.0, []), (30.0, []), (60.0, ["unprepared"]), (61.0, ["unprepared"])):
        found = tracker.advance(statuses, asked=now, now=now, pods=pods, claims=facts)
        assert [(one.kind, one.since) for one in found] == [(kind, 60.0) for kind in kinds]
