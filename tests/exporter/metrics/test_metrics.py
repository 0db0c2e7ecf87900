"""exporter.metrics.exporter: the exposition of a mapping, and the exporter's own families."""

import asyncio
import gzip
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.mapping.holdings import HeldSince, Holding, HoldingTracker
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    ClaimHolding,
    Device,
    Holder,
    PinnedMemory,
    PluginReport,
    Snapshot,
    merge_reports,
)
from exporter.mapping.state import Failure, State, StateStore
from exporter.metrics import exporter as metrics_module
from exporter.metrics import process
from exporter.metrics.exporter import Metrics
from exporter.metrics.families import MappingFamilies
from exporter.metrics.process import Counters
from exporter.metrics.series_limit import SeriesPlan
from exporter.refresh.protocols import Phase, Trigger
from harness import scene
from harness.scene import device
from harness.tools import required
from runtime import exposition
from runtime.blocks import Block
from runtime.exposition import Family, Format

STALE_AFTER = 60.0

GPU, NIC = "example.com/gpu", "example.com/nic"
TRAINER = Holder("ml", "trainer", "main")
SIDE = Holder("ml", "trainer", "side")
SERVER = Holder("web", "server", "main")

FREE = device("GPU-3", resource=GPU)

RICH = scene.snapshot(
    device("GPU-1::0", TRAINER, SERVER, resource=GPU, parent="GPU-1", numa=(0,)),
    device("GPU-2", TRAINER, resource=GPU, numa=(0, 1)),
    FREE,
    device('nic "0"\\\n', SIDE, resource=NIC, ok=False),
    device("nic1", resource=NIC, numa=(1,)),
    scene.claimed(
        "d0",
        ClaimHolding(TRAINER, "ml", "shared", "share-1", "r", "big", admin=False),
        ClaimHolding(SERVER, "web", "own", "share-1"),
        driver="driver.example",
        pool="node",
        cdi=["cdi"],
    ),
    pinned={
        TRAINER: (
            (2, 3),
            (PinnedMemory("memory", (0, 1), 2**31), PinnedMemory("hugepages-1Gi", (), 1)),
        )
    },
)

PODS = {
    ("ml", "trainer"): PodIdentity(
        *("ml", "trainer", "uid-1", "Running"),
        Workload("StatefulSet", "train"),
        "high",
        (("app.kubernetes.io/name", '"t"'), ("team", "ml")),
    ),
    ("web", "server"): PodIdentity("web", "server", "uid-2"),
}

EXPECTED, STALE, OWN = (
    (Path(__file__).parent / "expected" / f"{name}.prom").read_text(encoding="utf-8")
    for name in ("rich", "stale", "own")
)
"""Expositions of the rich mapping and of a stale one, and the heads of the exporter's own families."""


PARSERS: dict[Format, Callable[[str], Iterable[Metric]]] = {
    Format.TEXT: parse_text,
    Format.OPENMETRICS: parse_openmetrics,
}


@dataclass
class Exposed:
    """Metrics over a store and a clock that the test controls; `written` are the mappings written."""

    states: StateStore = field(default_factory=StateStore)
    now: float = 1_700_000_100.0
    written: list[State] = field(default_factory=list[State])

    def __post_init__(self) -> None:
        self.metrics = Metrics(
            self.states, node="node-7", version="1.2.3", stale_after=STALE_AFTER, clock=lambda: self.now
        )

    async def text(self, form: Format = Format.TEXT) -> str:
        return b"".join(await self.metrics.document(form, compress=False)).decode()

    def publish(self, snapshot: Snapshot = RICH, **changes: Any) -> State:
        state = _state(snapshot, **changes)
        self.states.publish(state)
        return state


@pytest.fixture
def its(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exposed]:
    found, real = Exposed(), MappingFamilies.of

    def counted(families: MappingFamilies, state: State, plan: SeriesPlan) -> list[Block]:
        found.written.append(state)
        return real(families, state, plan)

    monkeypatch.setattr(MappingFamilies, "of", counted)
    yield found
    found.metrics.close()


