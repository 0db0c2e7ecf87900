"""exporter.metrics.series_limit: the limit on series."""

import asyncio
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from exporter.mapping.dra import PodDevices
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import Anomaly, Doubt, Holder
from exporter.mapping.snapshot import build
from exporter.mapping.state import State, StateStore
from exporter.metrics.exporter import Metrics
from exporter.metrics.series_limit import SeriesGroup, SeriesLimit, count_series, plan_series
from harness import scene
from harness.answers import allocatables, listings
from kubelet.pb.podresources.v1 import api_pb2
from runtime.exposition import Format


def _state(
    listed: api_pb2.ListPodResourcesResponse,
    offered: api_pb2.AllocatableResourcesResponse | None,
) -> State:
    snapshot = build(listed, offered)
    pods = {
        one.holder[:2]: PodIdentity(*one.holder[:2], "uid", labels=(("a", "b"),))
        for one in snapshot.containers
    }
    return scene.state(snapshot, at=0.0, since=1.0, pods=pods)


def _scraped(state: State, limit: int) -> tuple[int, list[Sample]]:
    """The number of series that are dropped, and the series of the mapping."""

    async def scrape() -> str:
        states = StateStore()
        states.publish(state)
        metrics = Metrics(
            *(states,), node="n", version="v", stale_after=60.0, clock=lambda: 0.0, limit=SeriesLimit(limit)
        )
        try:
            return b"".join(await metrics.document(Format.TEXT, compress=False)).decode()
        finally:
            metrics.close()

    mapping, found, rest = asyncio.run(scrape()).partition("# HELP devicelens_series_dropped")
    assert found
    (dropped,) = re.findall(r"^devicelens_series_dropped (\S+)$", rest, re.MULTILINE)
    samples = [sample for family in parse_text(mapping) for sample in family.samples]
    assert len({(sample.name, *sorted(sample.labels.items())) for sample in samples}) == len(samples)
    return int(float(dropped)), samples


OF_ONE_RESOURCE = {SeriesGroup.DEVICES, SeriesGroup.ANOMALIES}
LISTED = st.tuples(listings(), st.none() | allocatables())
DOUBT = Doubt("the kubelet may not list all pods yet", 0.0, 10.0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(LISTED, st.booleans())
def test_count_equals_the_rendered_series_which_name_all_holders_and_no_other(
    answers: tuple[api_pb2.ListPodResourcesResponse, api_pb2.AllocatableResourcesResponse | None],
    unconfirmed: bool,
) -> None:
    state = _state(*answers)
    if unconfirmed:
        missing = {one.holder[:2]: DOUBT for one in state.snapshot.containers[::2]}
        unprovable = {
            key: PodIdentity(*key, "uid", devices=PodDevices(unreadable="hami.io/x-devices-allocated"))
            for key in {one.holder[:2] for one in state.snapshot.containers}
        }
        state = replace(state, snapshot=replace(state.snapshot, unconfirmed=missing), pods=unprovable)
    counted = sum(count_series(state).values())
    dropped, samples = _scraped(state, max(counted, 1))
    assert (dropped, len(samples)) == (0, counted)
    names = ("namespace", "pod", "container")
    named = {tuple(one.labels[name] for name in names) for one in samples if "container" in one.labels}
    assert named - {("", "", "")} == {tuple(one.holder[:3]) for one in state.snapshot.containers}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(LISTED, st.data())
def test_series_stay_within_the_limit_and_devices_go_first(
    answers: tuple[api_pb2.ListPodResourcesResponse, api_pb2.AllocatableResourcesResponse | None],
    data: st.DataObject,
) -> None:
    state = _state(*answers)
    counted = count_series(state)
    total = sum(counted.values())
    limit = data.draw(st.integers(1, total + 1))
    dropped, samples = _scraped(state, limit)
    exposed = len(samples)
    assert exposed <= limit
    assert exposed + dropped == total
    parts = [series for part, series in counted.items() if part.group in OF_ONE_RESOURCE]
    if dropped and total - sum(parts) <= limit:
        largest = sorted(parts, reverse=True)
        needed = next(n for n in range(len(parts) + 1) if total - sum(largest[:n]) <= limit)
        assert dropped == sum(largest[:needed])


def test_a_resource_with_many_devices_leaves_the_others_their_series() -> None:
    pod = Holder("ml", "trainer", "main")
    many = [scene.device(f"m{number}", resource="example.com/many") for number in range(500)]
    gpus = [
        scene.device("g0", pod, resource="example.com/gpu"),
        scene.device("g1", resource="example.com/gpu"),
    ]
    anomalies = (
        Anomaly("unattributed", "example.com/many", "m0"),
        Anomaly("unattributed", "example.com/gpu", "g0"),
    )
    state = scene.state(scene.snapshot(*many, *gpus, complete=False), at=0.0, anomalies=anomalies)
    dropped, samples = _scraped(state, 100)
    assert dropped == 500
    shown = {(one.name, one.labels.get("device")) for one in samples}
    assert {("devicelens_device_owner_info", "g0"), ("devicelens_device_info", "g1")} <= shown
    assert {name for name, device in shown if device == "m0"} == {"devicelens_anomaly_info"}
    assert {
        one.labels["resource"]: one.value for one in samples if one.name == "devicelens_resource_devices"
    } == {
        "example.com/many": 500,
        "example.com/gpu": 2,
    }
    (note,) = SeriesLimit(100).notes(state)
    assert "those of devices of 'example.com/many' are left out of /metrics" in note
    left_out = {
        o.labels["resource"]: o.value for o in samples if o.name == "devicelens_resource_series_dropped"
    }
    assert left_out == {"example.com/many": 500, "example.com/gpu": 0}


def _node(devices: int) -> State:
    trainer = Holder("ml", "trainer", "main")
    held = [scene.device(f"g{number}", trainer) for number in range(devices)]
    return scene.state(scene.snapshot(*held, complete=False), at=0.0, generation=devices)


def test_reached_limit_is_noted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    limit = SeriesLimit(100)
    assert limit.notes(_node(10)) == ()
    assert not caplog.records
    state = _node(100)
    series = plan_series(state, 100).series
    assert series == 300 + 3 + 1
    (note,) = limit.notes(state)
    assert note == (
        f"{series} series are more than --metrics.max-series 100: those of devices of 'nvidia.com/gpu' "
        "are left out of /metrics"
    )
    assert limit.notes(state) == (note,)
    assert len(caplog.records) == 1
    # By its content: an answer that was not published had the same generation.
    assert limit.notes(replace(_node(10), generation=100)) == ()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
