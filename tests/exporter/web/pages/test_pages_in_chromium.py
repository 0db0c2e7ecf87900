"""The pages of devices, pods, claims and the past in a browser: an on-call engineer's tasks, by mouse and by
keyboard, with JavaScript and without, in the dark and on a narrow screen.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped] # it has no types
from playwright.async_api import Page, expect

from exporter.history.record import HoldingFacts, HoldingKey
from exporter.mapping.model import Container, Device, DeviceKey, Holder, Snapshot
from exporter.views.query import device_link, pod_link
from exporter.web.pages.past import EXPECTED_TIME
from harness.past import Past

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one browser for all of them

Visit = Callable[..., Awaitable[SimpleNamespace]]

START = 1_793_227_263.25
DEVICE = "/devices/nvidia.com/gpu/GPU-0"


def key(device: str, pod: str, namespace: str = "ml") -> HoldingKey:
    return HoldingKey("nvidia.com/gpu", "", "", device, "", "", "", namespace, pod, "trainer")


LLAMA, EVAL = key("GPU-0", "llama-0"), key("GPU-0", "evaluation-run-9", "research")


@pytest.fixture
def story(world: SimpleNamespace, past: Past) -> SimpleNamespace:
    """An hour: GPU-0 goes from llama-0 to another pod, the kubelet is silent, and llama-0 is made anew."""
    past.look()
    for _ in range(60):
        past.look((LLAMA, HoldingFacts("uid-0")), after=15)
    past.look(after=10)
    for _ in range(40):
        past.look((EVAL, HoldingFacts("uid-9")), after=15)
    past.silent(200)
    while past.life.wall < START - 15:
        past.look((LLAMA, HoldingFacts("uid-1")), (key("GPU-1", "llama-0"), HoldingFacts("uid-1")), after=15)
    world.now = past.life.wall
    holder = Holder("ml", "llama-0", "trainer", "uid-1")
    devices = tuple(
        replace(d, holders=(holder,)) if d.key.device in {"GPU-0", "GPU-1"} else d
        for d in world.snapshot.devices
    )
    containers = tuple(
        replace(c, holder=holder) if c.holder.pod == "llama-0" else c for c in world.snapshot.containers
    )
    world.snapshot = replace(world.snapshot, devices=devices, containers=containers)
    world.publish(world.snapshot)
    return world


PAGES = {
    "device": DEVICE,
    "failed device": "/devices/nvidia.com/gpu/GPU-2",
    "share": "/devices/nvidia.com/gpu.shared/GPU-7%3A%3A0",
    "no device": "/devices/nvidia.com/gpu/GPU-99",
    "pod": "/pods/ml/llama-0",
    "pod with CPUs": "/pods/trading/engine-0",
    "pod of the past": "/pods/research/evaluation-run-9",
    "no pod": "/pods/ml/none",
    "claim": "/claims/gpu.example.com/pool-a/gpu-0",
    "history": "/history",
    "a moment": "/history?at=-30m",
    "a wrong time": "/history?from=yesterday&at=x",
}


@pytest.mark.parametrize("name", PAGES)
async def test_axe_finds_nothing_in_any_light_and_nothing_goes_beyond_a_narrow_screen(
    visit: Visit, story: SimpleNamespace, name: str
) -> None:
    there = await visit(PAGES[name])
    page: Page = there.page
    answered(there)
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
    await page.set_viewport_size({"width": 360, "height": 640})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360


def answered(there: SimpleNamespace) -> None:
    """A status of 400 or 404 is what is asked for here."""
    there.complaints[:] = [one for one in there.complaints if "Failed to load resource" not in one]


async def test_a_bar_leads_to_its_pod_by_keyboard_and_says_what_it_is(
    visit: Visit, story: SimpleNamespace
) -> None:
    page: Page = (await visit(DEVICE)).page
    await page.locator(".skip-drawing").focus()
    for name in ("llama-0", "evaluation-run-9", "llama-0"):
        await page.keyboard.press("Tab")
        focused = page.locator(":focus")
        await expect(focused).to_have_attribute("aria-label", re.compile(name))
    await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("evaluation-run-9")


async def test_the_drawing_can_be_passed_over(visit: Visit, story: SimpleNamespace) -> None:
    page: Page = (await visit(DEVICE)).page
    await page.locator(".skip-drawing").focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.closest('table') !== null")


@pytest.mark.parametrize("width", [360, 600, 900, 1400])
async def test_labels_are_readable_at_any_width(visit: Visit, story: SimpleNamespace, width: int) -> None:
    page: Page = (await visit("/history", viewport={"width": width, "height": 800})).page
    boxes = await page.locator(".drawing .label:visible").evaluate_all(
        "found => found.map(one => { const b = one.getBoundingClientRect();"
        " return [b.left, b.right, b.top, one.textContent]; })"
    )
    assert boxes
    edges = await page.locator(".drawing").evaluate(
        "one => { const b = one.getBoundingClientRect(); return [b.left, b.right]; }"
    )
    for left, right, _, text in boxes:
        assert edges[0] - 1 <= left, text
        assert right <= edges[1] + 1, text
    for one in boxes:
        for other in boxes:
            if one[3] != other[3] and abs(one[2] - other[2]) < 5:
                assert one[1] <= other[0] + 1 or other[1] <= one[0] + 1, (one, other)


async def test_a_wrong_time_is_told_at_its_field_and_nothing_typed_is_lost(
    visit: Visit, story: SimpleNamespace
) -> None:
    there = await visit("/history")
    page: Page = there.page
    await page.get_by_label("Device", exact=True).fill("GPU-0")
    await page.get_by_label("From", exact=True).fill("last tuesday")
    await page.get_by_role("button", name="Ask").click()
    field = page.get_by_label("From", exact=True)
    await expect(field).to_have_value("last tuesday")
    await expect(field).to_have_attribute("aria-invalid", "true")
    await expect(field).to_have_accessible_description(f"found 'last tuesday', expected {EXPECTED_TIME}")
    await expect(page.get_by_label("Device", exact=True)).to_have_value("GPU-0")
    answered(there)


async def test_a_device_page_is_live_and_keeps_its_focus(
    visit: Visit, story: SimpleNamespace, past: Past
) -> None:
    page: Page = (await visit(DEVICE)).page
    bar = page.locator("a.stretch").nth(1)
    await bar.focus()
    await page.evaluate("document.querySelector('h1').mine = 1")
    past.look((key("GPU-1", "llama-0"), HoldingFacts("uid-1")), after=15)
    story.now = past.life.wall
    devices = tuple(replace(d, holders=()) if d.key.device == "GPU-0" else d for d in story.snapshot.devices)
    story.publish(replace(story.snapshot, devices=devices))
    await expect(page.locator(".answer .verdict")).to_contain_text("Held by no pod.")
    await expect(page.locator("a.stretch.held")).to_have_count(0)
    await expect(page.locator("a.stretch.ended")).to_have_count(3)
    await expect(bar).to_be_focused()
    assert await page.evaluate("document.querySelector('h1').mine") == 1, "it is changed, and not made anew"
    devices = tuple(replace(d, allocatable=False) if d.key.device == "GPU-0" else d for d in devices)
    story.publish(replace(story.snapshot, devices=devices))
    await expect(page.locator(".answer.unhealthy")).to_be_visible()


async def test_the_uid_of_a_holder_can_be_copied(visit: Visit, story: SimpleNamespace) -> None:
    page: Page = (await visit(DEVICE)).page
    await expect(page.locator(".answer .holders button")).to_have_count(1)
    await expect(page.locator(".answer .name button")).to_have_count(1)


async def test_a_hostile_name_neither_runs_nor_breaks_the_page(visit: Visit, world: SimpleNamespace) -> None:
    raw = "\u202e<img src=x onerror=alert(1)>\"'&" + "x" * 3000
    holder = Holder(raw[:200], raw[:200], raw[:200], "u")
    device = Device(DeviceKey("r.example/x", raw), "", (), True, (holder,))
    world.publish(Snapshot((device,), (), (Container(holder, {"r.example/x": 1}),), 1))
    for path in (device_link(*device.key), pod_link(holder.namespace, holder.pod)):
        page: Page = (await visit(path, viewport={"width": 360, "height": 640})).page
        await expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x")
        assert await page.locator("img").count() == 0
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
