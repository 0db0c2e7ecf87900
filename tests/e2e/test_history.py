"""History through whole processes: what was held goes on being known when the exporter is killed."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from harness import owners
from harness.node import Holding, Node, Pod
from harness.processes import Process
from harness.stack import Stack
from harness.waiting import until, until_equal

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def file(root: Path) -> Path:
    """Where history is kept: outlives the stack's own files."""
    return root / "history.db"


@pytest.fixture
async def stack(node: Node, file: Path) -> AsyncGenerator[Stack]:
    async with Stack(node, "--history.path", str(file), "--poll.interval", "500ms") as running:
        yield running


async def _add(stack: Stack, name: str) -> Holding:
    await stack.node.add_pod(Pod(name, {"main": {stack.resource: 1}}))
    (holding,) = [holding for holding in await stack.held() if holding.pod == name]
    return holding


async def _history(stack: Stack, **query: str) -> Any:
    parameters = "&".join(f"{name}={value}" for name, value in query.items())
    path = f"/api/v1/history?resource={stack.resource}&{parameters}"
    return await owners.get_json(stack.url, path)


async def _told(stack: Stack, **query: str) -> list[tuple[str, str, bool]]:
    """Pods and devices in history, newest first, and whether they hold still."""
    entries = (await _history(stack, **query))["holdings"]
    return [(entry["pod"], entry["device"], entry["end"] is None) for entry in entries]


@asynccontextmanager
async def _without_exporter(stack: Stack) -> AsyncGenerator[None]:
    """The exporter is killed, and started again at the end."""
    await stack.exporter.kill()
    yield
    stack.exporter.lines.clear()
    await stack.exporter.start()
    stack.url = await stack.exporter.url()
    await stack.ready()


