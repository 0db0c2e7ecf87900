"""exporter.mapping.device_status: statuses made from those before equal statuses made anew."""

from collections.abc import Collection
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.mapping.device_status import DeviceStatuses, device_statuses
from exporter.mapping.dra import ChosenDevice, ClaimName, PodDevices, ResourceHealth
from exporter.mapping.holdings import Holding, HoldingTracker, OpenHolding
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    Device,
    DeviceKey,
    Doubt,
    Holder,
    PluginReport,
    PluginReports,
    Snapshot,
    merge_reports,
)
from exporter.mapping.state import State

KEYS = [DeviceKey(resource, device) for resource in ("r/a", "r/b") for device in ("0", "1", "2")]
PODS = ("p", "q")

_HELD = st.dictionaries(
    st.sampled_from(KEYS),
    st.tuples(st.sets(st.sampled_from(PODS)), st.booleans()),
)
_STEP = st.fixed_dictionaries(
    {
        "held": _HELD,
        "phases": st.dictionaries(st.sampled_from(PODS), st.sampled_from(("Running", "Failed"))),
        "ill": st.sets(st.tuples(st.sampled_from(PODS), st.sampled_from(KEYS))),
        "chosen": st.dictionaries(st.sampled_from(PODS), st.sampled_from(("0", "2", "9", ""))),
        "doubted": st.sets(st.sampled_from(PODS)),
        "reasons": st.dictionaries(st.sampled_from(KEYS), st.sampled_from(("", "hot"))),
        "answers": st.booleans(),
        "complete": st.booleans(),
        "held_only": st.sets(st.sampled_from(("r/a", "r/b"))),
        "restored": st.booleans(),
    }
)


class _Recorded:
    """History that has every holding from the time 1."""

    def take(self, holding: Holding, claims: Collection[ClaimName] = ()) -> OpenHolding:
        return OpenHolding(1.0, exact=True, uid="")


def _snapshot(step: dict[str, object], last: Snapshot | None) -> Snapshot:
    """A snapshot that shares equal devices with the last one, as SnapshotBuilder's do."""
    held: dict[DeviceKey, tuple[set[str], bool]] = step["held"]  # type: ignore[assignment]
    known = {} if last is None else {device.key: device for device in last.devices}
    devices: list[Device] = []
    for key, (pods, allocatable) in sorted(held.items()):
        holders = tuple(sorted(Holder("n", pod, "c") for pod in pods))
        device = Device(key, allocatable=allocatable, holders=holders)
        devices.append(known[key] if known.get(key) == device else device)
    doubted: set[str] = step["doubted"]  # type: ignore[assignment]
    doubts = {("n", pod): Doubt("missing", 1.0, 2.0) for pod in doubted}
    complete = bool(step["complete"])
    held_only: set[str] = step["held_only"]  # type: ignore[assignment]
    unconfirmed = MappingProxyType(doubts)
    return Snapshot(
        tuple(devices), complete=complete, unconfirmed=unconfirmed, held_only=frozenset(held_only)
    )


def _pod(pod: str, phase: str, step: dict[str, object]) -> PodIdentity:
    ill: set[tuple[str, DeviceKey]] = step["ill"]  # type: ignore[assignment]
    entries = [ResourceHealth("c", *key, "Unhealthy") for name, key in sorted(ill) if name == pod]
    chosen: dict[str, str] = step["chosen"]  # type: ignore[assignment]
    # What an annotation says: "" is unreadable.
    device = chosen.get(pod)
    devices = PodDevices(
        health=tuple(entries),
        chosen=(ChosenDevice("HAMi", "c", device),) if device else (),
        unreadable="annotation" if device == "" else "",
    )
    return PodIdentity("n", pod, f"uid-{pod}", phase, devices=devices)


def _reports(step: dict[str, object]) -> PluginReports:
    reasons: dict[DeviceKey, str] = step["reasons"]  # type: ignore[assignment]
    devices = {
        key.device: AdvertisedDevice(not why, why, attributes=(("model", why),))
        for key, why in reasons.items()
        if key.resource == "r/a"
    }
    resource = AdvertisedResource(registered=True, streams=1, devices=devices)
    problem = "" if step["answers"] else "no answer"
    return merge_reports([PluginReport("unix:/p", {"r/a": resource}, received_at=1.0, problem=problem)])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(_STEP, max_size=6))
def test_statuses_from_those_before_equal_statuses_made_anew(steps: list[dict[str, object]]) -> None:
    holdings, last, snapshot = HoldingTracker(), None, None
    for number, step in enumerate(steps):
        snapshot = _snapshot(step, snapshot)
        restored = bool(step["restored"])
        if restored:
            holdings.restore(_Recorded())
        before = holdings.since
        holdings.advance(snapshot, 10.0 + number)
        phases: dict[str, str] = step["phases"]  # type: ignore[assignment]
        pods = {("n", pod): _pod(pod, phase, step) for pod, phase in phases.items()}
        if last is not None:  # the refresh loop keeps equal identities
            pods = {key: one if last.pods.get(key) != one else last.pods[key] for key, one in pods.items()}
        reports = _reports(step)
        now = device_statuses(snapshot, before, pods, reports, last)
        now = now.dated(holdings.since, None if restored else last)
        whole = device_statuses(snapshot, holdings.since, pods, reports)
        assert now.devices == whole.devices
        assert now.ill == whole.ill
        assert now.resources() == whole.resources()
        if last is not None:
            known = {status.device.key: status for status in last.devices}
            for status in now.devices:
                was = known.get(status.device.key)
                assert was is status or was != status
        last = now


def test_a_state_has_the_statuses_of_its_own_parts() -> None:
    snapshot = Snapshot((Device(KEYS[0], holders=(Holder("n", "p", "c"),)),))
    state = State(snapshot=snapshot)
    assert [status.device for status in state.devices] == list(snapshot.devices)
    other = replace(state, snapshot=Snapshot((Device(KEYS[1]),)))
    assert [status.device.key for status in other.devices] == [KEYS[1]]
    made: DeviceStatuses | None = state.statuses
    assert replace(state, taken_at=1.0).statuses is made
