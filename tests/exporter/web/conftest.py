"""An exporter's application over states that the test publishes, and a browser."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from playwright.async_api import Browser, BrowserContext

from exporter.mapping.holdings import HeldSince
from exporter.mapping.model import Snapshot
from exporter.mapping.state import State, StateStore
from exporter.web.app import build
from exporter.web.site import Site
from harness import scene
from harness.browser import chromium
from harness.lives import Life
from harness.past import Past
from runtime.exposition import Format

START = 1_793_227_263.25  # 2026-10-28T22:41:03.250Z


class Exposition:
    """Stands in for the metrics."""

    async def document(self, form: Format, *, compress: bool) -> bytes:
        return f"{form.name} {'gzip' if compress else 'plain'}\n".encode()


@pytest.fixture
def world(snapshot: Snapshot) -> SimpleNamespace:
    """`states`, `now` and `triggers` to change; `publish` a snapshot (as taken now); the `site` over them."""
    states = StateStore()
    found = SimpleNamespace(states=states, now=START, triggers=("timer every 5s",), snapshot=snapshot)

    def publish(snapshot: Snapshot = snapshot, **changes: Any) -> State:
        state = scene.state(
            snapshot,
            at=found.now,
            since=lambda h: HeldSince(START - 600, exact=h.holder.pod not in {"vllm-0", "shared-2"}),
            generation=states.state.generation + 1,
            **changes,
        )
        states.publish(state)
        return state

    found.publish = publish
    found.site = Site(
        states=states,
        node="worker-3",
        stale_after=60.0,
        poll_interval=5.0,
        clock=lambda: found.now,
        metrics=Exposition(),
        triggers=lambda: found.triggers,
        version="1.2.3",
    )
    return found


@pytest.fixture
def past(world: SimpleNamespace) -> Past:
    """A history that begins an hour before START, which the site queries."""
    found = Past(Life(None, wall=START - 3600.0).start())
    world.site = replace(world.site, history=found)
    return found


Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def client(world: SimpleNamespace, request: pytest.FixtureRequest) -> AsyncGenerator[Client]:
    """A client of the application, with a history where the test has a `past`. Nothing is published yet."""
    if "past" in request.fixturenames:
        request.getfixturevalue("past")
    async with TestClient(TestServer(build(world.site)), auto_decompress=True) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser]:
    """One browser for a module's tests."""
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def visit(
    browser: Browser, world: SimpleNamespace
) -> AsyncGenerator[Callable[..., Awaitable[SimpleNamespace]]]:
    """Opens a page: `visit(path, **context)` gives `page`, the server's `base` and its `runner`.

    Whatever the browser complains of (errors, violated policies, failed requests) fails the test at its
    end, except what the test removes from `complaints`.
    """
    opened: list[tuple[BrowserContext, web.AppRunner]] = []
    complaints: list[str] = []

    async def open_page(path: str = "/", **context: Any) -> SimpleNamespace:
        runner = web.AppRunner(build(world.site), access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        where = await browser.new_context(**context)
        opened.append((where, runner))
        page = await where.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda m: complaints.append(f"{m.type}: {m.text}") if m.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        await page.goto(base + path)
        return SimpleNamespace(page=page, base=base, runner=runner, complaints=complaints)

    yield open_page
    for where, runner in opened:
        await where.close()
        await runner.cleanup()
    assert complaints == []
