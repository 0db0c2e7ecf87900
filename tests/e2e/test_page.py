"""The page of a running exporter in Chromium: what a person sees while pods come and go."""

from collections.abc import AsyncGenerator, Mapping

import pytest
from playwright.async_api import Locator, Page, expect

from harness import owners
from harness.browser import chromium, load
from harness.node import Node, Pod
from harness.stack import Stack

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def stack(node: Node) -> AsyncGenerator[Stack]:
    async with Stack(node) as running:
        running.add_devices("cherry", "classic")
        await running.allocatable_is(2)
        await running.metric_is(2, "devicelens_resource_allocatable_devices")
        yield running


def row(page: Page, device: str) -> Locator:
    """The row of a device, by what a person reads."""
    head = page.get_by_role("rowheader").get_by_role("link", name=device, exact=True)
    return page.get_by_role("row").filter(has=head)


async def _opened(stack: Stack, page: Page, complaints: list[str]) -> None:
    page.set_default_timeout(stack.node.limit * 1000)
    page.on("console", lambda said: complaints.append(said.text) if said.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.goto(f"{stack.url}/?resource={stack.resource}")


@pytest.mark.parametrize("context", [{}, {"java_script_enabled": False}], ids=["live", "without JavaScript"])
async def test_a_person_sees_who_holds_what(stack: Stack, context: Mapping[str, bool]) -> None:
    limit = stack.node.limit * 1000
    live = not context
    complaints: list[str] = []
    async with chromium() as browser:
        page = await (await browser.new_context(**context)).new_page()  # type: ignore[arg-type] # its own names
        await _opened(stack, page, complaints)

        async def again() -> None:
            """Without JavaScript a person asks again; with it nothing is to be done."""
            if not live:
                await load(page)

        await expect(row(page, "cherry")).to_contain_text("free")
        await expect(page.get_by_text("The mapping is fresh.")).to_be_visible()

        await stack.node.add_pod(Pod("thirsty", {"main": {stack.resource: 2}}))
        await stack.everyone_says(await stack.held())
        await again()
        for device in ("cherry", "classic"):
            await expect(row(page, device)).to_contain_text("thirsty", timeout=limit)
            await expect(row(page, device)).to_contain_text("held")

        stack.remove_devices("cherry")
        await stack.metric_is(0, "devicelens_device_healthy", device="cherry")
        await again()
        await expect(row(page, "cherry")).to_contain_text("unhealthy, held", timeout=limit)
        await expect(page.get_by_role("heading", name="What is wrong")).to_be_visible()
        stack.add_devices("cherry")
        await stack.metric_is(1, "devicelens_device_healthy", device="cherry")

        await stack.node.delete_pod("thirsty")
        await stack.everyone_says(())
        await again()
        await expect(row(page, "classic")).to_contain_text("free", timeout=limit)
        await expect(page.get_by_text("thirsty")).to_have_count(0)
    assert complaints == []


async def test_the_pages_of_a_pod_and_of_its_failed_device_begin_with_the_worst(stack: Stack) -> None:
    await stack.node.add_pod(Pod("thirsty", {"main": {stack.resource: 2}}))
    await stack.everyone_says(await stack.held())
    stack.remove_devices("cherry")
    await stack.metric_is(0, "devicelens_device_healthy", device="cherry")

    async with chromium() as browser:
        page = await (await browser.new_context(java_script_enabled=False)).new_page()
        await load(page, f"{stack.url}/pods/{stack.node.namespace}/thirsty")
        verdict = page.locator(".answer.critical .verdict")
        await expect(verdict).to_contain_text("1 of its 2 devices is unhealthy; it holds 2 devices")

        await load(page, f"{stack.url}/devices/{stack.resource}/cherry")
        await expect(verdict).to_contain_text("Unhealthy; held by 1 pod.")
        assert await page.locator("h1, h2").all_inner_texts() == [
            *("cherry", "What is wrong", "What it is", "Who says so", "Who had it"),
        ]
        asked = page.get_by_role("form", name="Who held it at a time")
        await asked.get_by_label("Who held it at").fill("now")
        await asked.get_by_role("button", name="Ask").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Who held what")
        await expect(page.get_by_role("table").get_by_role("link", name="thirsty")).to_have_count(1)
    code, words, errors = await owners.devicelens_again("explain", "cherry", "--url", stack.url)
    assert code == 0, errors
    assert words.startswith("cherry: unhealthy; held by 1 pod.")
