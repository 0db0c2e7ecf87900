"""An exporter's application over states that the test publishes, and a browser."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient, TestServer
from jinja2 import Environment, FileSystemBytecodeCache
from msgspec.structs import replace
from playwright.async_api import Browser, ConsoleMessage, Error, Page

from exporter.history.record import HoldingFacts, HoldingKey
from exporter.mapping.holdings import HeldSince
from exporter.mapping.model import Snapshot
from exporter.mapping.state import State, StateStore
from exporter.web.app import build
from exporter.web.pages import handlers
from exporter.web.site import Site
from harness import scene
from harness.browser import chromium
from harness.lives import Life
from harness.page_reader import Client
from harness.past import Past
from harness.scene import START
from runtime.exposition import Format


@pytest.fixture(scope="session", autouse=True)
def compiled_templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiles each template of the pages once, for the applications of all tests."""
    kept = FileSystemBytecodeCache(str(tmp_path_factory.mktemp("templates")))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(handlers, "Environment", partial(Environment, bytecode_cache=kept))
        yield


class Exposition:
    """Stands in for the metrics."""

    async def document(self, form: Format, *, compress: bool) -> tuple[bytes, ...]:
        return (form.name.encode(), f" {'gzip' if compress else 'plain'}\n".encode())


@pytest.fixture
def world(snapshot: Snapshot) -> SimpleNamespace:
    """`states`, `now` and `triggers` to change; `publish` a snapshot (as taken now); the `site` over them.

    `snapshot` is published already, as generation 1.
    """
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
    publish()
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
def past(world: SimpleNamespace) -> Iterator[Past]:
    """A history that begins an hour before START, which the site queries."""
    found = Past(Life(None, wall=START - 3600.0).start())
    world.site = replace(world.site, history=found)
    yield found
    found.life.die()


@pytest.fixture
def story(world: SimpleNamespace, past: Past) -> Past:
    """GPU-0 held by llama-0, by another pod, and by llama-0 recreated; now is the time of the last poll."""

    def held(namespace: str, pod: str, uid: str) -> tuple[HoldingKey, HoldingFacts]:
        key = HoldingKey(scene.GPU, "GPU-0", namespace, pod, "trainer")
        return key, HoldingFacts(uid, "StatefulSet", "llama", node="worker-3")

    llama, again = held("ml", "llama-0", "uid-0"), held("ml", "llama-0", "uid-1")
    past.look()
    past.look(llama)
    past.look(llama, after=600)
    past.look(after=5)
    past.look(held("research", "evaluation-run-9", "uid-9"))
    past.silent(100)
    past.look(again, after=1)
    while past.life.wall < START - 15:
        past.look(again, after=15)
    world.now = past.life.wall
    world.publish()
    return past


Visit = Callable[..., Awaitable[Page]]


@pytest.fixture
async def client(world: SimpleNamespace, request: pytest.FixtureRequest) -> AsyncGenerator[Client]:
    """A client of the application, with a history where the test has a `past`."""
    if "past" in request.fixturenames:
        request.getfixturevalue("past")
    async with TestClient(TestServer(build(world.site)), auto_decompress=True) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser]:
    """One browser for a module's tests."""
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab(browser: Browser) -> Page:
    """The tab of a module's tests: a tab of its own costs each test seconds of processor time."""
    context = await browser.new_context(
        timezone_id="Asia/Kolkata",
        locale="en-GB",
        reduced_motion="reduce",
        permissions=["clipboard-read", "clipboard-write"],
    )
    found = await context.new_page()
    found.set_default_timeout(20_000)
    return found


@pytest_asyncio.fixture(loop_scope="module")
async def server(world: SimpleNamespace, request: pytest.FixtureRequest) -> AsyncGenerator[TestServer]:
    """The application for the browser, with a history where the test has a `past`."""
    if "past" in request.fixturenames:
        request.getfixturevalue("past")
    found = TestServer(build(world.site), shutdown_timeout=0.5)
    async with found:
        yield found


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """Errors, violated policies and failed requests in the browser; any that the test leaves fails it."""
    found: list[str] = []
    yield found
    assert found == []


@pytest_asyncio.fixture(loop_scope="module")
async def visit(tab: Page, server: TestServer, complaints: list[str]) -> AsyncGenerator[Visit]:
    """Opens a page in the tab, which is as new at the end: `visit(path)`."""

    async def open_page(path: str = "/") -> Page:
        await tab.goto(f"http://127.0.0.1:{server.port}{path}")
        return tab

    def noted(message: ConsoleMessage) -> None:
        if message.type != "log":
            complaints.append(f"{message.type}: {message.text}")

    def failed(error: Error) -> None:
        complaints.append(f"error: {error}")

    tab.on("console", noted)
    tab.on("pageerror", failed)
    yield open_page
    tab.remove_listener("console", noted)
    tab.remove_listener("pageerror", failed)
    await tab.evaluate("localStorage.clear(); sessionStorage.clear()")
    await tab.unroute_all()
    await tab.emulate_media(media="null", color_scheme="null", reduced_motion="reduce")
    await tab.set_viewport_size({"width": 1280, "height": 720})
    await tab.goto("about:blank")


@pytest_asyncio.fixture(loop_scope="module")
async def page(visit: Visit) -> Page:
    """The status page."""
    return await visit()