def _since(holding: Holding) -> HeldSince:
    return HeldSince(1_700_000_000.25 if holding.holder == SERVER else 1_700_000_000.0)


def _state(snapshot: Snapshot = RICH, taken_at: float = 1_700_000_100.0, **changes: Any) -> State:
    pods = PODS if snapshot is RICH else {}
    return scene.state(snapshot, at=taken_at, since=_since, pods=pods, **changes)


def _samples(text: str, name: str) -> dict[tuple[str, ...], float]:
    """Samples of `devicelens_NAME` by the values of their labels, labels sorted by name."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
        if sample.name == f"devicelens_{name}"
    }


def _rows(families: Iterable[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in families
        for sample in family.samples
    }


TAKEN = "last_refresh_success_timestamp_seconds"
UNAVAILABLE = Failure("List", "UNAVAILABLE", "not up", 1.0)


async def test_rich_mapping_is_rendered_byte_for_byte(its: Exposed) -> None:
    its.publish()
    text = await its.text()
    assert text.startswith(EXPECTED)
    own = text.removeprefix(EXPECTED)
    heads = [line for line in own.splitlines(keepends=True) if line.startswith("#")]
    assert heads == OWN.splitlines(keepends=True)
    assert _samples(own, "up") == {(): 1.0}
    assert _samples(own, TAKEN) == {(): 1_700_000_100.0}
    ((api, _, version),) = _samples(own, "build_info")
    assert (api, version) == ("v1", "1.2.3")
    helps = re.findall(r"^# HELP devicelens_\S+ .*\[(?:STABLE|ALPHA)\]$", text, re.MULTILINE)
    assert len(helps) == text.count("# HELP") == 34


async def test_both_formats_and_gzip_have_the_same_samples(its: Exposed) -> None:
    its.publish()
    its.metrics.counters.refreshed([Trigger.START], 0.002)
    found: list[set[tuple[str, tuple[tuple[str, str], ...], float]]] = []
    for form in Format:
        text = await its.text(form)
        assert gzip.decompress(b"".join(await its.metrics.document(form, compress=True))).decode() == text
        found.append(_rows(PARSERS[form](text)))
    assert found[0] == found[1]


async def test_stale_mapping_is_withdrawn_and_reported(its: Exposed) -> None:
    its.publish()
    for seconds, expected in ((0, EXPECTED), (STALE_AFTER, EXPECTED), (0.001, STALE)):
        its.now += seconds
        for form in Format:
            assert (await its.text(form)).startswith(expected if form is Format.TEXT else expected[:200])
    text = await its.text()
    assert "trainer" not in text
    assert "example.com" not in text
    assert (_samples(text, "up"), _samples(text, TAKEN)) == ({(): 0.0}, {(): 1_700_000_100.0})
    # The same answer again: nothing rendered before is left.
    its.publish(taken_at=its.now)
    assert (await its.text()).startswith(EXPECTED)


async def test_failure_sets_up_to_0_and_keeps_the_mapping(its: Exposed) -> None:
    its.states.publish(State(failure=UNAVAILABLE))
    text = await its.text()
    for absent in ("devicelens_device", "devicelens_resource", "devicelens_anomaly", TAKEN):
        assert absent not in text
    assert _samples(text, "up") == {(): 0.0}
    assert _samples(text, "build_info")
    its.publish()
    assert _samples(await its.text(), "up") == {(): 1.0}
    its.publish(failure=UNAVAILABLE)
    text = await its.text()
    assert text.startswith(EXPECTED)
    assert _samples(text, "up") == {(): 0.0}


async def test_no_health_without_an_allocatable_answer(its: Exposed) -> None:
    its.publish(scene.snapshot(device("GPU-2", TRAINER, resource=GPU), complete=False))
    text = await its.text()
    for name in ("device_healthy", "resource_allocatable_devices", "resource_unhealthy_devices"):
        assert _samples(text, name) == {}
    for name in ("device_info", "resource_devices", "resource_allocated_devices"):
        assert len(_samples(text, name)) == 1


async def test_foreseeable_counters_begin_at_0(its: Exposed) -> None:
    its.metrics.counters.changed(_state(), HoldingTracker().advance(RICH, 0.0))
    text = await its.text()
    assert _samples(text, "refreshes_total") == {(trigger.value,): 0.0 for trigger in Trigger}
    errors = _samples(text, "refresh_errors_total")
    assert set(errors.values()) == {0.0}
    assert {("UNSETTLED", "List"), ("DEADLINE_EXCEEDED", "GetAllocatableResources")} <= errors.keys()
    for family in ("allocations_total", "releases_total", "allocation_hold_seconds_count"):
        resources = ("driver.example", GPU, NIC)
        assert _samples(text, family) == {("node-7", resource): 0.0 for resource in resources}


async def test_mapping_is_written_once_for_all_formats(its: Exposed) -> None:
    state = its.publish()
    texts = await asyncio.gather(*(its.text() for _ in range(20)))
    assert set(texts) == {texts[0]}
    await its.metrics.document(Format.TEXT, compress=True)
    await its.text(Format.OPENMETRICS)
    assert its.written == [state]
    # An unchanged answer changes the age only.
    its.states.publish(replace(state, taken_at=1_700_000_105.0))
    assert _samples(await its.text(), TAKEN) == {(): 1_700_000_105.0}
    assert its.written == [state]


async def test_mapping_is_written_before_its_state_is_published(its: Exposed) -> None:
    first, second = its.publish(), _state(Snapshot(devices=(FREE,)), generation=2, taken_at=its.now + 1)
    # No scrape so far: none is expected.
    its.metrics.prepare(first)
    assert its.written == []
    await its.text()
    its.metrics.prepare(second)
    assert its.written == [first, second]
    # Nothing of the state that is not published yet.
    text = await its.text()
    assert ("trainer" in text, _samples(text, TAKEN)) == (True, {(): its.now})
    its.states.publish(second)
    text = await its.text()
    assert ("trainer" in text, _samples(text, TAKEN)) == (False, {(): its.now + 1})
    assert its.written == [first, second]


async def test_prepared_mapping_that_is_not_published_is_never_shown(its: Exposed) -> None:
    first = its.publish()
    await its.text()
    its.metrics.prepare(_state(Snapshot(devices=(FREE,)), generation=2))
    # A preparer or the loop failed; the next answer is another state of the same generation.
    second = replace(first, snapshot=scene.snapshot(device("GPU-9", SIDE, resource=GPU)), generation=2)
    its.states.publish(second)
    text = await its.text()
    assert "GPU-9" in text
    assert "GPU-3" not in text


async def test_own_families_are_written_when_a_refresh_ends(
    its: Exposed, monkeypatch: pytest.MonkeyPatch
) -> None:
    its.publish()
    text = await its.text()
    asked: list[object] = []
    real = Counters.families

    def families(counters: Counters) -> Iterable[Family]:
        asked.append(counters)
        return real(counters)

    monkeypatch.setattr(Counters, "families", families)
    its.metrics.timed(dict.fromkeys(Phase, 0.25))
    assert len(asked) == 1
    durations = _samples(await its.text(), "refresh_duration_seconds_sum")
    assert durations == {(phase.value,): 0.25 for phase in Phase}
    assert len(asked) == 1
    assert _samples(text, "refresh_duration_seconds_sum") == {(phase.value,): 0.0 for phase in Phase}


async def test_own_families_that_cannot_be_written_fail_the_scrape_alone(its: Exposed) -> None:
    its.publish()
    await its.text()
    its.publish(advertised=merge_reports([PluginReport("\udc80", received_at=1.0)]))
    its.metrics.timed(dict.fromkeys(Phase, 0.25))
    with pytest.raises(UnicodeEncodeError):
        await its.text()


async def test_plain_text_is_made_once_and_before_its_state_is_published(
    its: Exposed, monkeypatch: pytest.MonkeyPatch
) -> None:
    its.publish()
    first, again = [await its.metrics.document(Format.TEXT, compress=False) for _ in range(2)]
    assert first[0] is again[0]
    second = _state(Snapshot(devices=(FREE,)), generation=2)
    its.metrics.prepare(second)
    monkeypatch.setattr(metrics_module, "plain", None)
    its.states.publish(second)
    assert "trainer" not in await its.text()


async def test_text_that_is_too_large_to_keep_is_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "TEXT_KEPT", 100)
    monkeypatch.setattr(metrics_module, "LARGE", 100)
    small = Exposed()
    small.publish()
    try:
        assert (await small.text()).startswith(EXPECTED)
        document = gzip.decompress(b"".join(await small.metrics.document(Format.TEXT, compress=True)))
        assert document.decode() == await small.text()
    finally:
        small.metrics.close()


async def test_what_no_one_asks_for_is_not_written(its: Exposed, monkeypatch: pytest.MonkeyPatch) -> None:
    first = its.publish()
    await its.text()
    monkeypatch.setattr(metrics_module, "EXPECTED_WITHIN", 0.0)
    second = its.publish(Snapshot(devices=(FREE,)), generation=2)
    its.metrics.prepare(second)
    assert its.written == [first]
    assert "trainer" not in await its.text()
    assert its.written == [first, second]


async def test_cancelled_scrape_does_not_block_the_next(its: Exposed) -> None:
    its.publish()
    scrape = asyncio.create_task(its.text())
    await asyncio.sleep(0)
    scrape.cancel()
    await asyncio.gather(scrape, return_exceptions=True)
    async with asyncio.timeout(20):
        assert (await its.text()).startswith(EXPECTED)


async def test_change_while_the_mapping_is_written_shows_whole(
    its: Exposed, monkeypatch: pytest.MonkeyPatch
) -> None:
    its.publish()
    real = MappingFamilies.of

    def overtaken(families: MappingFamilies, state: State, plan: SeriesPlan) -> list[Block]:
        monkeypatch.setattr(MappingFamilies, "of", real)
        its.publish(Snapshot(devices=(FREE,)), generation=2, taken_at=its.now + 1)
        return real(families, state, plan)

    monkeypatch.setattr(MappingFamilies, "of", overtaken)
    text = await its.text()
    # The owners and the timestamp are of one state.
    assert ("trainer" in text, _samples(text, TAKEN)) == (False, {(): its.now + 1})


async def test_mapping_that_becomes_stale_while_it_is_written_is_not_shown(
    its: Exposed, monkeypatch: pytest.MonkeyPatch
) -> None:
    its.publish()
    real = MappingFamilies.of

    def slow(families: MappingFamilies, state: State, plan: SeriesPlan) -> list[Block]:
        its.now += STALE_AFTER + 1
        return real(families, state, plan)

    monkeypatch.setattr(MappingFamilies, "of", slow)
    assert (await its.text()).startswith(STALE)


async def test_counters_count_allocations_releases_and_refreshes(its: Exposed) -> None:
    counters, tracker = its.metrics.counters, HoldingTracker()
    held = scene.snapshot(device("GPU-2", TRAINER, resource=GPU), FREE)
    free = scene.snapshot(device("GPU-2", resource=GPU), FREE)
    for now, snapshot in ((0.0, held), (50.0, free), (60.0, held), (4060.0, free)):
        counters.changed(_state(snapshot), tracker.advance(snapshot, now))
    counters.refreshed([Trigger.START, Trigger.TIMER], 0.004)
    counters.refreshed([Trigger.TIMER], 20.0)
    counters.timed(dict.fromkeys(Phase, 0.004))
    counters.timed({**dict.fromkeys(Phase, 0.0), Phase.MAPPING: 20.0})
    counters.failed("List", "UNAVAILABLE")
    text = await its.text()
    assert _samples(text, "allocations_total") == {("node-7", GPU): 1.0}
    assert _samples(text, "releases_total") == {("node-7", GPU): 2.0}
    assert _samples(text, "allocation_hold_seconds_sum") == {("node-7", GPU): 4050.0}
    buckets = _samples(text, "allocation_hold_seconds_bucket")
    assert (buckets["60.0", "node-7", GPU], buckets["14400.0", "node-7", GPU]) == (1.0, 2.0)
    refreshes = _samples(text, "refreshes_total")
    assert {key: count for key, count in refreshes.items() if count} == {("start",): 1.0, ("timer",): 2.0}
    errors = _samples(text, "refresh_errors_total")
    assert {key: count for key, count in errors.items() if count} == {("UNAVAILABLE", "List"): 1.0}
    durations = _samples(text, "refresh_duration_seconds_bucket")
    mapping = [durations[bound, "mapping"] for bound in ("0.0025", "0.005", "10.0", "+Inf")]
    assert mapping == [0.0, 1.0, 1.0, 2.0]
    # Every phase counts every refresh: together they are the whole of it.
    assert _samples(text, "refresh_duration_seconds_count") == {(phase.value,): 2.0 for phase in Phase}
    assert sum(_samples(text, "refresh_duration_seconds_sum").values()) == pytest.approx(20.016)


def _complaints(promtool: str, document: bytes) -> tuple[int, bytes]:
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=document, capture_output=True, check=False, timeout=60
    )
    return checked.returncode, checked.stdout + checked.stderr


async def test_promtool_accepts_the_exposition(its: Exposed) -> None:
    promtool = required("promtool", "prometheus")
    its.publish()
    counters, tracker = its.metrics.counters, HoldingTracker()
    counters.changed(_state(), tracker.advance(RICH, 0.0))
    counters.changed(_state(Snapshot()), tracker.advance(Snapshot(), 10.0))
    counters.refreshed(Trigger, 0.004)
    counters.failed("List", "UNAVAILABLE")
    for seconds in (0, STALE_AFTER + 1):
        its.now += seconds
        document = (await its.text()).encode()
        assert _complaints(promtool, document) == (0, b"")


async def test_number_of_resources_with_counters_is_bounded(
    its: Exposed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MAX_RESOURCES", 5)
    counters, tracker = its.metrics.counters, HoldingTracker()

    def change(now: float, *devices: Device) -> None:
        snapshot = scene.snapshot(*devices)
        counters.changed(_state(snapshot), tracker.advance(snapshot, now))

    stays = device("x", TRAINER, resource="a.b/stays")
    for number in range(50):
        change(number, device("x", SIDE, resource=f"a.b/passing{number}"), stays)
    text = await its.text()
    kept = {("node-7", name) for name in ("a.b/stays", *(f"a.b/passing{number}" for number in range(46, 50)))}
    for name in ("allocations_total", "releases_total", "allocation_hold_seconds_count"):
        assert _samples(text, name).keys() == kept
    # All present resources are counted, however many.
    for now in (60.0, 61.0):
        change(now, *(device("x", resource=f"a.b/r{n}") for n in range(20)))
    assert len(_samples(await its.text(), "allocations_total")) == 20


def test_counts_of_many_resources_are_written_again_only_where_they_changed(its: Exposed) -> None:
    counters, tracker = its.metrics.counters, HoldingTracker()

    def changed(now: float, holder: Holder) -> list[int]:
        """The blocks that were written again; each family has a head and three blocks."""
        before = counters.blocks(Format.TEXT)
        devices = [
            device("x", *[holder][: number == 7], resource=f"a.b/r{number:03}") for number in range(150)
        ]
        snapshot = scene.snapshot(*devices)
        counters.changed(_state(snapshot), tracker.advance(snapshot, now))
        after = counters.blocks(Format.TEXT)
        assert b"".join(one.text for one in after).count(b"\n") == 6 + 150 * (1 + 1 + 14)
        return [at for at, one in enumerate(after) if one not in before]

    changed(0.0, TRAINER)
    counters.timed(dict.fromkeys(Phase, 1.0))
    assert changed(1.0, TRAINER) == []
    assert changed(2.0, SIDE) == [1, 5, 9]


async def test_plugin_url_up_has_a_series_for_each_plugin(its: Exposed) -> None:
    reports = [PluginReport("unix:/a", received_at=1.0), PluginReport("http://b:1", problem="refused")]
    its.publish(advertised=merge_reports(reports))
    assert _samples(await its.text(), "plugin_url_up") == {("unix:/a",): 1.0, ("http://b:1",): 0.0}
