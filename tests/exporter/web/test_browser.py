"""The pages in Chromium: JavaScript modules, layout, and axe. tests/e2e/test_tasks.py has whole tasks
by mouse, by keyboard, and without JavaScript.
"""

import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
from aiohttp.test_utils import TestServer
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped] # it has no types
from msgspec.structs import replace
from playwright.async_api import Browser, Page, Route, expect

from exporter.mapping.holdings import HeldSince
from exporter.mapping.model import Doubt, Holder, Snapshot
from exporter.mapping.state import Failure, State
from exporter.views.query import device_link, pod_link
from exporter.views.wording import lasting
from harness.past import Past
from harness.scene import GPU, device, snapshot
from harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one browser for all of them

Visit = Callable[..., Awaitable[Page]]

DEVICE = "/devices/nvidia.com/gpu/GPU-0"


def with_device(found: Snapshot, name: str, **changes: object) -> Snapshot:
    """`found` with one device changed."""
    devices = (replace(d, **changes) if d.key.device == name else d for d in found.devices)
    return replace(found, devices=tuple(devices))


def held_by(found: Snapshot, name: str, pod: str) -> Snapshot:
    return with_device(found, name, holders=(Holder("new", pod, "main"),))


# --- the status page follows the mapping ----------------------------------------------------------------


async def test_what_a_person_typed_chose_and_opened_survives_changes(
    page: Page, world: SimpleNamespace
) -> None:
    resource = page.get_by_label("Resource", exact=True)
    await page.locator(".dra-facts summary").click()
    search = page.get_by_label("Search")
    await search.focus()
    for character in "shared":
        await page.keyboard.type(character)
        world.publish()
    await expect(page.locator(".devices tbody")).to_have_count(3)
    await expect(search).to_have_value("shared")
    await expect(search).to_be_focused()
    assert await page.locator(".dra-facts").get_attribute("open") is not None
    await resource.select_option(f"{GPU}.shared")
    await expect(page.locator(".devices tbody")).to_have_count(2)
    more = device("first", resource="nvidia.com/aaa")
    world.publish(replace(world.snapshot, devices=(more, *world.snapshot.devices)))
    await expect(resource.locator("option")).to_have_count(5)
    await expect(resource).to_have_value(f"{GPU}.shared")
    await expect(page.locator(".devices tbody")).to_have_count(2)


async def test_banner_follows_the_kubelet_and_the_age(page: Page, world: SimpleNamespace) -> None:
    banner = page.locator(".banner [role=status]")
    await expect(banner).to_have_text("The mapping is fresh.")
    world.now += 10
    failure = Failure("List", "UNAVAILABLE", "gone", world.now)
    world.states.publish(replace(world.states.state, failure=failure))
    await expect(banner).to_have_text("The kubelet does not answer as it should.")
    taken = page.locator(".banner [data-key=taken]")
    await expect(taken).to_contain_text("This mapping is 10 s old.")
    await expect(page).to_have_title(re.compile("^No answer: "))
    world.now += 60
    # Nothing is published: the exporter itself notices that time has passed.
    await expect(banner).to_have_text("Do not trust this mapping.")
    await expect(page).to_have_title(re.compile("^STALE: "))
    world.publish()
    await expect(banner).to_have_text("The mapping is fresh.")


async def test_a_refresh_without_a_change_changes_only_its_time(page: Page, world: SimpleNamespace) -> None:
    await page.evaluate(
        """() => {
            window.changes = [];
            new MutationObserver((all) => {
                for (const one of all) {
                    const where = one.target.nodeType === 1 ? one.target : one.target.parentElement;
                    if (!where.closest("[data-taken], [data-lasting]")) window.changes.push(where.outerHTML);
                }
            }).observe(document.querySelector("main"),
                { subtree: true, childList: true, characterData: true, attributes: true });
        }"""
    )
    world.now += 5
    world.states.publish(replace(world.states.state, taken_at=world.now))
    time = page.locator("time[data-taken]")
    await expect(time).to_have_attribute("title", "2026-10-28T22:41:08.250Z")
    await expect(time).to_have_attribute("datetime", "2026-10-28T22:41:08.250Z")
    assert await page.evaluate("window.changes") == []


