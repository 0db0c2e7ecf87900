"""exporter.metrics.devices: the limit on series."""

import asyncio
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import Holder
from exporter.mapping.snapshot import build
from exporter.mapping.state import State, StateStore
from exporter.metrics.devices import SeriesGroup, SeriesLimit, count_series, plan_series
from exporter.metrics.exporter import Metrics
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
            return (await metrics.document(Format.TEXT, compress=False)).decode()
        finally:
            metrics.close()

    mapping, found, rest = asyncio.run(scrape()).partition("# HELP devicelens_series_dropped")
    assert found
    (dropped,) = re.findall(r"^devicelens_series_dropped (\S+)$", rest, re.MULTILINE)
    samples = [sample for family in parse_text(mapping) for sample in family.samples]
    assert len({(sample.name, *sorted(sample.labels.items())) for sample in samples}) == len(samples)
    return int(float(dropped)), samples


LISTED = st.tuples(listings(), st.none() | allocatables())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(LISTED)
def test_count_equals_the_rendered_series_which_name_all_holders_and_no_other(
    answers: tuple[api_pb2.ListPodResourcesResponse, api_pb2.AllocatableResourcesResponse | None],
) -> None:
    state = _state(*answers)
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
    if dropped and counted[SeriesGroup.HOLDERS] + counted[SeriesGroup.RESOURCES] <= limit:
        assert exposed == counted[SeriesGroup.HOLDERS] + counted[SeriesGroup.RESOURCES]
        assert not any(sample.name.startswith("devicelens_device") for sample in samples)


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
    assert series == 300 + 2 + 1
    (note,) = limit.notes(state)
    assert note == (
        f"{series} series are more than --metrics.max-series 100: those of devices are left out of /metrics"
    )
    assert limit.notes(state) == (note,)
    assert len(caplog.records) == 1
    assert limit.notes(_node(10)) == ()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
