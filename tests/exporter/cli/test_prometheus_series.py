"""What an exporter tells, scraped in whatever way, is made into the state that it was told from."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.cli.prometheus import labels
from exporter.cli.prometheus.answers import Sample
from exporter.cli.prometheus.fleet import moment
from exporter.cli.prometheus.states import distinct, read
from exporter.mapping.anomalies import Anomaly
from exporter.mapping.holdings import HeldSince, _of_devices, holdings
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Container,
    Device,
    DeviceKey,
    Holder,
    Snapshot,
)
from exporter.mapping.state import Freshness, State
from harness.hostile import CORPUS

NOW = 1_793_227_263.25
Scrape = Callable[..., list[Sample]]

HELD = Holder("ml", "llama-0", "trainer", "uid-1")
SNAPSHOT = Snapshot(
    (
        Device(DeviceKey("nvidia.com/gpu", "GPU-0::0"), "GPU-0", (0, 1), True, (HELD,)),
        Device(DeviceKey("nvidia.com/gpu", "GPU-0::1"), "GPU-0", (), True, ()),
        Device(DeviceKey("nvidia.com/gpu", "GPU-1"), "", (1,), False, (Holder("ml", "old", "x"),)),
        Device(DeviceKey("nvidia.com/gpu", "GPU-2"), "", (1,), False, ()),
    ),
    (
        ClaimDevice(
            ClaimDeviceKey("gpu.example.com", "worker-3", "gpu-7", "s1"),
            (ClaimHolder(HELD, "ml", "wish"),),
        ),
    ),
    (Container(HELD, {"nvidia.com/gpu": 1}, cpu_ids=(2, 3), numa_nodes=(0, 1)),),
)
STATE = State(
    generation=1,
    snapshot=SNAPSHOT,
    taken_at=NOW - 3,
    changed_at=NOW - 3,
    since={holding: HeldSince(NOW - 600) for holding in holdings(SNAPSHOT)},
    pods={("ml", "llama-0"): PodIdentity("ml", "llama-0", "uid-1", "Running", Workload("Job", "llama"))},
    anomalies=(
        Anomaly("plugin_gone", "x.example/y"),
        Anomaly("unhealthy_held", "nvidia.com/gpu", "GPU-1", Holder("ml", "old", "x")),
    ),
)


@pytest.mark.parametrize("honour", [True, False])
@pytest.mark.parametrize("target", [{}, {"node": "other-name", "cluster": "a", "service": "x"}])
def test_a_state_comes_back_whole(scrape: Scrape, target: dict[str, str], *, honour: bool) -> None:
    (node,) = read(scrape(STATE, "worker-3", NOW, honour=honour, target=target)).nodes
    assert node.name == "worker-3"
    assert node.state.snapshot.devices == SNAPSHOT.devices
    assert node.state.snapshot.claims == SNAPSHOT.claims
    assert {holding: since.at for holding, since in node.state.since.items()} == dict.fromkeys(
        _of_devices(SNAPSHOT.devices), NOW - 600
    )
    assert node.state.pods == STATE.pods
    assert node.cpus == ((HELD, 2),)
    assert [(a.kind, a.resource, a.device, a.holder) for a in node.state.anomalies] == [
        ("plugin_gone", "x.example/y", "", None),
        ("unhealthy_held", "nvidia.com/gpu", "GPU-1", Holder("ml", "old", "x")),
    ]
    assert node.place == ((("cluster", "a"),) if target else ())
    seen = moment(node, NOW)
    assert (seen.freshness, seen.state.age(NOW)) == (Freshness.FRESH, 3.0)


# Prometheus knows no empty label, and the exporter makes no name that is empty.
_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.sampled_from(
    sorted(CORPUS.values())
)
_HOLDERS = st.builds(Holder, _NAMES, _NAMES, _NAMES, st.sampled_from(["", "uid"]))


@st.composite
def _snapshots(draw: st.DrawFn) -> Snapshot:
    keys = draw(st.lists(st.builds(DeviceKey, _NAMES, _NAMES), unique=True, max_size=4))
    devices = [
        Device(
            key,
            draw(st.just("") | _NAMES),
            tuple(sorted(draw(st.sets(st.integers(0, 9), max_size=3)))),
            draw(st.booleans()),
            tuple(sorted(draw(st.lists(_HOLDERS, unique_by=lambda h: h[:3], max_size=2)))),
        )
        for key in sorted(keys)
    ]
    return Snapshot(tuple(devices))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=60,
)
@given(_snapshots(), st.booleans())
def test_whatever_the_names_are(scrape: Scrape, snapshot: Snapshot, honour: bool) -> None:
    state = State(1, snapshot, NOW, NOW, {holding: HeldSince(NOW - 5) for holding in holdings(snapshot)})
    seen = read(scrape(state, "n", NOW, honour=honour))
    if not snapshot.devices:
        assert (seen.nodes, [well for _, well in seen.mute]) == ((), [True])
        return
    (node,) = seen.nodes
    assert node.state.snapshot.devices == snapshot.devices


@pytest.mark.parametrize("honour", [True, False])
def test_a_stale_exporter_tells_no_holders_and_says_so(scrape: Scrape, *, honour: bool) -> None:
    (node,) = read(scrape(None, "worker-3", NOW, honour=honour, up=0.0, success=NOW - 90)).nodes
    assert (node.name, node.stale, node.state.snapshot.devices) == ("worker-3", True, ())
    assert moment(node, NOW).freshness is Freshness.STALE


def test_an_exporter_that_cannot_ask_is_ageing(scrape: Scrape) -> None:
    (node,) = read(scrape(STATE, "worker-3", NOW, up=0.0)).nodes
    assert moment(node, NOW).freshness is Freshness.AGEING


def test_without_the_time_of_its_success_how_old_it_is_is_not_known(scrape: Scrape) -> None:
    samples = [s for s in scrape(STATE, "n", NOW) if s.metric["__name__"] != labels.LAST_SUCCESS]
    (node,) = read(samples).nodes
    assert moment(node, NOW).freshness is Freshness.UNKNOWN


def test_an_old_kubelet_s_devices_are_not_called_unhealthy(scrape: Scrape) -> None:
    snapshot = replace(SNAPSHOT, devices=SNAPSHOT.devices[:1], complete=False)
    (node,) = read(scrape(replace(STATE, snapshot=snapshot), "n", NOW)).nodes
    assert not node.state.snapshot.complete


def test_one_node_scraped_twice_is_told_once_as_it_was_seen_last(scrape: Scrape) -> None:
    older = replace(STATE, taken_at=NOW - 20, snapshot=replace(SNAPSHOT, devices=SNAPSHOT.devices[:1]))
    samples = [
        *scrape(older, "worker-3", NOW, target={"job": "one"}),
        *scrape(STATE, "worker-3", NOW, honour=False, target={"job": "two"}),
    ]
    nodes, notes = distinct(read(samples))
    (node,) = nodes
    assert len(node.state.snapshot.devices) == len(SNAPSHOT.devices)
    assert notes == (
        (
            "2 targets tell different things of worker-3: shown is the one that looked last "
            "(instance 10.0.0.1:10190, job two)"
        ),
    )
    same = [
        *scrape(STATE, "worker-3", NOW, target={"job": "one"}),
        *scrape(STATE, "worker-3", NOW, target={"prometheus_replica": "b"}),
    ]
    nodes, notes = distinct(read(same))
    assert (len(nodes), notes) == (1, ())


def test_nodes_of_one_name_in_two_clusters_are_two(scrape: Scrape) -> None:
    samples = [
        *scrape(STATE, "worker-3", NOW, target={"cluster": "a"}),
        *scrape(STATE, "worker-3", NOW, target={"cluster": "b"}),
    ]
    nodes, notes = distinct(read(samples))
    assert [dict(node.place) for node in nodes] == [{"cluster": "a"}, {"cluster": "b"}]
    assert notes == ()
    assert labels.telling(node.place for node in nodes) == {"cluster"}


def test_nodes_of_one_name_that_no_label_tells_apart_are_not_made_one(scrape: Scrape) -> None:
    """Two clusters, one Prometheus, and no label that says which: their devices are quite others."""
    other = replace(SNAPSHOT, devices=(Device(DeviceKey("nvidia.com/gpu", "GPU-9")),))
    samples = [
        *scrape(STATE, "worker-3", NOW, target={"instance": "10.0.0.1:1"}),
        *scrape(replace(STATE, snapshot=other), "worker-3", NOW, target={"instance": "10.9.0.1:1"}),
    ]
    nodes, notes = distinct(read(samples))
    assert [dict(node.place) for node in nodes] == [{"instance": "10.0.0.1:1"}, {"instance": "10.9.0.1:1"}]
    assert notes == (
        (
            "several nodes are called worker-3: instance tells them apart; a label that names their cluster "
            "would be better"
        ),
    )


def test_nonsense_in_series_is_no_error() -> None:
    base = {"__name__": labels.DEVICE_INFO, "node": "n", "resource": "r", "device": "d"}
    samples = [
        Sample({**base, "numa_node": "x,1,,²,-1"}, (NOW, "NaN")),
        Sample(
            {"__name__": labels.HELD_SINCE, **base, "pod": "p"} | {"__name__": labels.HELD_SINCE},
            (NOW, "+Inf"),
        ),
        Sample({"__name__": labels.LAST_SUCCESS}, (NOW, "soon")),
        Sample({"__name__": "up", "instance": "x"}, (NOW, "1")),
        Sample({}, (NOW, "1")),
    ]
    (node,) = read(samples).nodes
    (device,) = node.state.snapshot.devices
    assert (device.numa_nodes, node.state.since, node.state.taken_at) == ((1,), {}, None)