async def test_the_page_stays_and_says_so_without_events(
    page: Page, server: TestServer, complaints: list[str]
) -> None:
    fresh = page.get_by_text("The mapping is fresh.")
    await expect(fresh).to_be_visible()

    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, body="{}")

    await page.route("**/api/v1/events", refuse)
    await page.reload()
    await expect(page.locator("#link")).to_contain_text("Not live since")
    # A page that is not live claims nothing about the present.
    await expect(fresh).to_be_hidden()
    await expect(page.get_by_text("The kubelet answered")).to_be_hidden()
    await expect(page.locator(".banner")).to_contain_text(
        re.compile("^This mapping is .* old: holders may have changed since.", re.MULTILINE)
    )
    await server.close()
    await page.unroute_all()
    await expect(page.locator("#link")).to_contain_text("the exporter does not answer")
    await expect(page.locator(".devices tbody")).to_have_count(10)
    # The browser itself notes what it could not get.
    complaints[:] = [c for c in complaints if "ERR_" not in c and "503" not in c]


async def test_a_page_is_live_and_fresh_again_after_an_interruption(
    page: Page, complaints: list[str]
) -> None:
    fresh = page.get_by_text("The mapping is fresh.")

    async def refuse(route: Route) -> None:
        await route.abort()

    await page.route("**/", refuse)
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await expect(page.locator("#link")).to_contain_text("Not live since")
    await expect(fresh).to_be_hidden()
    await page.unroute_all()
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await expect(page.locator("#link")).to_be_hidden()
    await expect(fresh).to_be_visible()
    await expect(page.locator(".aged")).to_have_count(0)
    complaints[:] = [c for c in complaints if "ERR_" not in c]


@pytest.mark.usefixtures("past")
@pytest.mark.parametrize("path", ["/", "/history"])
async def test_a_page_that_gets_no_events_does_not_call_an_old_mapping_fresh(visit: Visit, path: str) -> None:
    page = await visit(path)
    await expect(page.locator(".zone-switch")).to_be_visible()
    # An exporter that hangs: its connections stay, and no event comes. A minute and more passes.
    await page.evaluate(
        """() => {
            const [date, steady] = [Date.now(), performance.now()];
            Date.now = () => date + 70000;
            performance.now = () => steady + 70000;
        }"""
    )
    await expect(page.get_by_text("This mapping is 1 min old: holders may have changed")).to_be_visible()
    await expect(page.get_by_text("The mapping is fresh.")).to_be_hidden()
    await expect(page.locator("#link")).to_have_text(re.compile("^Not live since" if path == "/" else "^$"))


async def test_the_module_counts_ages_as_the_server_words_them(visit: Visit, world: SimpleNamespace) -> None:
    ages = (0, 59, 60, 3599, 3600, 7500, 86400, 90000, 400 * 86400)
    pods = [Holder("ns", f"pod-{i}", "c") for i in range(len(ages))]
    state = world.publish(snapshot(*(device(f"d{i}", pod) for i, pod in enumerate(pods))))
    since = {h: HeldSince(world.now - 0.2 - ages[int(h.key.device[1:])]) for h in state.since}
    world.states.publish(replace(state, since=since))
    page = await visit()
    cells = page.locator(".devices .since time[data-lasting]")
    # A minute of the browser's clock later each age is what the server says then.
    await page.evaluate("(now => { Date.now = () => now + 60000; })(Date.now())")

    async def counted() -> bool:
        found = await cells.all_inner_texts()
        return any(found == [lasting(age + 60.2 + late) for age in ages] for late in range(60))

    await until("ages count on by themselves", counted)


async def test_a_new_finding_is_announced_once_and_its_row_marked(page: Page, world: SimpleNamespace) -> None:
    said = page.locator("#said")
    await expect(page.locator(".copy").first).to_be_attached()
    await expect(said).to_have_text("")  # earlier findings are on the page
    await page.evaluate(
        """() => {
            window.said = [];
            const said = document.getElementById("said");
            new MutationObserver(() => said.textContent && window.said.push(said.textContent))
                .observe(said, { childList: true });
        }"""
    )
    ill = with_device(world.snapshot, "GPU-0", allocatable=False)
    world.publish(ill)
    sentence = re.compile(r"Wrong now: ml/llama-0 \(trainer\) holds nvidia.com/gpu GPU-0")
    await expect(said).to_have_text(sentence)
    marked = page.locator("tr[data-own-changed]")
    assert [text.split()[0] for text in await marked.all_inner_texts()] == ["GPU-0"]
    for pod in ("p-0", "p-1"):  # other changes do not repeat it
        world.publish(held_by(ill, "GPU-5", pod))
        await expect(page.locator(".devices", has_text=pod)).to_have_count(1)
    assert len(await page.evaluate("window.said")) == 1
    world.publish(replace(ill, devices=tuple(replace(d, allocatable=True) for d in ill.devices)))
    await expect(said).to_have_text("Nothing is wrong any longer.")


