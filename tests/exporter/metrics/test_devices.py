"""exporter.metrics.families: the families of devices."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import Metric
from prometheus_client.exposition import generate_latest as plain_text
from prometheus_client.openmetrics.exposition import generate_latest as plain_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.mapping.device_status import device_statuses
from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.model import Device, DeviceKey, Holder, Snapshot
from exporter.mapping.state import State
from exporter.metrics.families import MappingFamilies
from exporter.metrics.series_limit import SeriesGroup, SeriesPart, SeriesPlan, count_series
from runtime.blocks import plain
from runtime.exposition import Format

PARSERS: dict[Format, Callable[[str], Iterable[Metric]]] = {
    Format.TEXT: parse_text,
    Format.OPENMETRICS: parse_openmetrics,
}
WRITERS: dict[Format, Callable[..., bytes]] = {
    Format.TEXT: plain_text,
    Format.OPENMETRICS: plain_openmetrics,
}

OWNER = ("node", "resource", "device", "parent", "namespace", "pod", "container", "pod_uid")

# What would end a label, a line or a document; and ordinary text.
HOSTILE = st.text(
    st.sampled_from('\\"\n{},= #a\x00\x85\u2028é☃😀') | st.characters(exclude_categories=["Cs"]), max_size=8
)
HOLDERS = st.builds(Holder, HOSTILE, HOSTILE, HOSTILE, HOSTILE)
DEVICES = st.builds(
    Device,
    st.builds(DeviceKey, HOSTILE, HOSTILE),
    HOSTILE,
    st.lists(st.integers(0, 9), max_size=3, unique=True).map(lambda nodes: tuple(sorted(nodes))),
    st.booleans(),
    st.lists(HOLDERS, max_size=3, unique=True).map(lambda holders: tuple(sorted(holders))),
)
TIMES = st.floats(0, 4e9) | st.sampled_from([0.0, 1e6, 123456.0, 1234567.0, 1.7e9, 1_700_000_000.25])


@st.composite
def states(draw: st.DrawFn) -> State:
    """A mapping of devices with names that nobody would wish for."""
    devices = draw(st.lists(DEVICES, max_size=6, unique_by=lambda device: device.key))
    return _state(sorted(devices, key=lambda device: device.key), lambda _: draw(TIMES), draw(st.booleans()))


def _state(devices: Sequence[Device], time: Callable[[Holding], float], complete: bool = True) -> State:
    held = [Holding(device.key, holder) for device in devices for holder in device.holders]
    snapshot = Snapshot(devices=tuple(devices), complete=complete)
    return State(snapshot=snapshot, since={holding: HeldSince(time(holding)) for holding in held})


@dataclass(frozen=True)
class Parsed:
    """Families as a parser found them, for a renderer."""

    families: list[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _text(families: MappingFamilies, state: State) -> str:
    return plain(families.of(state, SeriesPlan(0, {}))).decode()


@pytest.mark.parametrize("form", Format)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(state=states(), node=HOSTILE)
def test_mapping_equals_that_of_prometheus_client(form: Format, state: State, node: str) -> None:
    text = _text(MappingFamilies(node), state)
    end = "# EOF\n" if form is Format.OPENMETRICS else ""
    families = list(PARSERS[form](text + end))
    assert WRITERS[form](Parsed(families)).decode() == text + end

    samples = [
        (sample.name.removeprefix("devicelens_device_"), sample) for f in families for sample in f.samples
    ]
    owners = {
        tuple(sample.labels[name] for name in OWNER) for name, sample in samples if name == "owner_info"
    }
    assert owners == {
        (node, *device.key, device.parent, *holder)
        for device in state.snapshot.devices
        for holder in device.holders
    }
    assert {
        (sample.labels["resource"], sample.labels["device"], sample.labels["numa_node"])
        for name, sample in samples
        if name == "info"
    } == {(*device.key, ",".join(map(str, device.numa_nodes))) for device in state.snapshot.devices}
    health = {
        (sample.labels["resource"], sample.labels["device"], sample.value)
        for name, sample in samples
        if name == "healthy"
    }
    devices = state.snapshot.devices if state.snapshot.complete else ()
    assert health == {(*device.key, float(device.allocatable)) for device in devices}
    since = [sample.value for name, sample in samples if name == "held_since_timestamp_seconds"]
    assert sorted(since) == pytest.approx(sorted(one.at for one in _shown(state)))


def test_what_is_known_of_a_device_is_exposed_and_counted() -> None:
    known, unknown = Device(DeviceKey("r/a", "0000:3B:00.0"), allocatable=True), Device(DeviceKey("r/b", "b"))
    state = _state([known, unknown], lambda _: 1.0)
    text = _text(MappingFamilies("n1"), state)
    (labels,) = [
        sample.labels
        for family in parse_text(text)
        for sample in family.samples
        if sample.name == "devicelens_device_identity_info"
    ]
    names = {"node": "n1", "resource": "r/a", "device": "0000:3B:00.0"}
    assert labels == names | {"uuid": "", "pci_address": "0000:3b:00.0", "model": "", "driver": ""}
    counted = count_series(state)
    devices = [counted[SeriesPart(SeriesGroup.DEVICES, one.key.resource)] for one in state.snapshot.devices]
    assert devices == [
        len([line for line in text.splitlines() if f'resource="{name}"' in line]) - 6
        for name in ("r/a", "r/b")
    ]


def _shown(state: State) -> list[HeldSince]:
    return [state.since[Holding(d.key, holder)] for d in state.snapshot.devices for holder in d.holders]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data(), pool=st.lists(DEVICES, min_size=1, max_size=8, unique_by=lambda device: device.key))
def test_kept_blocks_of_devices_equal_newly_written_ones(data: st.DataObject, pool: list[Device]) -> None:
    kept, last = MappingFamilies("n"), None
    pool.sort(key=lambda device: device.key)
    for _ in range(4):
        chosen = data.draw(st.sets(st.sampled_from(range(len(pool)))))
        for index in data.draw(st.sets(st.sampled_from(range(len(pool))))):
            pool[index] = replace(pool[index], allocatable=not pool[index].allocatable)
        times = data.draw(st.lists(st.sampled_from([1.0, 2.5]), min_size=3, max_size=3))
        devices = [pool[index] for index in sorted(chosen)]
        state = _state(devices, lambda holding, times=times: times[len(holding.holder.pod) % 3])  # type: ignore[misc] # bound
        last = device_statuses(state.snapshot, {}, state.pods, state.advertised, last).dated(state.since)
        assert _text(kept, replace(state, statuses=last)) == _text(MappingFamilies("n"), state)
