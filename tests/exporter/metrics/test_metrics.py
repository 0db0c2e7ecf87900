"""exporter.metrics.exporter and families: what Prometheus gets, and what it must not get."""

import asyncio
import gzip
import re
import subprocess
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.mapping.holdings import HeldSince, Holding, HoldingTracker
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Device,
    DeviceKey,
    Holder,
    PinnedMemory,
    PluginReport,
    Snapshot,
    merge_reports,
)
from exporter.mapping.snapshot import build
from exporter.mapping.state import Failure, State, StateStore
from exporter.metrics import exporter as metrics_module
from exporter.metrics.exporter import Metrics
from exporter.refresh.protocols import Trigger
from harness import scene
from harness.answers import allocatables, listings
from harness.scene import device
from harness.tools import required
from kubelet.pb.podresources.v1 import api_pb2
from runtime.exposition import Format, render

STALE_AFTER = 60.0

GPU, NIC = "example.com/gpu", "example.com/nic"
TRAINER = Holder("ml", "trainer", "main")
SIDE = Holder("ml", "trainer", "side")
SERVER = Holder("web", "server", "main")

WHOLE = DeviceKey(GPU, "GPU-2")
FREE = device("GPU-3", resource=GPU)

RICH = scene.snapshot(
    device("GPU-1::0", TRAINER, SERVER, resource=GPU, parent="GPU-1", numa=(0,)),
    device("GPU-2", TRAINER, resource=GPU, numa=(0, 1)),
    FREE,
    device('nic "0"\\\n', SIDE, resource=NIC, ok=False),
    device("nic1", resource=NIC, numa=(1,)),
    claims=[
        ClaimDevice(
            ClaimDeviceKey("driver.example", "node", "d0", "share-1"),
            (ClaimHolder(TRAINER, "ml", "shared"), ClaimHolder(SERVER, "web", "own")),
            ("cdi",),
        )
    ],
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
"""What the rich mapping, a stale one, and the families of the exporter itself (names and help) look like."""


PARSERS: dict[Format, Callable[[str], Iterable[Metric]]] = {
    Format.TEXT: parse_text,
    Format.OPENMETRICS: parse_openmetrics,
}


@pytest.fixture(autouse=True)
def _without_created_series() -> Iterator[None]:
    """As the exporter runs."""
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it so
    yield
    prometheus_client.enable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it so


@dataclass
class Exposed:
    """Metrics on a states and a clock that the test holds."""

    states: StateStore
    metrics: Metrics
    now: list[float]
    renderings: list[Format]

    async def text(self, form: Format = Format.TEXT) -> str:
        return (await self.metrics.document(form, compress=False)).decode()


@asynccontextmanager
async def exposed(monkeypatch: pytest.MonkeyPatch | None = None) -> AsyncGenerator[Exposed]:
    states, now, renderings = StateStore(), [1_700_000_100.0], list[Format]()
    if monkeypatch is not None:

        def counted(*arguments: object) -> object:
            renderings.append(arguments[1])  # type: ignore[arg-type]
            return render(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(metrics_module, "render", counted)
    metrics = Metrics(states, node="node-7", version="1.2.3", stale_after=STALE_AFTER, clock=lambda: now[0])
    try:
        yield Exposed(states, metrics, now, renderings)
    finally:
        metrics.close()


def _since(holding: Holding) -> HeldSince:
    return HeldSince(1_700_000_000.25 if holding.holder == SERVER else 1_700_000_000.0)


def _state(snapshot: Snapshot = RICH, generation: int = 1, taken_at: float = 1_700_000_100.0) -> State:
    pods = PODS if snapshot is RICH else {}
    return scene.state(snapshot, at=taken_at, since=_since, generation=generation, pods=pods)


def _samples(text: str, name: str) -> dict[tuple[str, ...], float]:
    """A family's samples by the values of their labels, labels sorted by name."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
        if sample.name == name
    }


def _rows(families: Iterable[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in families
        for sample in family.samples
    }


async def test_rich_mapping_is_rendered_byte_for_byte() -> None:
    async with exposed() as its:
        its.states.publish(_state())
        text = await its.text()
        assert text.startswith(EXPECTED)
        own = text.removeprefix(EXPECTED)
        assert [line for line in own.splitlines(keepends=True) if line.startswith("#")] == OWN.splitlines(
            keepends=True
        )
        assert _samples(own, "devicelens_up") == {(): 1.0}
        assert _samples(own, "devicelens_last_refresh_success_timestamp_seconds") == {(): 1_700_000_100.0}
        ((api, _, version),) = _samples(own, "devicelens_build_info")
        assert (api, version) == ("v1", "1.2.3")


async def test_both_formats_and_gzip_have_the_same_samples() -> None:
    async with exposed() as its:
        its.states.publish(_state())
        its.metrics.counters.refreshed([Trigger.START], 0.002)
        text, openmetrics = await its.text(), await its.text(Format.OPENMETRICS)
        for form in Format:
            assert gzip.decompress(
                await its.metrics.document(form, compress=True)
            ).decode() == await its.text(form)

        assert _rows(PARSERS[Format.OPENMETRICS](openmetrics)) == _rows(PARSERS[Format.TEXT](text))


async def test_stale_mapping_is_withdrawn_and_reported() -> None:
    async with exposed() as its:
        its.states.publish(_state())
        assert (await its.text()).startswith(EXPECTED)
        its.now[0] += STALE_AFTER
        assert (await its.text()).startswith(EXPECTED)
        its.now[0] += 0.001
        for form in Format:
            text = await its.text(form)
            assert text.startswith(STALE)
            assert "trainer" not in text
            assert "example.com" not in text
        assert _samples(await its.text(), "devicelens_up") == {(): 0.0}
        assert _samples(await its.text(), "devicelens_last_refresh_success_timestamp_seconds") == {
            (): 1_700_000_100.0
        }
        # It answers again, and says what it said: nothing is taken from before it was stale.
        its.states.publish(_state(taken_at=its.now[0]))
        assert (await its.text()).startswith(EXPECTED)


async def test_failure_sets_up_to_0_and_keeps_the_mapping() -> None:
    async with exposed() as its:
        its.states.publish(replace(_state(), failure=Failure("List", "UNAVAILABLE", "not up", 1.0)))
        text = await its.text()
        assert text.startswith(EXPECTED)
        assert _samples(text, "devicelens_up") == {(): 0.0}


async def test_before_the_first_answer_no_mapping_is_exposed() -> None:
    async with exposed() as its:
        its.states.publish(State(failure=Failure("List", "UNAVAILABLE", "not up", 1.0)))
        text = await its.text()
        for absent in (
            "devicelens_device",
            "devicelens_resource",
            "devicelens_anomaly",
            "last_refresh_success",
        ):
            assert absent not in text
        assert _samples(text, "devicelens_up") == {(): 0.0}
        assert _samples(text, "devicelens_build_info")


async def test_no_health_without_an_allocatable_answer() -> None:
    async with exposed() as its:
        its.states.publish(_state(Snapshot(devices=(Device(WHOLE, holders=(TRAINER,)),), complete=False)))
        text = await its.text()
        for absent in ("device_healthy", "resource_allocatable_devices", "resource_unhealthy_devices"):
            assert _samples(text, f"devicelens_{absent}") == {}
        for told in ("device_info", "resource_devices", "resource_allocated_devices"):
            assert len(_samples(text, f"devicelens_{told}")) == 1


async def test_foreseeable_counters_begin_at_0() -> None:
    async with exposed() as its:
        text = await its.text()
        assert _samples(text, "devicelens_refreshes_total") == {(trigger.value,): 0.0 for trigger in Trigger}
        errors = _samples(text, "devicelens_refresh_errors_total")
        assert set(errors.values()) == {0.0}
        assert {("UNSETTLED", "List"), ("DEADLINE_EXCEEDED", "GetAllocatableResources")} <= errors.keys()


async def test_mapping_is_rendered_once_for_each_generation_and_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with exposed(monkeypatch) as its:
        its.states.publish(_state())
        for _ in range(5):
            await its.text()
            await its.metrics.document(Format.TEXT, compress=True)
        assert its.renderings == [Format.TEXT]
        await its.text(Format.OPENMETRICS)
        assert its.renderings == [Format.TEXT, Format.OPENMETRICS]
        # Asked again and the same: only its age is another.
        its.states.publish(_state(taken_at=1_700_000_105.0))
        assert _samples(await its.text(), "devicelens_last_refresh_success_timestamp_seconds") == {
            (): 1_700_000_105.0
        }
        assert len(its.renderings) == 2
        its.states.publish(_state(Snapshot(devices=(FREE,)), generation=2))
        assert "trainer" not in await its.text()
        assert len(its.renderings) == 3


async def test_concurrent_scrapes_share_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    async with exposed(monkeypatch) as its:
        its.states.publish(_state())
        texts = await asyncio.gather(*(its.text() for _ in range(20)))
        assert its.renderings == [Format.TEXT]
        assert set(texts) == {texts[0]}


async def test_cancelled_scrape_does_not_block_the_next() -> None:
    async with exposed() as its:
        its.states.publish(_state())
        scrape = asyncio.create_task(its.text())
        await asyncio.sleep(0)
        scrape.cancel()
        await asyncio.gather(scrape, return_exceptions=True)
        async with asyncio.timeout(20):
            assert (await its.text()).startswith(EXPECTED)


async def test_change_during_rendering_shows_in_the_next_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with exposed() as its:
        its.states.publish(_state())

        def overtaken(*arguments: object) -> object:
            its.states.publish(_state(Snapshot(devices=(FREE,)), generation=2, taken_at=its.now[0] + 1))
            return render(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(metrics_module, "render", overtaken)
        taken = "devicelens_last_refresh_success_timestamp_seconds"
        first, second = await its.text(), await its.text()
        assert "trainer" in first
        # Owners are never told with the time of a later look.
        assert _samples(first, taken) == {(): its.now[0]}
        assert "trainer" not in second
        assert _samples(second, taken) == {(): its.now[0] + 1}


async def test_counters_count_allocations_releases_and_refreshes() -> None:
    async with exposed() as its:
        counters, tracker = its.metrics.counters, HoldingTracker()
        held = Device(WHOLE, holders=(TRAINER,))
        free = Device(WHOLE)
        for now, device in ((0.0, held), (50.0, free), (60.0, held), (4060.0, free)):
            # Whoever holds the device holds a claimed one too, which belongs to no resource.
            through = tuple(ClaimHolder(holder, "ml", "mine") for holder in device.holders)
            claimed = (ClaimDevice(ClaimDeviceKey("drv.example", "pool", "gpu-9"), through),)
            snapshot = Snapshot(devices=(device, FREE), claims=claimed if through else ())
            counters.changed(_state(snapshot), tracker.advance(snapshot, now))
        counters.refreshed([Trigger.START, Trigger.TIMER], 0.004)
        counters.refreshed([Trigger.TIMER], 20.0)
        counters.failed("List", "UNAVAILABLE")
        text = await its.text()
        assert _samples(text, "devicelens_allocations_total") == {("node-7", GPU): 1.0}
        assert _samples(text, "devicelens_releases_total") == {("node-7", GPU): 2.0}
        assert _samples(text, "devicelens_allocation_hold_seconds_sum") == {("node-7", GPU): 4050.0}
        buckets = _samples(text, "devicelens_allocation_hold_seconds_bucket")
        assert buckets["60.0", "node-7", GPU] == 1.0
        assert buckets["14400.0", "node-7", GPU] == 2.0
        refreshes = _samples(text, "devicelens_refreshes_total")
        assert {key: count for key, count in refreshes.items() if count} == {("start",): 1.0, ("timer",): 2.0}
        errors = _samples(text, "devicelens_refresh_errors_total")
        assert {key: count for key, count in errors.items() if count} == {("UNAVAILABLE", "List"): 1.0}
        durations = _samples(text, "devicelens_refresh_duration_seconds_bucket")
        assert (durations["0.005",], durations["10.0",], durations["+Inf",]) == (1.0, 1.0, 2.0)


async def test_counters_of_a_known_resource_begin_at_0() -> None:
    async with exposed() as its:
        its.metrics.counters.changed(_state(), HoldingTracker().advance(RICH, 0.0))
        text = await its.text()
        for family in ("allocations_total", "releases_total", "allocation_hold_seconds_count"):
            assert _samples(text, f"devicelens_{family}") == {("node-7", GPU): 0.0, ("node-7", NIC): 0.0}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(listings(), st.none() | allocatables(), st.sampled_from(Format))
def test_series_match_the_snapshot(
    listed: api_pb2.ListPodResourcesResponse,
    offered: api_pb2.AllocatableResourcesResponse | None,
    form: Format,
) -> None:
    snapshot = build(listed, offered)

    async def scrape() -> str:
        async with exposed() as its:
            # Before it another mapping was told.
            its.states.publish(_state())
            await its.text(form)
            its.states.publish(_state(snapshot, generation=2))
            return await its.text(form)

    samples = [sample for family in PARSERS[form](asyncio.run(scrape())) for sample in family.samples]
    series = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples]
    assert len(set(series)) == len(series)

    named = {
        (sample.labels["namespace"], sample.labels["pod"], sample.labels["container"])
        for sample in samples
        if "pod" in sample.labels
    }
    assert named - {("", "", "")} == {tuple(container.holder[:3]) for container in snapshot.containers}
    owners = {
        (sample.labels["resource"], sample.labels["device"], sample.labels["namespace"], sample.labels["pod"])
        for sample in samples
        if sample.name == "devicelens_device_owner_info"
    }
    assert owners == {
        (*device.key, holder.namespace, holder.pod)
        for device in snapshot.devices
        for holder in device.holders
    }


def _complaints(promtool: str, document: bytes) -> tuple[int, bytes]:
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=document, capture_output=True, check=False, timeout=60
    )
    return checked.returncode, checked.stdout + checked.stderr


async def test_promtool_accepts_the_exposition() -> None:
    promtool = required("promtool", "prometheus")
    async with exposed() as its:
        its.states.publish(_state())
        counters, tracker = its.metrics.counters, HoldingTracker()
        counters.changed(_state(), tracker.advance(RICH, 0.0))
        counters.changed(_state(Snapshot()), tracker.advance(Snapshot(), 10.0))
        counters.refreshed(Trigger, 0.004)
        counters.failed("List", "UNAVAILABLE")
        for moment in ("fresh", "stale"):
            its.now[0] += 0 if moment == "fresh" else STALE_AFTER + 1
            document = await its.metrics.document(Format.TEXT, compress=False)
            assert _complaints(promtool, document) == (0, b""), moment


async def test_number_of_resources_with_counters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "MAX_RESOURCES", 5)
    async with exposed() as its:
        counters, tracker = its.metrics.counters, HoldingTracker()
        stays = Device(DeviceKey("a.b/stays", "x"), holders=(TRAINER,))
        for number in range(50):
            passing = Device(DeviceKey(f"a.b/passing{number}", "x"), holders=(SIDE,))
            snapshot = Snapshot((passing, stays))
            counters.changed(_state(snapshot), tracker.advance(snapshot, float(number)))
        found = {
            name: set(
                re.findall(rf'^devicelens_{name}{{.*resource="([^"]*)"', await its.text(), re.MULTILINE)
            )
            for name in ("allocations_total", "releases_total", "allocation_hold_seconds_count")
        }
        kept = {"a.b/stays", *(f"a.b/passing{number}" for number in range(46, 50))}
        assert all(resources == kept for resources in found.values()), found
        # What is there is counted, however much that is.
        many = Snapshot(tuple(Device(DeviceKey(f"a.b/r{n}", "x")) for n in range(20)))
        counters.changed(_state(many), tracker.advance(many, 60.0))
        counters.changed(_state(many), tracker.advance(many, 61.0))
        assert len(re.findall(r"^devicelens_allocations_total{", await its.text(), re.MULTILINE)) == 20


async def test_every_family_names_its_stability() -> None:
    async with exposed() as its:
        its.states.publish(_state())
        helps = re.findall(r"^# HELP (\S+) (.*)$", await its.text(), re.MULTILINE)
        assert len(helps) == 28
        for name, text in helps:
            assert name.startswith("devicelens_")
            assert re.search(r"\[(STABLE|ALPHA)\]$", text), name


async def test_plugin_url_up_has_a_series_for_each_plugin() -> None:
    async with exposed() as its:
        reports = [PluginReport("unix:/a", received_at=1.0), PluginReport("http://b:1", problem="refused")]
        its.states.publish(replace(_state(), advertised=merge_reports(reports)))
        found = _samples(await its.text(), "devicelens_plugin_url_up")
        assert found == {("unix:/a",): 1.0, ("http://b:1",): 0.0}
