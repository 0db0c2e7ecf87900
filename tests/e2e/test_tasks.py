"""What an on-call engineer does at three in the morning, in Chromium over running processes: by mouse, by
keyboard alone, and without JavaScript. Pods' uids come from the Pods API, and an hour ago from a history.
"""

import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped] # it has no types
from playwright.async_api import Browser, FloatRect, Locator, expect

from exporter.history.record import HoldingKey
from harness.browser import chromium
from harness.lives import Life
from harness.node import Node, Pod
from harness.nodes import running_node
from harness.simulated import SimulatedNode
from harness.stack import Stack
from harness.tasks import Means, Person, person

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),  # one browser, and one node, for all of them
    pytest.mark.timeout(180),
]

DEVICES = tuple(f"GPU-{number * 2654435761 % 2**32:08x}" for number in range(2, 26))
"""Ids that look like nothing, as ids do; the last six characters of one occur in no other."""
OLD = DEVICES[0]
"""What was held an hour ago."""


def by(*means: Means) -> pytest.MarkDecorator:
    """The task is done by each of these means."""
    return pytest.mark.parametrize("means", means, ids=lambda one: one.replace(" ", "-"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    """Where history is kept."""
    directory = Path(tempfile.mkdtemp(prefix="dl-"))
    yield directory / "history.db"
    shutil.rmtree(directory)


# The browser first: where there is none, nothing else is started.
@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(browser: Browser, file: Path) -> AsyncGenerator[Stack]:
    async with running_node("--pods-api") as node:
        prepared = Stack(node, "--history.path", str(file))
        _an_hour_ago(file, prepared.resource, node)
        prepared.add_devices(*DEVICES)
        async with prepared as running:
            await running.metric_is(len(DEVICES), "devicelens_resource_allocatable_devices")
            yield running
        if isinstance(node, SimulatedNode):
            assert await node.violations() == ()


def _an_hour_ago(file: Path, resource: str, node: Node) -> None:
    """An exporter's history: night-shift held a device until 50 minutes ago, then early-shift for ten."""

    def holding(pod: str) -> HoldingKey:
        return HoldingKey(resource, OLD, node.namespace, pod, "main")

    life = Life(file, wall=time.time() - 75 * 60).start()
    life.look()
    for _ in range(100):
        life.look(holding("night-shift"), after=15, uid="uid-of-the-night")
    for _ in range(40):
        life.look(holding("early-shift"), after=15, uid="uid-of-the-morning")
    life.look(after=15)
    life.archive.close()


@asynccontextmanager
async def holding(stack: Stack, *names: str) -> AsyncGenerator[dict[str, str]]:
    """Pods that hold a device each, and which."""
    async with AsyncExitStack() as running:
        for name in names:
            await stack.node.add_pod(Pod(name, {"main": {stack.resource: 1}}))
            running.push_async_callback(stack.node.delete_pod, name)
        yield {held.pod: held.device for held in await stack.held() if held.pod in names}


@by(*Means)
async def test_the_holder_of_a_device_is_found_by_part_of_its_id(
    browser: Browser, stack: Stack, means: Means
) -> None:
    async with (
        holding(stack, "training-0", "serving-0") as held,
        person(browser, stack.url, means) as engineer,
    ):
        device = held["training-0"]
        await engineer.visit("/")
        await engineer.sees(engineer.row(device).get_by_role("link", name="default/training-0"))
        await engineer.search(device[-6:].upper())
        await expect(engineer.devices()).to_have_count(1)
        row = engineer.row(device)
        await expect(row).to_contain_text("held")
        assert f"q={device[-6:].upper()}" in engineer.page.url, "what is seen can be sent to a colleague"

        await engineer.follow(row.get_by_role("link", name="default/training-0"))
        await _is_headed(engineer, "default/training-0")
        await expect(
            engineer.page.get_by_role("status").filter(has_text="It holds 1 device.")
        ).to_be_visible()
        await expect(engineer.region("What it holds").get_by_role("link", name=device)).to_be_visible()


@by(Means.KEYBOARD, Means.NO_SCRIPT)
async def test_a_device_is_seen_to_fail_who_is_hit_and_that_it_is_over(
    browser: Browser, stack: Stack, means: Means
) -> None:
    sentence_of = f"default/trading-0 (main) holds {stack.resource} {{}}, which is unhealthy"
    async with holding(stack, "trading-0") as held, person(browser, stack.url, means) as engineer:
        device = held["trading-0"]
        wrong = engineer.region("What is wrong")
        await engineer.visit("/")
        await engineer.sees(engineer.row(device).filter(has_text="trading-0"))
        await expect(wrong).to_have_count(0)

        stack.remove_devices(device)
        try:
            sentence = wrong.get_by_role("listitem").filter(has_text=sentence_of.format(device))
            await engineer.sees(sentence)
            if means is not Means.NO_SCRIPT:
                said = engineer.page.get_by_role("status").filter(has_text="Wrong now: default/trading-0")
                await expect(said).to_have_count(1)
            await engineer.follow(sentence.get_by_role("link", name="unhealthy, held"))
            await expect(engineer.devices()).to_have_count(1)
            await expect(engineer.row(device)).to_contain_text("unhealthy, held")
            await engineer.follow(sentence.get_by_role("link", name="default/trading-0"))
            await _is_headed(engineer, "default/trading-0")
            await expect(wrong).to_contain_text(sentence_of.format(device))
            await expect(engineer.region("What it holds")).to_contain_text("unhealthy")
        finally:
            stack.add_devices(device)
        await engineer.sees_no_more(wrong)
        await expect(engineer.region("What it holds").get_by_role("link", name=device)).to_be_visible()
        await engineer.visit("/")
        await expect(engineer.row(device)).to_contain_text("held")
        await engineer.sees_no_more(wrong)


@by(Means.KEYBOARD, Means.NO_SCRIPT)
async def test_who_held_a_device_an_hour_ago_is_found_from_its_page_and_by_asking_history(
    browser: Browser, stack: Stack, means: Means
) -> None:
    async with person(browser, stack.url, means) as engineer:
        page = engineer.page
        await engineer.visit("/")
        await engineer.search(OLD[4:9])
        await expect(engineer.devices()).to_have_count(1)
        await engineer.follow(engineer.devices().get_by_role("link", name=OLD, exact=True))
        await _is_headed(engineer, OLD)
        past = engineer.region("Who had it")
        rows = past.get_by_role("table").get_by_role("row")
        await expect(rows.get_by_role("rowheader")).to_contain_text(["early-shift", "night-shift"])
        await expect(rows.filter(has_text="night-shift")).to_contain_text("uid-of-the-night")

        await engineer.follow(past.get_by_role("link", name="In history"))
        await _is_headed(engineer, "History")
        await expect(page.get_by_label("Device", exact=True)).to_have_value(OLD)
        await _asks_at(engineer, "-1h")
        await _finds_the_night_shift(engineer)

        pages = page.get_by_role("navigation", name="Pages")
        await engineer.follow(pages.get_by_role("link", name="History"))
        await _is_headed(engineer, "History")
        await engineer.write(page.get_by_label("Device", exact=True), OLD)
        await _asks_at(engineer, "-1h")
        await _finds_the_night_shift(engineer)


async def _asks_at(engineer: Person, moment: str) -> None:
    await engineer.write(engineer.page.get_by_label("At", exact=True), moment)
    await engineer.follow(engineer.page.get_by_role("button", name="Ask"))


async def _finds_the_night_shift(engineer: Person) -> None:
    page = engineer.page
    await _is_headed(engineer, "Who held what")
    assert "at=-1h" in page.url, "what is seen can be sent to a colleague"
    assert f"device={OLD}" in page.url
    await expect(page.get_by_role("heading", name="there was 1 holding.")).to_be_visible()
    (table,) = await page.get_by_role("table").all()
    await expect(table.get_by_role("rowheader")).to_have_count(1)
    await engineer.follow(table.get_by_role("link", name="default/night-shift"))
    await _is_headed(engineer, "default/night-shift")
    gone = page.get_by_role("status").filter(has_text="It holds nothing on this node now")
    await expect(gone).to_be_visible()


@by(Means.KEYBOARD, Means.NO_SCRIPT)
async def test_a_pod_that_is_made_anew_under_its_name_is_followed(
    browser: Browser, stack: Stack, means: Means
) -> None:
    name = f"phoenix-{means.name.lower().replace('_', '-')}-0"
    async with person(browser, stack.url, means) as engineer:
        async with holding(stack, name):
            old = await _uid(stack, name)
            await engineer.visit("/")
            link = engineer.page.get_by_role("row").get_by_role("link", name=f"default/{name}")
            await engineer.sees(link)
            await engineer.follow(link)
            await _is_headed(engineer, f"default/{name}")
            life = engineer.region("This pod on this node now").filter(has_text=old)
            await engineer.sees(life.filter(has_text="until now"))
        async with holding(stack, name):
            new = await _uid(stack, name)
            assert new != old
            first = engineer.region("Life 1")
            second = engineer.region("Life 2 on this node now")
            await engineer.sees(engineer.region(f"default/{name}").filter(has_text=new))
            await engineer.sees(second.filter(has_text=new).filter(has_text="until now"))
            await expect(second).not_to_contain_text(old)
            await expect(first).to_contain_text(old)
            await expect(first).not_to_contain_text(new)
            await expect(first).not_to_contain_text("until now")
            # What ended and what began between the same two looks may be dated alike.
            before, after = await _times(first), await _times(second)
            assert min(before) <= min(after)
            assert max(before) <= max(after)

            await engineer.follow(first.get_by_role("link", name="Made anew after it: life 2"))
            await expect(second).to_be_in_viewport()
            assert await second.get_attribute("id") == engineer.page.url.partition("#")[2]
            await engineer.follow(second.get_by_role("link", name="Before it: life 1"))
            await expect(first).to_be_in_viewport()
            assert await first.get_attribute("id") == engineer.page.url.partition("#")[2]


async def _uid(stack: Stack, name: str) -> str:
    return await stack.node.uid(name)


async def _times(region: Locator) -> list[datetime]:
    """Every moment that is told there."""
    found = [await told.get_attribute("datetime") for told in await region.get_by_role("time").all()]
    assert found
    return [datetime.fromisoformat(told) for told in found if told]


async def test_focus_selection_and_place_stay_while_another_pod_comes_fails_and_goes(
    browser: Browser, stack: Stack
) -> None:
    async with (
        holding(stack, "steady-0") as held,
        person(browser, stack.url, viewport={"width": 1000, "height": 480}) as engineer,
    ):
        page = engineer.page
        await engineer.visit("/")
        row = engineer.row(held["steady-0"])
        link = row.get_by_role("link", name="default/steady-0")
        await engineer.sees(link)
        await link.focus()
        await (
            row.get_by_role("cell").filter(has_text=stack.resource).get_by_text(stack.resource).select_text()
        )
        await row.evaluate("one => one.scrollIntoView({block: 'center'})")
        assert await page.evaluate("scrollY") > 0
        place = (await _box(row))["y"]

        heights = {device: (await _box(engineer.row(device)))["height"] for device in DEVICES}

        async def nothing_was_lost(passing: str) -> None:
            await expect(link).to_be_focused()
            assert await page.evaluate("getSelection().toString()") == stack.resource
            # A row above it, in sight, that says more pushes it down; what is out of sight must not.
            other = await _box(engineer.row(passing))
            pushed = other["height"] - heights[passing] if 0 <= other["y"] < place else 0.0
            assert abs((await _box(row))["y"] - place - pushed) <= 1

        async with holding(stack, "passer-by") as passing:
            passer_by = passing["passer-by"]
            other = engineer.row(passer_by)
            await engineer.sees(other.filter(has_text="passer-by"))
            await nothing_was_lost(passer_by)
            stack.remove_devices(passer_by)
            try:
                await engineer.sees(other.filter(has_text="unhealthy, held"))
                await engineer.sees(engineer.region("What is wrong"))
                await nothing_was_lost(passer_by)
            finally:
                stack.add_devices(passer_by)
            await engineer.sees_no_more(engineer.region("What is wrong"))
            await nothing_was_lost(passer_by)
        await engineer.sees(other.filter(has_text="free").filter(has_not_text="passer-by"))
        await nothing_was_lost(passer_by)


async def _box(of: Locator) -> FloatRect:
    box = await of.bounding_box()
    assert box is not None
    return box


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_on_any_page_while_something_is_wrong(
    browser: Browser, stack: Stack, scheme: str
) -> None:
    async with holding(stack, "patient-0") as held, person(browser, stack.url) as engineer:
        page = engineer.page
        await page.emulate_media(
            color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce"
        )
        device = held["patient-0"]
        stack.remove_devices(device)
        try:
            await stack.metric_is(0, "devicelens_device_healthy", device=device)
            for path, heading in (
                ("/", f"Devices of {stack.node.name}"),
                (f"/devices/{stack.resource}/{device}", device),
                ("/pods/default/patient-0", "default/patient-0"),
                ("/pods/default/night-shift", "default/night-shift"),
                ("/history", "History"),
                ("/history?at=-1h", "Who held what"),
            ):
                await engineer.visit(path)
                await _is_headed(engineer, heading)
                found = await Axe().run(page)
                assert found.violations_count == 0, f"{path}: {found.generate_report()}"
        finally:
            stack.add_devices(device)
            await stack.metric_is(1, "devicelens_device_healthy", device=device)


async def _is_headed(engineer: Person, heading: str) -> None:
    """A page is told by its heading."""
    await expect(engineer.page.get_by_role("heading", level=1, name=heading, exact=True)).to_have_count(1)
