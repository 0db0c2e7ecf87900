"""The page for everybody: by axe, by screen reader, on narrow screens, on paper, and with hostile names."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped] # it has no types
from playwright.async_api import Page, expect

from exporter.mapping.model import (
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Container,
    Device,
    DeviceKey,
    Holder,
    Snapshot,
)
from exporter.mapping.state import Failure, State
from harness.hostile import CORPUS

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one browser for all of them

Visit = Callable[..., Awaitable[SimpleNamespace]]


def stale(world: SimpleNamespace) -> None:
    state = world.publish()
    world.states.publish(replace(state, failure=Failure("List", "UNAVAILABLE", "gone", world.now)))
    world.now += 90


def empty(world: SimpleNamespace) -> None:
    world.publish(Snapshot())


def well(world: SimpleNamespace) -> None:
    devices = tuple(replace(d, allocatable=True) for d in world.snapshot.devices)
    world.publish(replace(world.snapshot, devices=devices))


def unknown(world: SimpleNamespace) -> None:
    world.states.publish(State(failure=Failure("List", "UNAVAILABLE", "there is no socket", world.now)))


def large(world: SimpleNamespace) -> None:
    holders = (Holder("ns", "pod-1", "c"),)
    devices = tuple(
        Device(DeviceKey(f"r.example/{i % 40}", f"d-{i}"), f"p-{i // 4}", (), i % 7 > 0, holders * (i % 2))
        for i in range(2000)
    )
    world.publish(Snapshot(tuple(sorted(devices, key=lambda d: d.key)), world.snapshot.claims))


SCENES: dict[str, tuple[Callable[[SimpleNamespace], object], str]] = {
    "with findings": (lambda world: world.publish(), "/"),
    "all well, sorted": (well, "/?sort=-pod"),
    "by pod": (lambda world: world.publish(), "/?group=pod"),
    "by device": (lambda world: world.publish(), "/?group=device&q=GPU"),
    "stale": (stale, "/"),
    "empty": (empty, "/"),
    "not known yet": (unknown, "/"),
    "two thousand devices": (large, "/?per_page=25&group=device"),
    "nothing matches": (lambda world: world.publish(), "/?q=nobody"),
    "no such address": (lambda world: world.publish(), "/nowhere"),
}


@pytest.mark.parametrize("scene", SCENES)
async def test_axe_finds_no_fault(visit: Visit, world: SimpleNamespace, scene: str) -> None:
    prepare, path = SCENES[scene]
    prepare(world)
    visited = await visit(path, timezone_id="Asia/Kolkata", reduced_motion="reduce")
    page: Page = visited.page
    if scene == "no such address":
        visited.complaints[:] = [c for c in visited.complaints if "404" not in c]
    else:
        await expect(page.locator(".zone-switch")).to_be_attached()
    for details in await page.locator("details").all():
        await details.evaluate("details => { details.open = true; }")

    async def check(*rules: str) -> None:
        options = {"runOnly": {"type": "rule", "values": rules}} if rules else {}
        found = await Axe().run(page, options=options)
        assert found.violations_count == 0, found.generate_report()

    await check()
    await page.emulate_media(color_scheme="dark")
    await check("color-contrast", "link-in-text-block")
    await page.set_viewport_size({"width": 360, "height": 800})
    await check()


async def test_hostile_names_are_inert_and_break_nothing(visit: Visit, world: SimpleNamespace) -> None:
    devices, claims, containers = (
        [Device(DeviceKey("~/last", "plain"))],
        list[ClaimDevice](),
        list[Container](),
    )
    for name in CORPUS.values():
        holder = Holder(name, name, name, name)
        devices.append(Device(DeviceKey(name, name), name, (0,), False, (holder, Holder("ns", name, "c"))))
        key = ClaimDeviceKey(name, name, name, name)
        claims.append(ClaimDevice(key, (ClaimHolder(holder, name, name),), (name,)))
        containers.append(Container(holder, {}, (1,)))
    world.publish(Snapshot(tuple(devices), tuple(claims), tuple(containers)))
    page: Page = (await visit("/?per_page=1000", viewport={"width": 360, "height": 800})).page
    first = page.locator(".devices tr.first")
    await expect(first).to_have_count(2 * len(CORPUS) + 1)
    await expect(page.locator(".copy").first).to_be_attached()
    assert await page.locator("img, main script, [onmouseover]").count() == 0
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    # Nothing was left open, nothing turned about: each row is in its place, and says what it should.
    plain = page.locator(".devices tbody", has=page.get_by_role("link", name="plain", exact=True))
    assert " ".join((await plain.inner_text()).split()) == "plain ~/last free"
    for address in await page.locator(".devices a.id, .devices a.pod").evaluate_all(
        "links => links.map(link => link.getAttribute('href'))"
    ):
        assert address.startswith(("/devices/", "/claims/", "/pods/", "/?"))
    for direction in await first.locator("a.id, bdi").evaluate_all(
        "texts => texts.map(text => getComputedStyle(text).unicodeBidi)"
    ):
        assert direction in {"isolate", "plaintext"}


async def test_on_paper_there_is_what_is_held_and_nothing_to_press(
    visit: Visit, world: SimpleNamespace
) -> None:
    world.publish()
    page: Page = (await visit(color_scheme="dark")).page
    await page.emulate_media(media="print")
    await expect(page.locator(".devices")).to_contain_text("llama-0")
    for thing in ("form.filters", ".top nav", ".copy >> nth=0", ".zone-switch >> nth=0"):
        if await page.locator(thing).count():
            await expect(page.locator(thing)).to_be_hidden()
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert await page.evaluate("getComputedStyle(document.body).color") == "rgb(26, 31, 38)"


async def test_tables_are_tables_to_a_screen_reader(visit: Visit, world: SimpleNamespace) -> None:
    world.publish()
    for width in (1280, 360):
        page: Page = (await visit(viewport={"width": width, "height": 800})).page
        table = page.get_by_role("table", name="Devices, their state and who holds them since when")
        assert await table.get_by_role("columnheader").all_inner_texts() == [
            *("Device", "Resource", "State", "Pod", "Container", "Held since UTC", "NUMA")
        ]
        await expect(table.get_by_role("rowheader")).to_have_count(10)
        for landmark in ("banner", "main", "contentinfo", "search"):
            await expect(page.get_by_role(landmark)).to_have_count(1)  # pyright: ignore[reportArgumentType] -- names of roles
        assert await page.locator("[aria-live], [role=status]").count() == 3


@pytest.mark.parametrize("width", [320, 390, 760, 1280])
async def test_no_width_scrolls_sideways(visit: Visit, world: SimpleNamespace, width: int) -> None:
    long = Holder("a-namespace-with-a-long-name", "a-pod-" + "with-a-very-long-name-" * 8, "c" * 63)
    device = Device(
        DeviceKey("vendor.example.com/" + "r" * 60, "W" * 4096), "P" * 300, (0, 1), False, (long, long)
    )
    world.publish(replace(world.snapshot, devices=(*world.snapshot.devices, device)))
    page: Page = (await visit(viewport={"width": width, "height": 800})).page
    wide = await page.evaluate(
        """() => [...document.querySelectorAll("body *")]
            .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
            .filter(e => !e.closest(".scroll") && e.checkVisibility())
            .map(e => e.tagName + "." + e.className)"""
    )
    assert wide == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
