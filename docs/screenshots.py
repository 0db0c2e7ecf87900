"""The pictures of the documentation, made anew: `python docs/screenshots.py [NAME …]`, or `make screenshots`.

Each is a page of a made-up node (tests/harness/showcase.py) in Chromium, the same each time; they go to
docs/images, and the first of them to docs/status-page.png, which README shows.
"""

# ruff: noqa: INP001 -- a script, run by its path

import asyncio
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

_ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from aiohttp import web  # noqa: E402 -- found only with the paths above
from playwright.async_api import Browser  # noqa: E402

from exporter.views.query import device_link, pod_link  # noqa: E402
from exporter.web.app import build  # noqa: E402
from harness.browser import chromium  # noqa: E402
from harness.showcase import FAILED, GPUS, NOW, SITES  # noqa: E402

_IMAGES: Final = _ROOT / "docs" / "images"
_README: Final = _ROOT / "docs" / "status-page.png"


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: its name, the page's address, light or dark, how wide the window is, how high the picture
    is (0: the whole page), and of which node it is.
    """

    name: str
    address: str
    scheme: Literal["light", "dark"] = "light"
    width: int = 1280
    height: int = 860
    node: str = "night"


SHOTS: Final = (
    Shot("status-light", "/?sort=state"),
    Shot("status-dark", "/?sort=state", "dark"),
    Shot("status-by-pod", "/?group=pod"),
    Shot("status-narrow", "/", width=360, height=1500),
    Shot("status-2000", "/?group=device&resource=nvidia.com%2Fgpu.shared", node="large"),
    Shot("device-light", device_link("nvidia.com/gpu", GPUS[1]), height=0),
    Shot("device-failed", device_link("nvidia.com/gpu", FAILED), "dark", height=0),
    Shot("device-narrow", device_link("nvidia.com/gpu", GPUS[1]), width=360, height=1500),
    Shot("pod-light", pod_link("training", "llama-ft-0"), height=0),
    Shot("pod-numa", pod_link("network", "upf-0"), "dark", height=0),
    Shot("history-light", "/history?from=-8h", height=1000),
    Shot("history-at", "/history?at=00:59", "dark", height=0),
)


@asynccontextmanager
async def served(node: str) -> AsyncGenerator[str]:
    """The address at which the made-up node is served."""
    runner = web.AppRunner(build(SITES[node]()), access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def take(browser: Browser, base: str, shot: Shot) -> None:
    """Take one picture."""
    context = await browser.new_context(
        color_scheme=shot.scheme,
        viewport={"width": shot.width, "height": shot.height or 800},
        device_scale_factor=2 if shot.width < 600 else 1.25,
        timezone_id="Europe/Berlin",
        locale="en-GB",
        reduced_motion="reduce",
    )
    page = await context.new_page()
    await page.clock.set_fixed_time(NOW)
    await page.goto(base + shot.address)
    await page.locator(".zone-switch").wait_for()  # the page's module has done its part
    path = _IMAGES / f"{shot.name}.png"
    await page.screenshot(path=path, full_page=not shot.height, animations="disabled")
    await context.close()
    print(path.relative_to(_ROOT))  # noqa: T201 -- what it is for


async def main(names: list[str]) -> None:
    """Take the pictures of these names, or all."""
    unknown = set(names) - {shot.name for shot in SHOTS}
    if unknown:
        sys.exit(
            f"no such picture: {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in SHOTS)}"
        )
    async with chromium() as browser:
        for node in SITES:
            wanted = [s for s in SHOTS if s.node == node and (not names or s.name in names)]
            if not wanted:
                continue
            async with served(node) as base:
                for shot in wanted:
                    await take(browser, base, shot)
    if not names or SHOTS[0].name in names:
        shutil.copyfile(_IMAGES / f"{SHOTS[0].name}.png", _README)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
