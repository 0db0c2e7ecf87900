"""A person before the pages: what she does with mouse, with keyboard, or without JavaScript.

Everything is found as she finds it, and as a screen reader tells it: by roles, names and labels.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Browser, Locator, Page, ViewportSize, expect

from harness.browser import load
from harness.waiting import LIMIT, until

TABS: Final = 250
"""Steps by Tab that anything may be away."""

_DEVICES: Final = "Devices, their state and who holds them since when"


class Means(StrEnum):
    """How a person acts."""

    MOUSE = "by mouse"
    KEYBOARD = "by keyboard"
    NO_SCRIPT = "without JavaScript"


class Person:
    """Somebody who looks at the pages below `url`."""

    def __init__(self, page: Page, url: str, means: Means) -> None:
        self.page = page
        self.means = means
        self._url = url

    async def visit(self, path: str) -> None:
        """Open an address as it was sent by a colleague."""
        await load(self.page, self._url + path)

    async def follow(self, control: Locator) -> None:
        """Follow a link, or press a button."""
        if self.means is Means.KEYBOARD:
            await self._reach(control)
            await self.page.keyboard.press("Enter")
        else:
            await control.click()

    async def write(self, field: Locator, text: str) -> None:
        """Write into a field."""
        if self.means is Means.KEYBOARD:
            await self._reach(field)
            await self.page.keyboard.type(text)
        else:
            await field.fill(text)

    async def search(self, text: str) -> None:
        """Look for devices; rows follow what is typed, and without JavaScript the form is sent."""
        field = self.page.get_by_role("searchbox", name="Search")
        if self.means is Means.NO_SCRIPT:

            async def sent() -> bool:
                await field.fill(text)
                await self.page.get_by_role("button", name="Filter").click()
                return text in parse_qs(urlsplit(self.page.url).query).get("q", ())

            # The page loads itself anew now and then, which may be between the two.
            await until("the search is sent", sent)
        elif self.means is Means.KEYBOARD:
            await expect(field).to_be_visible()
            await self.page.keyboard.press("/")
            await expect(field).to_be_focused()
            await self.page.keyboard.type(text)
        else:
            await field.fill(text)

    async def sees(self, what: Locator) -> None:
        """Wait until it is there: by itself, and without JavaScript when she looks again."""
        await self._looks(what, 1)

    async def sees_no_more(self, what: Locator) -> None:
        """Wait until it is gone, likewise."""
        await self._looks(what, 0)

    async def _looks(self, what: Locator, count: int) -> None:
        if self.means is Means.NO_SCRIPT:
            await self._loads(what, count)
        else:
            await expect(what).to_have_count(count, timeout=LIMIT * 1000)

    async def _loads(self, what: Locator, count: int) -> None:
        async def again() -> bool:
            await load(self.page)
            seen = await what.count()
            assert seen == count, f"expected {count}, saw {seen}"
            return True

        await until(f"{what} to be there {count} times", again)

    def devices(self) -> Locator:
        """The status page's devices, by the heads of their rows."""
        return self.page.get_by_role("table", name=_DEVICES).get_by_role("rowheader")

    def row(self, device: str) -> Locator:
        """A device's row, in whichever table there is one."""
        return self.page.get_by_role("row").filter(
            has=self.page.get_by_role("rowheader").get_by_role("link", name=device, exact=True)
        )

    def region(self, name: str) -> Locator:
        """A part of the page, by its heading."""
        return self.page.get_by_role("region", name=name, exact=True)

    async def _reach(self, control: Locator) -> None:
        """Press Tab until it has the focus, from wherever that is."""
        await expect(control).to_be_visible()
        for _ in range(TABS):
            if await control.evaluate("one => one === document.activeElement"):
                return
            await self.page.keyboard.press("Tab")
        raise AssertionError(f"{control} is not reached by {TABS} times Tab")


@asynccontextmanager
async def person(
    browser: Browser, url: str, means: Means = Means.MOUSE, *, viewport: ViewportSize | None = None
) -> AsyncGenerator[Person]:
    """Somebody with a fresh browser; what the browser complains of fails the test in the end."""
    complaints: list[str] = []
    context = await browser.new_context(
        java_script_enabled=means is not Means.NO_SCRIPT,
        viewport=viewport or {"width": 1280, "height": 800},
        timezone_id="UTC",
    )
    try:
        page = await context.new_page()
        page.set_default_timeout(LIMIT * 1000)
        page.on("console", lambda said: complaints.append(said.text) if said.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield Person(page, url, means)
    finally:
        await context.close()
    assert complaints == []
