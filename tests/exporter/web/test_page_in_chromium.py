"""The page in a browser: its tasks, with JavaScript and without, and that it stays put while it changes."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from playwright.async_api import Page, expect

from exporter.mapping.holdings import HeldSince
from exporter.mapping.model import Device, DeviceKey, Holder, Snapshot
from exporter.mapping.state import Failure
from exporter.views.wording import lasting
from harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one browser for all of them

Visit = Callable[..., Awaitable[SimpleNamespace]]


def rows(page: Page) -> Callable[[], Awaitable[list[str]]]:
    async def read() -> list[str]:
        return [" ".join(text.split()) for text in await page.locator(".devices tbody").all_inner_texts()]

    return read


def with_holders(snapshot: Snapshot, name: str, *holders: Holder) -> Snapshot:
    return replace(
        snapshot,
        devices=tuple(replace(d, holders=holders) if d.key.device == name else d for d in snapshot.devices),
    )


async def test_without_javascript_the_form_and_the_pages_work(visit: Visit, world: SimpleNamespace) -> None:
    world.publish()
    page: Page = (await visit(java_script_enabled=False)).page
    assert await page.locator("noscript meta[http-equiv=refresh]").count() == 1
    await page.get_by_label("Namespace").select_option("ml")
    await page.get_by_label("State").select_option("held")
    await page.get_by_role("button", name="Filter").click()
    assert [text.split()[0] for text in await rows(page)()] == ["GPU-0", "GPU-1"]
    await expect(page.get_by_label("Namespace")).to_have_value("ml")
    await page.get_by_role("link", name="Clear").click()
    await expect(page.locator(".summary")).to_have_text("10 devices")
    wrong = page.locator(".findings li", has_text="GPU-2, which is unhealthy")
    await wrong.get_by_role("link", name="unhealthy, held").click()
    assert len(await rows(page)()) == 1


async def test_a_change_shows_by_itself_and_focus_selection_scroll_and_details_stay(
    visit: Visit, world: SimpleNamespace
) -> None:
    world.publish()
    page: Page = (await visit(viewport={"width": 900, "height": 400})).page
    await page.locator(".cdi summary").click()
    await page.get_by_label("Search").fill("GPU")
    await expect(page.locator(".summary")).to_have_text("10 of 10 devices")
    link = page.locator(".devices a.pod", has_text="vllm-0")
    await link.focus()
    await page.evaluate(
        "getSelection().selectAllChildren(document.querySelector('.devices tbody:nth-of-type(6) .id'))"
    )
    await page.evaluate("scrollTo(0, 500)")
    scrolled = await page.evaluate("scrollY")
    assert scrolled > 100
    # Another holder, and a new device before them all.
    changed = with_holders(world.snapshot, "GPU-5", Holder("new", "arrival-0", "main"))
    earlier = Device(DeviceKey("a.example/first", "zero"), "", (), True, (Holder("new", "first-0", "main"),))
    world.publish(replace(changed, devices=(earlier, *changed.devices)))
    await page.get_by_label("Search").evaluate("field => field.value")
    await expect(page.locator(".devices", has_text="arrival-0")).to_have_count(1)
    await expect(link).to_be_focused()
    assert await page.evaluate("getSelection().toString()") == "GPU-4"
    assert await page.locator(".cdi").get_attribute("open") is not None
    assert await page.get_by_label("Search").input_value() == "GPU"
    assert abs(await page.evaluate("scrollY") - scrolled) < 60


async def test_what_is_typed_while_the_page_changes_is_not_lost(visit: Visit, world: SimpleNamespace) -> None:
    world.publish()
    page: Page = (await visit()).page
    search = page.get_by_label("Search")
    await search.focus()
    for character in "shared":
        await page.keyboard.type(character)
        world.publish()
    await expect(page.locator(".devices tbody")).to_have_count(3)
    await expect(search).to_have_value("shared")
    await expect(search).to_be_focused()


async def test_a_choice_stays_when_the_choices_change(visit: Visit, world: SimpleNamespace) -> None:
    world.publish()
    page: Page = (await visit()).page
    await page.get_by_label("Resource", exact=True).select_option("nvidia.com/gpu.shared")
    await expect(page.locator(".devices tbody")).to_have_count(2)
    more = Device(DeviceKey("nvidia.com/aaa", "first"))
    world.publish(replace(world.snapshot, devices=(more, *world.snapshot.devices)))
    await expect(page.get_by_label("Resource", exact=True).locator("option")).to_have_count(4)
    await expect(page.get_by_label("Resource", exact=True)).to_have_value("nvidia.com/gpu.shared")
    await expect(page.locator(".devices tbody")).to_have_count(2)


async def test_a_kubelet_that_does_not_answer_is_told_and_so_is_its_return(
    visit: Visit, world: SimpleNamespace
) -> None:
    state = world.publish()
    page: Page = (await visit()).page
    banner = page.locator(".banner [role=status]")
    await expect(banner).to_have_text("The mapping is fresh.")
    world.now += 10
    world.states.publish(replace(state, failure=Failure("List", "UNAVAILABLE", "gone", world.now)))
    await expect(banner).to_have_text("The kubelet does not answer as it should.")
    await expect(page.locator(".banner [data-key=taken]")).to_contain_text(
        "the mapping of 22:41:03 UTC, 10 s old"
    )
    assert (await page.title()).startswith("No answer: ")
    world.now += 60
    # Nothing is published: the exporter itself notices that time has passed.
    await expect(banner).to_have_text("Do not trust this mapping.")
    assert (await page.title()).startswith("STALE: ")
    world.publish()
    await expect(banner).to_have_text("The mapping is fresh.")


async def test_a_refresh_that_changes_nothing_changes_nothing_but_its_time(
    visit: Visit, world: SimpleNamespace
) -> None:
    state = world.publish()
    page: Page = (await visit()).page
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
    world.states.publish(replace(state, taken_at=world.now))
    clock = page.locator("time[data-taken]:not([data-lasting])")
    await expect(clock).to_have_text("22:41:08")
    assert await page.evaluate("window.changes") == []


async def test_an_exporter_that_is_gone_is_told_and_so_is_its_return(
    visit: Visit, world: SimpleNamespace
) -> None:
    world.publish()
    visited = await visit()
    page: Page = visited.page
    await visited.runner.cleanup()
    await expect(page.locator("#link")).to_contain_text("the exporter does not answer")
    await expect(page.locator(".devices tbody")).to_have_count(10)
    # The browser itself notes that it could not connect.
    visited.complaints[:] = [c for c in visited.complaints if "ERR_" not in c]


async def test_too_many_pages_are_told_and_the_page_stays(visit: Visit, world: SimpleNamespace) -> None:
    world.publish()
    visited = await visit()
    page: Page = visited.page

    async def refuse(route: object) -> None:
        await route.fulfill(status=503, body="{}")  # type: ignore[attr-defined] # pyright: ignore -- playwright's Route

    await page.route("**/api/v1/events", refuse)  # pyright: ignore[reportArgumentType]
    await page.reload()
    await expect(page.locator("#link")).to_contain_text("Not live since")
    await expect(page.locator(".devices tbody")).to_have_count(10)
    visited.complaints[:] = [c for c in visited.complaints if "503" not in c]


async def test_the_module_counts_ages_as_the_server_words_them(visit: Visit, world: SimpleNamespace) -> None:
    ages = (0, 59, 60, 3599, 3600, 7500, 86400, 90000, 400 * 86400)
    holders = [Holder("ns", f"pod-{i}", "c") for i in range(len(ages))]
    snapshot = Snapshot(tuple(Device(DeviceKey("r/x", f"d{i}"), holders=(h,)) for i, h in enumerate(holders)))
    state = world.publish(snapshot)
    since = {
        holding: HeldSince(world.now - 0.2 - ages[int(holding.key.device[1:])]) for holding in state.since
    }
    world.states.publish(replace(state, since=since))
    page: Page = (await visit()).page
    cells = page.locator(".devices .since time[data-lasting]")
    shown = await cells.all_inner_texts()
    assert shown == [lasting(age + 0.2) for age in ages]
    # A minute of the browser's clock later each is what the server would say then.
    await page.evaluate("(now => { Date.now = () => now + 60000; })(Date.now())")

    async def counted() -> bool:
        found = await cells.all_inner_texts()
        return any(found == [lasting(age + 60.2 + late) for age in ages] for late in (0, 1, 2, 3, 4, 5))

    await until("ages count on by themselves", counted)


async def test_the_page_is_walked_by_keyboard(visit: Visit, world: SimpleNamespace) -> None:
    world.publish()
    page: Page = (await visit()).page
    await page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    reached: list[str] = []
    for _ in range(30):
        await page.keyboard.press("Tab")
        reached.append(
            await page.evaluate("document.activeElement.name || document.activeElement.textContent")
        )
    for name in ("q", "resource", "namespace", "state", "More", "Filter", "ml/llama-0"):
        assert name in reached
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "focus is seen"


# --- order and groups


async def test_a_heading_sorts_and_the_order_is_in_the_address_and_told(
    visit: Visit, world: SimpleNamespace
) -> None:
    world.publish()
    page: Page = (await visit()).page
    table = page.locator(".devices table")
    since = table.get_by_role("columnheader", name="Held since")
    resource = table.get_by_role("columnheader", name="Resource")
    await expect(resource).to_have_attribute("aria-sort", "ascending")
    for order, address in (("ascending", "/?sort=since"), ("descending", "/?sort=-since"), (None, "/")):
        await since.get_by_role("link").focus()
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile(re.escape(address) + "$"))
        if order is None:
            await expect(resource).to_have_attribute("aria-sort", "ascending")
        else:
            await expect(since).to_have_attribute("aria-sort", order)
            await expect(table.locator("[aria-sort]")).to_have_count(1)
        await expect(since.get_by_role("link")).to_be_focused()
    await page.go_back()
    await expect(since).to_have_attribute("aria-sort", "descending")


async def test_rows_are_grouped_by_pod_and_what_is_in_the_form_stays(
    visit: Visit, world: SimpleNamespace
) -> None:
    world.publish()
    page: Page = (await visit("/?sort=-numa")).page
    await page.get_by_label("Group by").select_option("pod")
    llama = page.get_by_role("rowgroup").filter(has=page.get_by_role("rowheader", name="ml/llama-0"))
    await expect(llama.get_by_role("row")).to_have_count(3)
    await expect(llama.get_by_role("rowheader").first).to_contain_text("2 devices of nvidia.com/gpu")
    await expect(page.locator(".devices tbody").last).to_contain_text("Held by no pod")
    assert page.url.endswith("/?group=pod&sort=-numa")
    await page.get_by_label("Search").fill("shared")
    await expect(page.locator(".summary")).to_contain_text("3 of 10 devices")
    assert "group=pod" in page.url
    assert "sort=-numa" in page.url
    await page.get_by_role("link", name="Clear").click()
    await expect(page.get_by_label("Search")).to_have_value("")
    await expect(page.get_by_label("Group by")).to_have_value("pod")
    await expect(page.get_by_label("Search")).to_be_focused()  # where it was has gone


async def test_the_way_back_shows_what_was_asked_there(visit: Visit, world: SimpleNamespace) -> None:
    world.publish()
    page: Page = (await visit()).page
    await page.get_by_role("link", name="nvidia.com/gpu.shared").click()
    await expect(page.get_by_label("Resource", exact=True)).to_have_value("nvidia.com/gpu.shared")
    await expect(page.locator(".summary")).to_have_text("2 of 10 devices")
    await page.go_back()
    await expect(page.locator(".summary")).to_have_text("10 devices")
    await expect(page.get_by_label("Resource", exact=True)).to_have_value("")


# --- ids, times, keys


@pytest.mark.parametrize("secure", [True, False])
async def test_an_id_is_copied_and_that_is_said(visit: Visit, world: SimpleNamespace, secure: bool) -> None:
    world.publish()
    page: Page = (await visit(permissions=["clipboard-read", "clipboard-write"])).page
    if not secure:  # as where it is not served over TLS
        await page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    row = page.locator(".devices tbody", has_text="vllm-0")
    await row.get_by_role("button", name="Copy GPU-7::0").click()
    await expect(page.locator("#said")).to_have_text("Copied GPU-7::0")
    await page.get_by_label("Search").focus()
    await page.keyboard.press("Control+V")
    await expect(page.get_by_label("Search")).to_have_value("GPU-7::0")
    await expect(page.locator(".summary")).to_have_text("1 of 10 devices")
    await row.get_by_role("button", name="Copy vllm-0").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#said")).to_have_text("Copied vllm-0")
    await expect(row.get_by_role("button", name="Copy vllm-0")).to_be_focused()


async def test_what_is_copied_is_what_the_row_shows_now(visit: Visit, world: SimpleNamespace) -> None:
    world.publish()
    page: Page = (await visit("/?q=GPU-5")).page
    buttons = page.locator(".devices .copy")
    await expect(buttons).to_have_count(1)
    for number in range(3):
        world.publish(with_holders(world.snapshot, "GPU-5", Holder("new", f"pod-{number}", "main")))
        await expect(page.get_by_role("button", name=f"Copy pod-{number}")).to_have_count(1)
        await expect(buttons).to_have_count(2)
    world.publish()
    await expect(buttons).to_have_count(1)


async def test_times_are_told_in_one_s_own_zone_when_wanted_and_it_is_remembered(
    visit: Visit, world: SimpleNamespace
) -> None:
    world.publish()
    visited = await visit(timezone_id="Asia/Kolkata", locale="en-GB")
    page: Page = visited.page
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
    assert await since.get_attribute("title") == "2026-10-28T22:31:03.250Z", "UTC is at hand"
    changed = with_holders(world.snapshot, "GPU-5", Holder("new", "arrival-0", "main"))
    world.publish(changed)
    await expect(page.locator(".devices", has_text="arrival-0")).to_have_count(1)
    assert {"22:31:03", "UTC"}.isdisjoint(
        await page.locator("main").locator("time, [data-zone]").all_inner_texts()
    )
    assert await page.context.cookies() == []
    await page.reload()
    await expect(since).to_have_text("04:01:03")
    await switch.click()
    await expect(since).to_have_text("22:31:03")


async def test_where_the_zone_is_utc_there_is_nothing_to_switch(visit: Visit, world: SimpleNamespace) -> None:
    world.publish()
    page: Page = (await visit(timezone_id="UTC")).page
    await expect(page.locator(".copy").first).to_be_attached()
    await expect(page.locator(".zone-switch")).to_have_count(0)


async def test_a_slash_goes_to_the_search_but_not_from_within_a_field(
    visit: Visit, world: SimpleNamespace
) -> None:
    world.publish()
    page: Page = (await visit()).page
    search = page.get_by_label("Search")
    await page.locator(".devices a.id").first.focus()
    await page.keyboard.press("/")
    await expect(search).to_be_focused()
    await page.keyboard.type("ml/llama")
    await expect(search).to_have_value("ml/llama")
    await expect(page.locator(".summary")).to_have_text("2 of 10 devices")


# --- news


async def test_what_became_wrong_is_said_once_and_the_row_is_marked(
    visit: Visit, world: SimpleNamespace
) -> None:
    world.publish()
    page: Page = (await visit()).page
    said = page.locator("#said")
    await expect(page.locator(".copy").first).to_be_attached()
    await expect(said).to_have_text("")  # what was wrong already is on the page
    await page.evaluate(
        """() => {
            window.said = [];
            const said = document.getElementById("said");
            new MutationObserver(() => said.textContent && window.said.push(said.textContent))
                .observe(said, { childList: true });
        }"""
    )
    devices = tuple(
        replace(d, allocatable=False) if d.key.device == "GPU-0" else d for d in world.snapshot.devices
    )
    ill = replace(world.snapshot, devices=devices)
    world.publish(ill)
    await expect(said).to_have_text(
        re.compile(r"Wrong now: ml/llama-0 \(trainer\) holds nvidia.com/gpu GPU-0")
    )
    marked = page.locator("tr[data-own-changed]")
    assert [text.split()[0] for text in await marked.all_inner_texts()] == ["GPU-0"]
    for number in range(2):  # other news do not say it again
        world.publish(
            replace(ill, devices=with_holders(ill, "GPU-5", Holder("new", f"p-{number}", "c")).devices)
        )
        await expect(page.locator(".devices", has_text=f"p-{number}")).to_have_count(1)
    assert len(await page.evaluate("window.said")) == 1
    healthy = replace(ill, devices=tuple(replace(d, allocatable=True) for d in ill.devices))
    world.publish(healthy)
    await expect(said).to_have_text("Nothing is wrong any longer.")


async def test_another_question_is_no_news(visit: Visit, world: SimpleNamespace) -> None:
    world.publish()
    page: Page = (await visit("/?q=GPU-3")).page
    await page.get_by_label("Search").fill("GPU")
    await expect(page.locator(".summary")).to_have_text("10 of 10 devices")
    assert await page.locator("tr[data-own-changed]").count() == 0


async def test_who_wants_no_motion_sees_none(visit: Visit, world: SimpleNamespace) -> None:
    world.publish()
    moving = "getComputedStyle(document.querySelector('.devices td')).transitionDuration"
    for wanted, duration in (("reduce", "0s"), ("no-preference", "0.6s")):
        page: Page = (await visit(reduced_motion=wanted)).page
        assert await page.evaluate(moving) == duration


async def test_a_page_that_is_looked_at_again_fetches_only_what_is_new(
    visit: Visit, world: SimpleNamespace
) -> None:
    world.publish()
    page: Page = (await visit()).page
    await expect(page.locator(".copy").first).to_be_attached()
    answers: list[int] = []
    page.on("response", lambda r: answers.append(r.status) if r.url.endswith("/") else None)
    seen = "document.dispatchEvent(new Event('visibilitychange'))"
    await page.evaluate(seen)

    async def answered() -> bool:
        return bool(answers)

    await until("the page asked", answered)
    assert answers == [304]