async def test_a_page_in_view_again_fetches_only_changes(page: Page) -> None:
    await expect(page.locator(".copy").first).to_be_attached()
    async with page.expect_response(lambda response: response.url.endswith("/")) as answer:
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    assert (await answer.value).status == 304


# --- order, groups, filters, keys -----------------------------------------------------------------------


async def test_a_heading_sorts_and_the_order_is_in_the_address(page: Page) -> None:
    table = page.locator(".devices table")
    since = table.get_by_role("columnheader", name="Held since")
    resource = table.get_by_role("columnheader", name="Resource")
    await expect(resource).to_have_attribute("aria-sort", "ascending")
    for order, address in (("ascending", "/?sort=since"), ("descending", "/?sort=-since"), (None, "/")):
        await since.get_by_role("link").focus()
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile(re.escape(address) + "$"))
        await expect(resource if order is None else since).to_have_attribute(
            "aria-sort", order or "ascending"
        )
        await expect(table.locator("[aria-sort]")).to_have_count(1)
        await expect(since.get_by_role("link")).to_be_focused()
    await page.go_back()
    await expect(since).to_have_attribute("aria-sort", "descending")


async def test_filters_groups_and_the_way_back_keep_the_rest_of_the_query(visit: Visit) -> None:
    page = await visit("/?sort=-numa")
    summary, search, group = (
        page.locator(".summary"),
        page.get_by_label("Search"),
        page.get_by_label("Group by"),
    )
    await group.select_option("pod")
    llama = page.get_by_role("rowgroup").filter(has=page.get_by_role("rowheader", name="ml/llama-0"))
    await expect(llama.get_by_role("row")).to_have_count(3)
    await expect(page.locator(".devices tbody").last).to_contain_text("Held by no pod")
    assert page.url.endswith("/?group=pod&sort=-numa")
    await page.locator(".devices a.id").first.focus()
    await page.keyboard.press("/")
    await expect(search).to_be_focused()
    await page.keyboard.type("ml/llama")  # in a field, a slash is a slash
    await expect(search).to_have_value("ml/llama")
    await expect(summary).to_contain_text("2 of 10 devices")
    assert await page.locator("tr[data-own-changed]").count() == 0, "other rows are no change of the mapping"
    assert {"group=pod", "sort=-numa"} <= set(page.url.partition("?")[2].split("&"))
    await page.get_by_role("link", name="Clear").click()
    await expect(search).to_have_value("")
    await expect(group).to_have_value("pod")
    await expect(search).to_be_focused()  # the link is gone
    await page.get_by_role("link", name=f"{GPU}.shared").click()
    await expect(page.get_by_label("Resource", exact=True)).to_have_value(f"{GPU}.shared")
    await page.go_back()
    await expect(page.get_by_label("Resource", exact=True)).to_have_value("")


async def test_the_keyboard_skips_to_the_content_and_focus_is_visible(page: Page) -> None:
    await page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await page.keyboard.press("Tab")
    assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


