"""exporter.mapping.device_health: whose word on a device's health counts."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.mapping.device_health import (
    BY_STATUS,
    NOT_OFFERED,
    NOT_REPORTED,
    OFFERED,
    TAINTED,
    UNKNOWN,
    DeviceHealth,
    HealthFacts,
)
from exporter.mapping.device_status import device_statuses
from exporter.mapping.dra import PodClaim, PodDevices, PublishedDevice, PublishedName, ResourceHealth, Taint
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import NO_REPORTS, AdvertisedDevice, ClaimHolding, Device, Holder, PluginReports
from harness import scene
from harness.scene import GPU

POD = Holder("ml", "llama-0", "trainer", "uid-1")
OTHER = Holder("ml", "llama-1", "trainer", "uid-2")
CDI = "example.com/gpu=claim-1"
ILL = DeviceHealth("unhealthy", "unhealthy", "XID 79", source=BY_STATUS)
WELL = DeviceHealth("healthy", "healthy", source=BY_STATUS)


def _pod(holder: Holder, *health: ResourceHealth, claims: Mapping[str, str] | None = None) -> PodIdentity:
    named = tuple(PodClaim(*one) for one in (claims or {}).items())
    devices = PodDevices(named, health=tuple(sorted(health)))
    return PodIdentity(*holder[:2], holder.pod_uid, "Running", devices=devices)


def _entry(health: str, name: str = GPU, device: str = "GPU-1", message: str = "XID 79") -> ResourceHealth:
    return ResourceHealth(POD.container, name, device, health, message if health == "Unhealthy" else "")


def _health(
    device: Device, *pods: PodIdentity, complete: bool = True, advertised: PluginReports = NO_REPORTS
) -> DeviceHealth:
    return HealthFacts(complete, {pod.key: pod for pod in pods}, advertised).of(device)


def _told(*, healthy: bool, problem: str = "") -> PluginReports:
    reported = AdvertisedDevice(healthy, "" if healthy else "too hot", 5.0)
    return scene.reported({"GPU-1": reported}, problem=problem, silent_since=9.0 if problem else None)


DEVICE = scene.device("GPU-1", POD)
FAILED = replace(DEVICE, allocatable=False)


@pytest.mark.parametrize(
    ("device", "status", "advertised", "expected"),
    [
        (DEVICE, "Unknown", NO_REPORTS, OFFERED),
        (DEVICE, "Healthy", NO_REPORTS, OFFERED),
        (DEVICE, "Unhealthy", NO_REPORTS, ILL),
        (DEVICE, "Unhealthy", _told(healthy=True), OFFERED),
        (DEVICE, "Unhealthy", _told(healthy=True, problem="no answer"), ILL),
        (DEVICE, "Unhealthy", _told(healthy=False), ILL),
        (
            *(FAILED, "Healthy", NO_REPORTS),
            DeviceHealth("unhealthy", "not allocatable", source="the kubelet does not offer it"),
        ),
        (
            *(FAILED, "Unhealthy", NO_REPORTS),
            DeviceHealth("unhealthy", "not allocatable", "XID 79", source=BY_STATUS),
        ),
        (
            *(FAILED, "Unhealthy", _told(healthy=False)),
            DeviceHealth("unhealthy", "unhealthy", "too hot", 5.0, "its plugin, at plugin"),
        ),
    ],
)
def test_a_plugins_device(
    device: Device, status: str, advertised: PluginReports, expected: DeviceHealth
) -> None:
    assert _health(device, _pod(POD, _entry(status)), advertised=advertised) == expected


@pytest.mark.parametrize(("status", "expected"), [("Healthy", WELL), ("Unhealthy", ILL), ("Unknown", None)])
def test_a_status_counts_where_the_kubelet_does_not_report_allocatable_devices(
    status: str, expected: DeviceHealth | None
) -> None:
    found = _health(DEVICE, _pod(POD, _entry(status)), complete=False)
    assert (found == expected) if expected else (found.kind == "unknown")
    assert _health(DEVICE, complete=False).kind == "unknown"


def test_entries_of_other_devices_containers_and_resources_do_not_count() -> None:
    entries = [
        _entry("Unhealthy", device="GPU-10"),
        _entry("Unhealthy", name=f"{GPU}.shared"),
        _entry("Unhealthy", name="nvidia.com"),
        _entry("Unhealthy")._replace(container="train"),
        _entry("Unhealthy")._replace(container="trainer-2"),
    ]
    assert _health(DEVICE, _pod(POD, *entries)) == OFFERED
    assert _health(DEVICE, _pod(POD, *entries, _entry("Unhealthy"))) == ILL


def _claimed(*taints: Taint, request: str = "", admin: bool | None = None, shared: int = 1) -> Device:
    published = PublishedDevice(PublishedName("gpu.example.com", "pool-a", "gpu-0"), taints=taints)
    through = ClaimHolding(POD, "ml", "mine-x7k", "", request, "", admin)
    device = scene.claimed(
        "gpu-0", through, cdi=[CDI], published=published, allocatable=not any(map(_repels, taints))
    )
    assert device.claimed is not None
    names = ((CDI, shared),) if shared > 1 else ()
    return replace(device, claimed=replace(device.claimed, shared_cdi=names))


def _repels(taint: Taint) -> bool:
    return taint.repels


def _claiming(health: str, name: str = "claim:gpu", device: str = CDI) -> PodIdentity:
    return _pod(POD, _entry(health, name, device), claims={"gpu": "mine-x7k", "gpu-2": "another"})


TAINT = Taint("gpu.example.com/xid", "79", "NoExecute", 70.0)
SPOILT = DeviceHealth(
    "unhealthy", TAINTED, "taint gpu.example.com/xid=79:NoExecute", 70.0, "its ResourceSlice"
)


@pytest.mark.parametrize(
    ("device", "status", "expected"),
    [
        (_claimed(), "Healthy", WELL),
        (_claimed(), "Unhealthy", ILL),
        (_claimed(), "Unknown", DeviceHealth("unknown", UNKNOWN, source=BY_STATUS)),
        (_claimed(TAINT), "Healthy", SPOILT),
        (_claimed(TAINT), "Unknown", SPOILT),
        (_claimed(TAINT), "Unhealthy", ILL),
        (_claimed(TAINT._replace(effect="None")), "Healthy", WELL),
        (
            *(_claimed(shared=3), "Healthy"),
            DeviceHealth(
                *("unknown", UNKNOWN, "one of 3 devices is Healthy: the driver gives them one CDI name"),
                source=BY_STATUS,
            ),
        ),
        (
            *(_claimed(shared=2), "Unhealthy"),
            DeviceHealth(
                "unknown",
                UNKNOWN,
                "one of 2 devices is Unhealthy: the driver gives them one CDI name; XID 79",
                source=BY_STATUS,
            ),
        ),
    ],
)
def test_a_claimed_device(device: Device, status: str, expected: DeviceHealth) -> None:
    assert _health(device, _claiming(status)) == expected


@pytest.mark.parametrize(
    ("device", "pods", "known"),
    [
        (_claimed(), [_claiming("Healthy", "claim:gpu/r")], True),
        (_claimed(request="r"), [_claiming("Healthy", "claim:gpu/r")], True),
        (_claimed(request="s"), [_claiming("Healthy", "claim:gpu/r")], False),
        (_claimed(), [_claiming("Healthy", "claim:gpu", "gpu.example.com/pool-a/gpu-0")], True),
        (_claimed(), [_claiming("Healthy", "claim:gpu", "gpu.example.com/pool-a/gpu-1")], False),
        (_claimed(), [_claiming("Healthy", "claim:gpu-2")], False),
        (_claimed(), [_claiming("Healthy", "gpu.example.com")], False),
        (_claimed(admin=False), [_claiming("Healthy")], True),
        (_claimed(admin=True), [_claiming("Healthy")], True),
        (_claimed(), [], False),
        (_claimed(), [_pod(POD, _entry("Healthy", "claim:gpu", CDI))], False),
    ],
)
def test_an_entry_counts_for_the_device_that_it_names(
    device: Device, pods: list[PodIdentity], known: bool
) -> None:
    assert _health(device, *pods).healthy is (True if known else None)


def test_health_that_nothing_reports_is_unknown() -> None:
    assert _health(_claimed()).words == NOT_REPORTED
    gone = replace(_claimed(), no_longer_offered_since=3.0)
    assert _health(gone, _claiming("Healthy")) == DeviceHealth(
        "unhealthy", NOT_OFFERED, since=3.0, source="its driver no longer publishes it"
    )


def test_the_worst_of_several_holders_counts() -> None:
    device = scene.claimed("gpu-0", *[ClaimHolding(one, "ml", "mine-x7k") for one in (POD, OTHER)], cdi=[CDI])
    other = _pod(OTHER, _entry("Unhealthy", "claim:own", CDI), claims={"own": "mine-x7k"})
    assert _health(device, _claiming("Healthy"), other) == ILL
    assert _health(device, _claiming("Healthy")) == WELL


_CLAIMS = st.lists(st.sampled_from([*(("gpu", c) for c in ("a", "b")), ("gpu-2", "a")]), unique=True)
_STATUSES = st.dictionaries(
    st.tuples(st.sampled_from(["claim:gpu", "claim:gpu/r", "claim:gpu-2"]), st.sampled_from([CDI, "x=y"])),
    st.sampled_from(["Healthy", "Unhealthy", "Unknown"]),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(_CLAIMS, _STATUSES, st.booleans(), st.booleans())
def test_a_claimed_device_is_healthy_only_if_an_entry_says_so_and_nothing_speaks_against_it(
    claims: list[tuple[str, str]], statuses: dict[tuple[str, str], str], tainted: bool, shared: bool
) -> None:
    taints = [TAINT] if tainted else []
    device = _claimed(*taints, shared=2 if shared else 1)
    entries = [_entry(health, name, cdi) for (name, cdi), health in statuses.items()]
    found = _health(device, _pod(POD, *entries, claims=dict(claims)))
    said = {
        health
        for (name, cdi), health in statuses.items()
        if cdi == CDI and dict(claims).get(name.removeprefix("claim:").partition("/")[0]) == "mine-x7k"
    }
    assert found.healthy is not True or (said == {"Healthy"} and not tainted and not shared)


def test_counts_have_those_that_a_status_calls_unhealthy() -> None:
    snapshot = scene.snapshot(DEVICE, scene.device("GPU-2"), _claimed(), published=["gpu.example.com"])
    entries = _entry("Unhealthy"), _entry("Unhealthy", "claim:gpu", CDI)
    well, ill = ({POD[:2]: _pod(POD, *some, claims={"gpu": "mine-x7k"})} for some in ((), entries))
    first = device_statuses(snapshot, {}, well, NO_REPORTS)
    found = device_statuses(snapshot, {}, ill, NO_REPORTS, first)
    assert {key.device: one.reason for key, one in found.ill.items()} == {
        "GPU-1": "XID 79",
        "pool-a/gpu-0": "XID 79",
    }
    counts = found.resources()
    assert (counts[GPU].unhealthy, counts[GPU].held_unhealthy, counts[GPU].allocatable) == (1, 1, 2)
    assert counts["gpu.example.com"].unhealthy == 1
    assert first.resources()[GPU].unhealthy == 0
    watched = replace(snapshot.devices[0], holders=())
    free = scene.statuses(scene.snapshot(watched, published=["gpu.example.com"]), NO_REPORTS, *ill.values())
    assert free.devices[0].free is False
    count = free.resources()["gpu.example.com"]
    assert (count.unhealthy, count.unavailable, count.held_unhealthy, count.free) == (1, 1, 0, 0)
    again = device_statuses(snapshot, {}, well, NO_REPORTS, found)
    assert not again.ill
    assert again.devices == first.devices


def test_claim_of_a_template_is_found_by_its_generated_name() -> None:
    """kubelet 1.36: the Pods API leaves out the names of generated claims."""
    device = scene.claimed("gpu-0", ClaimHolding(POD, "ml", "llama-0-gpu-x7k2d"), cdi=[CDI])
    for reference, known in (("gpu", True), ("gp", None), ("other", None)):
        pod = _pod(POD, _entry("Healthy", f"claim:{reference}", CDI), claims={reference: ""})
        assert _health(device, pod).healthy is known
