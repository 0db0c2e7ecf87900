"""Chromium, as Debian has it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, Error, Page, async_playwright, expect

from harness.tools import required
from harness.waiting import LIMIT, until

_QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Runs as root, and asks nobody outside this machine for anything."""


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """A headless browser; where there is none the test is skipped, and under CI=true fails."""
    executable = required("chromium", "chromium")
    expect.set_options(timeout=LIMIT * 1000)  # else five seconds
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=_QUIET)
        try:
            yield browser
        finally:
            await browser.close()


async def load(page: Page, url: str | None = None) -> None:
    """Load `url`, or the same page again.

    Without JavaScript the pages load themselves again every 10 or 30 seconds. Chromium refuses or interrupts
    a navigation that meets such a refresh, so the navigation is tried again.
    """

    async def loaded() -> bool:
        try:
            await (page.reload() if url is None else page.goto(url))
        except Error as error:
            raise AssertionError(error.message) from error
        return True

    await until(f"{url or page.url} is loaded", loaded)