# --- ids and times --------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [True, False])
async def test_an_id_is_copied_as_its_row_shows_it_now(
    page: Page, world: SimpleNamespace, secure: bool
) -> None:
    if not secure:  # as without TLS
        await page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    row = page.locator(".devices tbody", has_text="vllm-0")
    await row.get_by_role("button", name="Copy GPU-7::0").click()
    await expect(page.locator("#said")).to_have_text("Copied GPU-7::0")
    search = page.get_by_label("Search")
    await search.focus()
    await page.keyboard.press("Control+V")
    await expect(search).to_have_value("GPU-7::0")
    await expect(page.locator(".summary")).to_have_text("1 of 10 devices")
    await row.get_by_role("button", name="Copy vllm-0").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#said")).to_have_text("Copied vllm-0")
    await expect(row.get_by_role("button", name="Copy vllm-0")).to_be_focused()
    await search.fill("GPU-5")
    buttons = page.locator(".devices .copy")
    await expect(buttons).to_have_count(1)
    for pod in ("p-0", "p-1"):
        world.publish(held_by(world.snapshot, "GPU-5", pod))
        await expect(page.get_by_role("button", name=f"Copy {pod}")).to_have_count(1)
        await expect(buttons).to_have_count(2)
    world.publish()
    await expect(buttons).to_have_count(1)


async def test_times_switch_to_the_browsers_zone_and_the_choice_is_kept(
    page: Page, world: SimpleNamespace
) -> None:
    heading = page.get_by_role("columnheader", name="Held since")
    since = page.locator(".devices time[data-at]").first
    await expect(since).to_have_text("22:31:03")
    await expect(heading).to_have_text("Held since UTC")
    switch = page.get_by_role("button", name="zone, Asia/")
    await expect(switch).to_have_attribute("aria-pressed", "false")
    await switch.click()
    await expect(since).to_have_text("04:01:03")
    await expect(heading).to_have_text("Held since GMT+5:30")
    await expect(page.locator("footer")).to_contain_text("Times are GMT+5:30 (Asia/Calcutta).")
    assert await since.get_attribute("title") == "2026-10-28T22:31:03.250Z", "the title is in UTC"
    world.publish(held_by(world.snapshot, "GPU-5", "arrival-0"))
    await expect(page.locator(".devices", has_text="arrival-0")).to_have_count(1)
    shown = await page.locator("main").locator("time, [data-zone]").all_inner_texts()
    assert {"22:31:03", "UTC"}.isdisjoint(shown)
    assert await page.context.cookies() == []
    await page.reload()
    await expect(since).to_have_text("04:01:03")
    await switch.click()
    await expect(since).to_have_text("22:31:03")


async def test_a_browser_in_utc_needs_no_switch(browser: Browser, server: TestServer) -> None:
    async with await browser.new_context(timezone_id="UTC") as context:
        page = await context.new_page()
        await page.goto(f"http://127.0.0.1:{server.port}/")
        await expect(page.locator(".copy").first).to_be_attached()
        await expect(page.locator(".zone-switch")).to_have_count(0)


# --- everybody ------------------------------------------------------------------------------------------


def stale(world: SimpleNamespace) -> None:
    world.publish(failure=Failure("List", "UNAVAILABLE", "gone", world.now))
    world.now += 90


def unknown(world: SimpleNamespace) -> None:
    world.states.publish(State(failure=Failure("List", "UNAVAILABLE", "there is no socket", world.now)))


def well(world: SimpleNamespace) -> None:
    devices = tuple(replace(d, allocatable=True) for d in world.snapshot.devices)
    world.publish(replace(world.snapshot, devices=devices))


def large(world: SimpleNamespace) -> None:
    pod = Holder("ns", "pod-1", "c")
    devices = (
        device(f"d-{i}", *[pod] * (i % 2), resource=f"r.x/{i % 9}", parent=f"p-{i // 4}", ok=i % 7 > 0)
        for i in range(24)
    )
    claimed = [one for one in world.snapshot.devices if one.claimed is not None]
    world.publish(snapshot(*devices, *claimed))


def unchanged(_world: SimpleNamespace) -> None:
    pass


def unconfirmed(world: SimpleNamespace) -> None:
    doubts = {("ml", "llama-0"): Doubt("its uid is unknown", world.now - 9, world.now + 60)}
    world.publish(replace(world.snapshot, unconfirmed=doubts))


