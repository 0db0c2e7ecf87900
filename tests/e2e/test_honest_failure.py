"""What the exporter says when the kubelet does not answer as it should: the truth, with its age."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import owners
from harness.node import Holding, Pod
from harness.processes import Process
from harness.simulated import SimulatedNode
from harness.stack import Stack
from harness.waiting import until, until_equal
from kubelet.pb.podresources.v1 import api_pb2
from simulator import Faults

pytestmark = pytest.mark.simulated

STALE_AFTER = 4.0


@pytest.fixture
async def stack(node: SimulatedNode) -> AsyncGenerator[Stack]:
    flags = ("--poll.interval", "300ms", "--poll.timeout", "500ms", "--stale-after", f"{STALE_AFTER:g}s")
    async with Stack(node, *flags) as running:
        running.add_devices("cherry", "classic")
        await running.capacity_is(2)
        yield running


@pytest.fixture
async def held(stack: Stack) -> frozenset[Holding]:
    await stack.node.add_pod(Pod("steady", {"main": {stack.resource: 1}}))
    held = await stack.held()
    await stack.everyone_says(held)
    return held


@pytest.mark.parametrize(
    ("faults", "code"),
    [
        (Faults(hang=True), "DEADLINE_EXCEEDED"),
        (Faults(slow=3.0), "DEADLINE_EXCEEDED"),
        (Faults(garbage=True), "UNDECODABLE"),
        (Faults(gone=True), "UNAVAILABLE"),
        (Faults(rate_limited=1), "RESOURCE_EXHAUSTED"),
        (Faults(error="INTERNAL"), "INTERNAL"),
    ],
    ids=str,
)
async def test_the_last_good_mapping_is_kept_marked_and_in_the_end_withdrawn(
    node: SimulatedNode, stack: Stack, held: frozenset[Holding], faults: Faults, code: str
) -> None:
    await node.fault(faults)

    async def failing() -> bool:
        samples = await owners.scrape(stack.url)
        assert samples.value("devicelens_up") == 0
        assert any(
            labels["code"] == code and value > 0
            for labels, value in samples.of("devicelens_refresh_errors_total")
        )
        return True

    await until("the exporter says that it fails", failing)
    status, text = await owners.get(stack.url, "/-/ready")
    assert status == 503
    assert code in text
    # The process is well all the same.
    assert (await owners.get(stack.url, "/-/healthy"))[0] == 200

    document = await owners.get_json(stack.url, "/api/v1/devices")
    assert document["error"]["code"] == code
    assert document["age_seconds"] >= 0
    if document["freshness"] == "ageing":
        assert await owners.from_api(stack.url, stack.resource) == held

    async def withdrawn() -> bool:
        samples = await owners.scrape(stack.url)
        assert samples.of("devicelens_device_owner_info") == []
        assert samples.of("devicelens_device_info") == []
        assert [labels["kind"] for labels, _ in samples.of("devicelens_anomaly_info")] == ["stale"]
        return True

    await until("the mapping is withdrawn from Prometheus", withdrawn)
    # People still see it, with its age.
    assert await owners.from_api(stack.url, stack.resource) == held
    assert (await owners.get_json(stack.url, "/api/v1/devices"))["freshness"] == "stale"

    await node.fault(Faults())
    await stack.ready()
    await stack.everyone_says(held)


@pytest.mark.parametrize(
    ("faults", "code"),
    [(Faults(garbage=True), "UNDECODABLE"), (Faults(hang=True), "DEADLINE_EXCEEDED")],
    ids=str,
)
async def test_owners_are_told_although_nobody_tells_what_is_allocatable(
    node: SimulatedNode, stack: Stack, held: frozenset[Holding], faults: Faults, code: str
) -> None:
    await node.fault(replace(faults, methods=("GetAllocatableResources",)))

    async def failing() -> bool:
        samples = await owners.scrape(stack.url)
        errors = samples.of("devicelens_refresh_errors_total", method="GetAllocatableResources", code=code)
        assert [value > 0 for _, value in errors] == [True]
        return True

    await until("the failure is counted", failing)
    await stack.node.add_pod(Pod("newcomer", {"main": {stack.resource: 1}}))
    both = await stack.held()
    assert len(both) == 2
    await stack.everyone_says(both)

    async def up() -> float | None:
        return (await owners.scrape(stack.url)).value("devicelens_up")

    # List has half a second too, which a busy machine may need.
    await until_equal("devicelens_up", up, 1.0)
    notes = (await owners.get_json(stack.url, "/api/v1/status"))["notes"]
    assert any(f"GetAllocatableResources fails ({code})" in note for note in notes)
    # Health that is older than --stale-after is nobody's word any more.
    (steady,) = held
    await stack.metric_is(None, "devicelens_device_healthy", device=steady.device)
    await stack.everyone_says(both)

    await node.fault(Faults())
    await stack.metric_is(1, "devicelens_device_healthy", device=steady.device)

    async def notes_now() -> object:
        return (await owners.get_json(stack.url, "/api/v1/status"))["notes"]

    await until_equal("notes", notes_now, [])


async def test_an_exporter_without_any_answer_yet_says_so_instead_of_showing_nothing(
    node: SimulatedNode, stack: Stack
) -> None:
    await node.fault(Faults(hang=True))
    await stack.exporter.stop()
    stack.exporter.lines.clear()
    await stack.exporter.start()
    stack.url = await stack.exporter.url()
    status, text = await owners.get(stack.url, "/api/v1/devices")
    assert status == 503
    assert "application/problem+json" not in text
    assert (await owners.get(stack.url, "/-/ready"))[0] == 503
    samples = await owners.scrape(stack.url)
    assert samples.value("devicelens_up") == 0
    assert samples.of("devicelens_device_info") == []
    status, _, errors = await owners.devicelens("who", "--url", stack.url)
    assert status == 1
    assert errors.strip()

    await node.fault(Faults())
    await stack.ready()


async def test_another_caller_who_uses_the_rate_limit_up_now_and_then_disturbs_nothing(
    node: SimulatedNode, stack: Stack, held: frozenset[Holding]
) -> None:
    async def refused() -> float:
        found = (await owners.scrape(stack.url)).of(
            "devicelens_refresh_errors_total", code="RESOURCE_EXHAUSTED"
        )
        return sum(value for _, value in found)

    await node.fault(Faults(rate_limited=2))
    before = await refused()

    async def limited() -> bool:
        return await refused() >= before + 3

    await until("some calls were refused", limited)
    assert await owners.from_metrics(stack.url, stack.resource) == held


async def test_a_kubelet_that_comes_late_is_waited_for_by_both(node: SimulatedNode) -> None:
    await node.process.stop()
    async with Stack(node) as stack:
        stack.add_devices("cherry")
        status, text = await owners.get(stack.url, "/-/ready")
        assert status == 503
        assert "kubelet" in text
        node.process.lines.clear()
        await node.process.start()
        await node.process.line("ready")
        await stack.capacity_is(1)
        await stack.ready()
        await stack.metric_is(1, "devicelens_resource_allocatable_devices")


@pytest.mark.parametrize("older", ["no-get", "no-allocatable", "v1alpha1"])
async def test_older_kubelets_are_asked_what_they_can_tell(older: str) -> None:
    async with SimulatedNode("--older", older) as node, Stack(node) as stack:
        stack.add_devices("cherry", "classic")
        await stack.capacity_is(2)
        await node.add_pod(Pod("steady", {"main": {stack.resource: 1}}))
        held = await stack.held()
        await stack.everyone_says(held)
        (holding,) = held
        healthy = await stack.metric("devicelens_device_healthy", device=holding.device)
        # A kubelet that cannot tell what is allocatable cannot tell health: nothing is claimed.
        assert healthy == (1 if older == "no-get" else None)
        versions = (await owners.scrape(stack.url)).of("devicelens_build_info")
        assert [labels["api_version"] for labels, _ in versions] == [
            "v1alpha1" if older == "v1alpha1" else "v1"
        ]
        status = await owners.get_json(stack.url, "/api/v1/status")
        assert bool(status["notes"]) == (older != "no-get")


async def test_an_answer_larger_than_grpcs_default_is_read(tmp_path: Path) -> None:
    """gRPC's default is 4 MiB; this is 13 MiB of 400 pods with 64 devices each, served as recorded."""
    listed = api_pb2.ListPodResourcesResponse()
    for number in range(400):
        container = listed.pod_resources.add(name=f"large-{number}", namespace="default").containers.add(
            name="main"
        )
        for device in range(64):
            container.devices.add(
                resource_name="example.com/large", device_ids=[f"{number}-{device}-{'x' * 480}"]
            )
    recorded = listed.SerializeToString()
    assert 12 << 20 < len(recorded) < 16 << 20
    recording = tmp_path / "large.list.binpb"
    recording.write_bytes(recorded)
    async with SimulatedNode("--replay", str(recording)) as node:
        flags = ("--kubelet.root", str(node.root), "--web.listen-address", "127.0.0.1:0")
        async with Process("exporter", *flags) as exporter:
            url = await exporter.url()

            async def counted() -> float | None:
                return (await owners.scrape(url)).value("devicelens_resource_allocated_devices")

            await until_equal("all devices are seen as held", counted, 400 * 64.0, limit=40)