def _at(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


async def test_what_is_held_and_what_was_held_outlives_a_kill(stack: Stack) -> None:
    stack.add_devices("cherry", "classic", "zero")
    await stack.metric_is(3, "devicelens_resource_allocatable_devices")
    found: list[Holding] = []
    for name in ("gone", "stays", "leaves"):
        found.append(await _add(stack, name))
        await stack.metric_is(len(found), "devicelens_allocations_total")
    gone, stays, leaves = found
    await stack.node.delete_pod("gone")
    expected = [
        ("leaves", leaves.device, True),
        ("stays", stays.device, True),
        ("gone", gone.device, False),
    ]

    async def told() -> list[tuple[str, str, bool]]:
        return await _told(stack)

    await until_equal("history", told, expected, limit=stack.node.limit)
    entry = (await _history(stack, pod="stays"))["holdings"][0]
    assert entry["start"]["certainty"] == "at_once"
    name = "devicelens_device_held_since_timestamp_seconds"
    since = await stack.metric(name, device=stays.device)
    released = (await _history(stack, pod="gone"))["holdings"][0]

    async with _without_exporter(stack):
        await stack.node.delete_pod("leaves")
        comes = await _add(stack, "comes")

    # Since when it is held did not change, to the bit.
    await stack.metric_is(since, name, device=stays.device)
    devices = (await owners.get_json(stack.url, f"/api/v1/devices?device={stays.device}"))["devices"]
    assert [holder["since_exact"] for holder in devices[0]["holders"]] == [True]
    assert (await _history(stack, pod="stays"))["holdings"][0]["start"] == entry["start"]
    assert (await _history(stack, pod="gone"))["holdings"] == [released]

    async def left() -> Any:
        found = (await _history(stack, pod="leaves"))["holdings"][0]["end"]
        return found if found and found["certainty"] == "while_down" else None

    end = await until("the end of what left meanwhile", left, limit=stack.node.limit)
    (started,) = (await _history(stack, pod="comes"))["holdings"]
    assert started["device"] == comes.device
    assert started["start"] == end
    document = await _history(stack)
    (gap,) = document["unseen"]
    assert (gap["why"], document["complete"]) == ("exporter_down", False)
    assert (gap["since"], gap["until"]) == (end["not_before"], gap["until"])
    assert _at(gap["until"]) <= _at(end["not_after"])

    # In the midst of the gap nothing is claimed but what was held before it and after it by the same pod.
    moment = str((_at(gap["since"]) + _at(gap["until"])) / 2)
    document = await _history(stack, at=moment)
    assert document["complete"] is False
    status, out, errors = await owners.devicelens(
        *("who", stack.resource, "--at", moment, "--url", stack.url, "-o", "json")
    )
    assert status == 0, errors
    assert "are unknown: " in errors
    assert {entry["pod"] for entry in json.loads(out)["holdings"]} == {"stays", "leaves", "comes"}
    status, out, errors = await owners.devicelens("history", stack.resource, "--url", stack.url)
    assert status == 0, errors
    assert len(out.splitlines()) == 5
    assert "exporter down" in out


async def test_a_part_of_a_name_finds_the_past_on_page_api_and_command_line(stack: Stack) -> None:
    stack.add_devices("cherry-7c1f", "classic-5e1f")
    await stack.metric_is(2, "devicelens_resource_allocatable_devices")
    gone = await _add(stack, "resnet-x2x9k")
    await stack.metric_is(1, "devicelens_allocations_total")
    await stack.node.delete_pod("resnet-x2x9k")
    await stack.metric_is(1, "devicelens_releases_total")
    part = gone.device.partition("-")[2].upper()
    for query in (f"device={part}", "pod=x2x9", f"resource=cola&pod=X2X9&device={part.lower()}"):
        entries = (await owners.get_json(stack.url, f"/api/v1/history?{query}"))["holdings"]
        assert {(entry["pod"], entry["device"]) for entry in entries} == {(gone.pod, gone.device)}
        status, page = await owners.get(stack.url, f"/history?{query}")
        assert (status, gone.device in page, gone.pod in page) == (200, True, True)
    for what in (f"{stack.resource}={part}", f"={part}"):
        status, out, errors = await owners.devicelens("history", what, "--from", "-2h", "--url", stack.url)
        assert status == 0, errors
        assert gone.device in out
    status, out, errors = await owners.devicelens("history", "=cherry-7d1f", "--url", stack.url)
    assert (status, out) == (3, "")
    assert "did you mean cherry-7c1f?" in errors


async def test_a_moment_shows_free_devices_as_free_and_those_of_a_gap_as_unknown(stack: Stack) -> None:
    devices = {"cherry", "classic", "zero"}
    stack.add_devices(*devices)
    await stack.metric_is(3, "devicelens_resource_allocatable_devices")
    found = await _add(stack, "holds")
    await stack.metric_is(1, "devicelens_allocations_total")
    free = dict.fromkeys(devices - {found.device}, "free")

    async def told(at: str) -> Any:
        document = await _history(stack, at=at)
        held = {entry["device"]: entry["certain"] for entry in document["holdings"]}
        return held, {entry["device"]: entry["state"] for entry in document["devices"]}

    async def now() -> Any:
        return await told("now")

    await until_equal("now", now, ({found.device: True}, free), limit=stack.node.limit)

    async def polled_since() -> str:
        document = await _history(stack, pod="holds")
        latest = _at(document["latest"])
        return str(latest) if latest > _at(document["holdings"][0]["start"]["not_after"]) else ""

    moment = await until("a poll after the one that shows it first", polled_since, limit=stack.node.limit)
    what = ("who", stack.resource, "--at", moment, "--url", stack.url)
    status, out, errors = await owners.devicelens(*what, "--state", "free", "--no-headers")
    assert (status, {name for name in devices if name in out}) == (0, set(free)), errors
    status, page = await owners.get(stack.url, f"/history?resource={stack.resource}&at={moment}")
    assert (status, "No pod held 2 devices: 2 free." in page) == (200, True)

    # What is written later covers the moment.
    later = await _add(stack, "later")
    (last,) = devices - {found.device, later.device}
    await until_equal(
        "later", now, ({found.device: True, later.device: True}, {last: "free"}), limit=stack.node.limit
    )
    async with _without_exporter(stack):
        pass
    await until_equal(
        "now", now, ({found.device: True, later.device: True}, {last: "free"}), limit=stack.node.limit
    )
    assert await told(moment) == ({found.device: True}, free)
    (gap,) = (await _history(stack))["unseen"]
    _, unheld = await told(str((_at(gap["since"]) + _at(gap["until"])) / 2))
    assert unheld == {last: "unknown"}


async def test_a_pod_that_comes_and_goes_again_and_again_is_told_each_time(stack: Stack) -> None:
    stack.add_devices("cherry")
    await stack.metric_is(1, "devicelens_resource_allocatable_devices")
    for number in range(3):
        await _add(stack, "again")
        await stack.metric_is(number + 1, "devicelens_allocations_total")
        await stack.node.delete_pod("again")
        await stack.metric_is(number + 1, "devicelens_releases_total")
    assert await _told(stack) == [("again", "cherry", False)] * 3


async def test_the_next_exporter_waits_for_the_one_before_and_then_goes_on(
    node: Node, file: Path, stack: Stack
) -> None:
    stack.add_devices("cherry", "classic")
    await stack.metric_is(2, "devicelens_resource_allocatable_devices")
    await _add(stack, "first")
    await stack.metric_is(1, "devicelens_allocations_total")
    common = ("--kubelet.root", str(node.root), "--node-name", node.name, "--history.path", str(file))
    async with Process("exporter", *common, "--web.listen-address", "127.0.0.1:0") as second:
        url = await second.url()

        async def pods() -> tuple[str, list[str]]:
            document = await owners.get_json(url, f"/api/v1/history?resource={stack.resource}")
            return document["kept_in"], sorted(entry["pod"] for entry in document["holdings"])

        await until_equal("what it sees by itself", pods, ("memory", ["first"]), limit=node.limit)
        await second.line("another process writes it")
        await _add(stack, "second")
        await until_equal("both", pods, ("memory", ["first", "second"]), limit=node.limit)
        await stack.exporter.stop()
        await until_equal("the file is its own", pods, ("file", ["first", "second"]), limit=node.limit)
        document = await owners.get_json(url, f"/api/v1/history?resource={stack.resource}&pod=first")
        assert document["holdings"][0]["start"]["certainty"] == "at_once"
        assert [gap["why"] for gap in document["unseen"]] in ([], ["exporter_down"])
        await asyncio.gather(node.delete_pod("first"), node.delete_pod("second"))
        status, text = await owners.get(url, "/metrics")
        assert (status, "devicelens_history_up 1.0" in text) == (200, True)


@pytest.mark.parametrize("kind", ["text", "database", "directory"])
async def test_history_path_of_another_program_ends_the_exporter_and_stays_as_it_is(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "precious"
    if kind == "directory":
        path.mkdir()
    elif kind == "database":
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE t (a)")
    else:
        path.write_text("precious\n")
    before = None if path.is_dir() else path.read_bytes()
    status, _, errors = await owners.devicelens(
        "exporter", "--history.path", str(path), "--web.listen-address", "127.0.0.1:0"
    )
    assert (status, str(path) in errors) == (2 if path.is_dir() else 1, True)
    if before is not None:
        assert errors.strip().splitlines()[-1].startswith(f"devicelens: --history.path {path}: it is ")
        assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["precious"]