SCENES: dict[str, tuple[Callable[[SimpleNamespace], object], str]] = {
    "no findings, sorted": (well, "/?sort=-pod"),
    "many devices by device": (large, "/?per_page=10&group=device"),
    "stale": (stale, "/"),
    "empty": (lambda world: world.publish(Snapshot()), "/"),
    "unknown": (unknown, "/"),
    "no such address": (unchanged, "/nowhere"),
    "share": (unchanged, "/devices/nvidia.com/gpu.shared/GPU-7%3A%3A0"),
    "a holder that is not confirmed": (unconfirmed, DEVICE),
    "holders that are not confirmed": (unconfirmed, "/"),
    "no such device": (unchanged, "/devices/nvidia.com/gpu/GPU-99"),
    "pod with CPUs": (unchanged, "/pods/trading/engine-0"),
    "claim": (unchanged, "/claims/gpu.example.com/pool-a/gpu-0"),
    "a wrong time": (unchanged, "/history?from=yesterday&at=x"),
}
"""The scenes that tests/e2e/test_tasks.py does not show."""


@pytest.mark.usefixtures("past")
@pytest.mark.parametrize(("prepare", "path"), SCENES.values(), ids=SCENES)
async def test_axe_finds_nothing_in_any_light_and_on_a_narrow_screen(
    visit: Visit,
    world: SimpleNamespace,
    complaints: list[str],
    prepare: Callable[[SimpleNamespace], object],
    path: str,
) -> None:
    prepare(world)
    page = await visit(path)
    # A status of 400 or 404 is expected here.
    complaints[:] = [c for c in complaints if "Failed to load resource" not in c]
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
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_no_width_scrolls_sideways(visit: Visit, world: SimpleNamespace) -> None:
    long = Holder("a-namespace-with-a-long-name", "a-pod-" + "with-a-very-long-name-" * 8, "c" * 63)
    wide = device("W" * 3000, long, resource="vendor.example.com/" + "r" * 60, parent="P" * 300, numa=(0, 1))
    world.publish(snapshot(*world.snapshot.devices, wide))
    for path in ("/", device_link(*wide.key), pod_link(*long[:2])):
        page = await visit(path)
        for width in (1280, 760, 320):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, path


async def test_ids_are_links_to_the_eye_and_words_do_not_break_inside(
    visit: Visit, world: SimpleNamespace
) -> None:
    camera = device("camera_front.left-0", Holder("ml", "llama-0", "trainer"), resource="example.com/camera")
    world.publish(snapshot(*world.snapshot.devices, camera))
    for path in ("/", pod_link("ml", "llama-0")):
        page = await visit(path)
        link = page.locator("a.id").first
        assert await link.evaluate("one => getComputedStyle(one).textDecorationLine") == "underline"
        for width in (1280, 800, 380, 320):
            await page.set_viewport_size({"width": width, "height": 800})
            broken = await page.evaluate(_BROKEN_WORDS)
            assert broken == [], (path, width)
            if width == 1280:  # and where there is room, names stay whole
                name = page.get_by_text("example.com/camera").last
                tops = await name.evaluate("one => [...one.getClientRects()].map((box) => box.top)")
                assert len(set(tops)) == 1, path


_BROKEN_WORDS = """() => {
    const found = [];
    const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        if (!node.parentElement.closest("th, td")) continue;
        if (node.parentElement.closest("details:not([open]) > :not(summary)")) continue;
        for (const { 0: word, index } of node.data.matchAll(/[A-Za-z]{2,24}/g)) {
            const range = document.createRange();
            range.setStart(node, index);
            range.setEnd(node, index + word.length);
            if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) found.push(word);
        }
    }
    return found;
}"""
"""The words of a table that stand on two lines."""


async def test_nothing_covers_a_heading_on_a_narrow_screen(page: Page, complaints: list[str]) -> None:
    async def refuse(route: Route) -> None:
        await route.abort()

    await page.set_viewport_size({"width": 380, "height": 700})
    await page.route("**/", refuse)
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await expect(page.locator("#link")).to_contain_text("Not live since")
    for heading in await page.locator("h1:not(.hidden), h2:not(.hidden)").all():
        await heading.evaluate("one => one.scrollIntoView({ block: 'start' })")
        over = await heading.evaluate(
            """one => {
                const box = one.getBoundingClientRect();
                const top = document.elementFromPoint(box.left + 2, box.top + box.height / 2);
                return top === one || one.contains(top) ? "" : top && top.outerHTML;
            }"""
        )
        assert over == "", await heading.inner_text()
    complaints[:] = [c for c in complaints if "ERR_" not in c]


