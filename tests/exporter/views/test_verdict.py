"""exporter.views.verdict and exporter.views.health: the worst that is known, in a severity and a sentence."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.mapping.device_health import DeviceHealth
from exporter.mapping.device_ids import read_id
from exporter.mapping.dra import PublishedDevice, PublishedName, Taint
from exporter.mapping.model import (
    NO_REPORTS,
    AdvertisedDevice,
    Anomaly,
    ClaimHolding,
    Container,
    Device,
    Doubt,
    Holder,
    PinnedMemory,
    Snapshot,
)
from exporter.mapping.state import Freshness, State
from exporter.views.explain import explain, sentences
from exporter.views.health import health_of_parts
from exporter.views.verdict import Severity, Verdict, device_verdict, pod_verdict, worst
from harness import scene
from harness.scene import GPU, device

A, B = Holder("ml", "llama-0", "trainer"), Holder("web", "vllm-0", "server")
CLAIM = scene.claimed("gpu-0", ClaimHolding(A, "ml", "wish"))
FRESH = Freshness.FRESH


def verdict(one: Device, *others: Device, complete: bool = True, freshness: Freshness = FRESH) -> Verdict:
    state = scene.state(replace(scene.snapshot(one, *others), complete=complete), at=1.0, anomalies=())
    return device_verdict(explain(state, one.key.device, reader=read_id), freshness)


@pytest.mark.parametrize(
    ("one", "complete", "freshness", "severity", "sentence"),
    [
        (device("d"), True, FRESH, Severity.OK, "Held by no pod."),
        (device("d", A, B), True, FRESH, Severity.OK, "Held by 2 pods."),
        (device("d", A, ok=False), True, FRESH, Severity.CRITICAL, "Unhealthy; held by 1 pod."),
        (device("d", A), False, FRESH, Severity.UNKNOWN, "Held by 1 pod."),
        (device("d", A), True, Freshness.AGEING, Severity.OK, "Held by 1 pod."),
        (device("d", A), True, Freshness.STALE, Severity.UNKNOWN, "Last known: held by 1 pod."),
        (
            device("d", A, ok=False),
            True,
            Freshness.STALE,
            Severity.CRITICAL,
            "Last known: unhealthy; held by 1 pod.",
        ),
    ],
)
def test_a_device(
    one: Device,
    complete: bool,
    freshness: Freshness,
    severity: Severity,
    sentence: str,
) -> None:
    found = verdict(one, complete=complete, freshness=freshness)
    assert (found.severity, found.sentence) == (severity, sentence)
    assert found.on("d") == f"d: {sentence[0].lower()}{sentence[1:]}"


def test_another_anomaly_is_a_warning() -> None:
    one = device("d", A)
    state = scene.state(scene.snapshot(one), at=1.0, anomalies=(Anomaly("numa_split", GPU, "d", A),))
    assert device_verdict(explain(state, "d", reader=read_id), FRESH).severity is Severity.WARNING


@given(st.lists(st.sampled_from(Severity)))
def test_the_worst_is_critical_then_warning_then_unknown(severities: list[Severity]) -> None:
    order = [Severity.CRITICAL, Severity.WARNING, Severity.UNKNOWN, Severity.OK]
    assert worst(severities) == next((one for one in order if one in severities), Severity.OK)


# --- pods -----------------------------------------------------------------------------------------------

_MEMORY = (PinnedMemory("memory", (0,), 1 << 30), PinnedMemory("memory", (1,), 1 << 30))


def pod(container: Container, *devices: Device, complete: bool = True, **facts: Any) -> Verdict:
    state = scene.state(scene.snapshot(*devices, complete=complete), at=1.0, anomalies=())
    return pod_verdict([container], state.devices, facts.pop("anomalies", ()), freshness=FRESH, **facts)


@pytest.mark.parametrize(
    ("container", "devices", "severity", "sentence"),
    [
        (
            Container(A, cpu_ids=(0, 1), memory=_MEMORY),
            [device("d", A), device("e", A)],
            Severity.OK,
            "It holds 2 devices, 2 exclusive CPUs and 2 GiB memory.",
        ),
        # Nobody reports the health of a claimed device.
        (Container(A), [CLAIM], Severity.UNKNOWN, "It holds 1 device; its health is not reported."),
        (
            Container(A),
            [CLAIM, device("d", A)],
            Severity.UNKNOWN,
            "It holds 2 devices; the health of 1 is not reported.",
        ),
        (
            Container(A),
            [device("d", A), device("e", A, ok=False)],
            Severity.CRITICAL,
            "1 of its 2 devices is unhealthy; it holds 2 devices.",
        ),
    ],
)
def test_a_pod_has_everything_that_it_holds(
    container: Container, devices: list[Device], severity: Severity, sentence: str
) -> None:
    assert pod(container, *devices) == Verdict(severity, sentence)


def test_a_pod_that_administers_devices_does_not_hold_them() -> None:
    words = "It holds nothing; it uses 3 devices for administration."
    assert pod(Container(A), administers=3) == Verdict(Severity.OK, words)


def test_a_pod_whose_devices_have_no_known_health() -> None:
    found = pod(Container(A), device("d", A, ok=False), complete=False)
    assert found == Verdict(Severity.UNKNOWN, "It holds 1 device.")
    split = [Anomaly("numa_split", GPU, holder=A)]
    assert pod(Container(A), device("d", A), anomalies=split).severity is Severity.WARNING


def test_a_claimed_device() -> None:
    """A health that no source reports is never OK."""
    words = "Health not reported; held by 1 pod through 1 claim."
    assert verdict(CLAIM) == Verdict(Severity.UNKNOWN, words)
    taint = Taint("example.com/xid", "79", "NoExecute")
    published = PublishedDevice(PublishedName("gpu.example.com", "pool-a", "gpu-0"), taints=(taint,))
    ill = scene.claimed("gpu-0", ClaimHolding(A, "ml", "wish"), published=published, allocatable=False)
    assert verdict(ill) == Verdict(Severity.CRITICAL, "Tainted; held by 1 pod through 1 claim.")


# --- physical devices -----------------------------------------------------------------------------------


def shares(*ok: bool, reasons: tuple[str, ...] = (), complete: bool = True) -> State:
    found = [device(f"G::{i}", A, parent="G", ok=one) for i, one in enumerate(ok)]
    reports = {f"G::{i}": AdvertisedDevice(not why, why, 100.0 + i) for i, why in enumerate(reasons)}
    advertised = scene.reported(reports, source="p") if reports else NO_REPORTS
    shown: Snapshot = replace(scene.snapshot(*found), complete=complete)
    return scene.state(shown, at=1000.0, advertised=advertised)


@pytest.mark.parametrize(
    ("state", "words", "reason", "since", "sentence"),
    [
        (shares(True, True, reasons=("", "")), "healthy", "", 101.0, "Divided into 2 devices, all held."),
        (
            shares(False, False, reasons=("XID 79", "XID 79")),
            *("unhealthy", "XID 79", 100.0),
            "Unhealthy; divided into 2 devices, all held.",
        ),
        (
            shares(True, False, False, reasons=("", "XID 79", "row remap")),
            "2 of 3 parts unhealthy",
            "G::1: XID 79; G::2: row remap",
            101.0,
            "2 of 3 parts unhealthy; divided into 3 devices, all held.",
        ),
        (shares(True, True, complete=False), "unknown", "", None, "Divided into 2 devices, all held."),
    ],
)
def test_a_physical_device_has_the_worst_health_of_its_parts(
    state: State, words: str, reason: str, since: float | None, sentence: str
) -> None:
    facts = explain(state, "G", reader=read_id)
    found = facts.health
    assert found is not None
    assert found == health_of_parts(facts.parts, state)
    assert (found.words, found.reason, found.since) == (words, reason, since)
    assert device_verdict(facts, FRESH).sentence == sentence
    assert (device_verdict(facts, FRESH).severity is Severity.CRITICAL) == ("unhealthy" in words)
    (said,) = [s for s in sentences(facts, state, now=1000.0, stale_after=60.0) if s.startswith("Health: ")]
    assert words in said
    assert reason in said


def test_an_anomaly_of_several_parts_is_one_sentence_that_names_them() -> None:
    state = shares(False, False, reasons=("XID 79", "XID 79"))
    # Another device keeps the resource's plugin from being gone.
    more = replace(state.snapshot, devices=(*state.snapshot.devices, device("other")))
    state = scene.state(more, at=1000.0, advertised=state.advertised)
    found = sentences(explain(state, "G", reader=read_id), state, now=1000.0, stale_after=60.0)
    assert [s for s in found if s.startswith("Anomaly")] == [
        "Anomaly: unhealthy_held (G::0, G::1): it is held but not allocatable; its plugin says why: XID 79."
    ]


def test_a_holder_that_the_kubelet_has_not_listed_since_its_restart_is_a_warning() -> None:
    doubts = {A[:2]: Doubt("its uid is unknown", 900.0, 1200.0)}
    words = ", not confirmed since the kubelet restarted."
    whole, part = device("d", A), device("G::0", A, parent="G")
    shown = replace(scene.snapshot(whole, part, CLAIM), unconfirmed=doubts)
    state = scene.state(shown, at=1000.0, anomalies=())
    for name in ("d", "G", "gpu-0"):
        found = device_verdict(explain(state, name, reader=read_id), FRESH)
        assert found.severity is Severity.WARNING
        assert found.sentence.endswith(words)
    found = pod(Container(A), whole, unconfirmed=True)
    assert found == Verdict(Severity.WARNING, f"It holds 1 device{words}")


def test_a_device_that_the_kubelet_no_longer_offers_is_critical_and_says_so() -> None:
    state = scene.state(scene.snapshot(device("d", ok=False)), at=1000.0, anomalies=())
    facts = replace(
        explain(state, "d", reader=read_id),
        health=DeviceHealth("unhealthy", "no longer offered", since=900.0),
    )
    assert device_verdict(facts, FRESH) == Verdict(Severity.CRITICAL, "No longer offered; held by no pod.")