async def test_print_shows_holders_and_no_controls(page: Page) -> None:
    await page.emulate_media(media="print", color_scheme="dark")
    await expect(page.locator(".devices")).to_contain_text("llama-0")
    for thing in ("form.filters", ".top nav", ".copy >> nth=0", ".zone-switch >> nth=0"):
        if await page.locator(thing).count():
            await expect(page.locator(thing)).to_be_hidden()
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert await page.evaluate("getComputedStyle(document.body).color") == "rgb(26, 31, 38)"


async def test_tables_are_tables_to_a_screen_reader(page: Page) -> None:
    await page.set_viewport_size({"width": 360, "height": 800})
    table = page.get_by_role("table", name="Devices, their state and who holds them since when")
    assert await table.get_by_role("columnheader").all_inner_texts() == [
        *("Device", "Resource", "State", "Pod", "Container", "Held since UTC", "NUMA")
    ]
    await expect(table.get_by_role("rowheader")).to_have_count(10)
    for landmark in ("banner", "main", "contentinfo", "search"):
        await expect(page.get_by_role(landmark)).to_have_count(1)  # pyright: ignore[reportArgumentType] -- names of roles
    await expect(page.locator(".copy").first).to_be_attached()
    assert await page.locator("[aria-live], [role=status]").count() == 3
    directions = await page.locator(".devices a.id, .devices bdi").evaluate_all(
        "texts => texts.map(text => getComputedStyle(text).unicodeBidi)"
    )
    assert set(directions) <= {"isolate", "plaintext"}, "a name's direction ends with the name"


async def test_motion_follows_the_preference(page: Page) -> None:
    moving = "getComputedStyle(document.querySelector('.devices td')).transitionDuration"
    await page.emulate_media(reduced_motion="reduce")
    assert await page.evaluate(moving) == "0s"
    await page.emulate_media(reduced_motion="no-preference")
    assert await page.evaluate(moving) == "0.6s"


# --- the drawing ----------------------------------------------------------------------------------------


async def test_bars_lead_to_their_pods_by_keyboard_and_the_drawing_can_be_skipped(
    visit: Visit, story: Past
) -> None:
    page = await visit(DEVICE)
    skip = page.locator(".skip-drawing")
    await skip.focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.closest('table') !== null")
    await skip.focus()
    for name in ("llama-0", "evaluation-run-9", "llama-0"):
        await page.keyboard.press("Tab")
        await expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile(name))
    await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("evaluation-run-9")


async def test_labels_are_readable_at_any_width(visit: Visit, story: Past) -> None:
    page = await visit("/history")
    for width in (360, 600, 900, 1400):
        await page.set_viewport_size({"width": width, "height": 800})
        boxes = await page.locator(".drawing .label:visible").evaluate_all(
            "found => found.map(one => { const b = one.getBoundingClientRect();"
            " return [b.left, b.right, b.top, one.textContent]; })"
        )
        assert boxes
        edges = await page.locator(".drawing").evaluate(
            "one => { const b = one.getBoundingClientRect(); return [b.left, b.right]; }"
        )
        for left, right, top, text in boxes:
            assert edges[0] - 1 <= left < right <= edges[1] + 1, text
            for other in boxes:
                beside = right <= other[0] + 1 or other[1] <= left + 1
                assert text == other[3] or abs(top - other[2]) >= 5 or beside, (text, other)


async def test_a_device_page_is_live_and_keeps_its_focus(
    visit: Visit, world: SimpleNamespace, story: Past
) -> None:
    page = await visit(DEVICE)
    bar = page.locator("a.stretch").nth(1)
    await bar.focus()
    await page.evaluate("document.querySelector('h1').mine = 1")
    story.look(after=15)
    world.now = story.life.wall
    free = with_device(world.snapshot, "GPU-0", holders=())
    world.publish(free)
    await expect(page.locator(".answer .verdict")).to_contain_text("Held by no pod.")
    await expect(page.locator("a.stretch.held")).to_have_count(0)
    await expect(page.locator("a.stretch.ended")).to_have_count(3)
    await expect(bar).to_be_focused()
    assert await page.evaluate("document.querySelector('h1').mine") == 1, "elements change in place"
    world.publish(with_device(free, "GPU-0", allocatable=False))
    await expect(page.locator(".answer.unhealthy")).to_be_visible()
