"""/api/v1/events: an event for each change."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from exporter.mapping.state import Failure
from exporter.web.events import Events
from harness.page_reader import Client
from harness.waiting import until

LIMIT = 20.0
"""Seconds for an event."""


async def event(stream: ClientResponse) -> dict[str, str]:
    """The next event's fields."""
    fields: dict[str, str] = {}
    async with asyncio.timeout(LIMIT):
        while True:
            line = (await stream.content.readline()).decode().rstrip("\r\n")
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
            elif fields:
                return fields


def named(fields: dict[str, str]) -> tuple[str, str]:
    return fields["event"], fields["data"]


async def test_the_current_generation_comes_at_once_and_each_change_after_it(
    client: Client, world: SimpleNamespace
) -> None:
    async with client.get("/api/v1/events") as stream:
        assert stream.content_type == "text/event-stream"
        first = await event(stream)
        assert named(first) == ("generation", "1")
        assert first["id"] == world.site.tag(world.site.moment())
        assert named(await event(stream)) == ("refreshed", "2026-10-28T22:41:03.250Z")
        state = world.publish()
        assert named(await event(stream)) == ("generation", "2")
        world.now += 5
        world.states.publish(replace(state, taken_at=world.now))
        assert named(await event(stream)) == ("refreshed", "2026-10-28T22:41:08.250Z")
        world.states.publish(replace(state, failure=Failure("List", "UNAVAILABLE", "gone", world.now)))
        failing = await event(stream)
        assert named(failing) == ("generation", "2")
        assert failing["id"] != first["id"]


async def test_a_burst_of_changes_is_few_events(client: Client, world: SimpleNamespace) -> None:
    async with client.get("/api/v1/events") as stream:
        await event(stream)
        await event(stream)
        for _ in range(50):
            world.publish()
            await asyncio.sleep(0)
        numbers = [(await event(stream))["data"]]
        while numbers[-1] != "51":
            numbers.append((await event(stream))["data"])
        assert len(numbers) <= 3


async def test_a_mapping_becomes_stale_without_a_refresh(client: Client, world: SimpleNamespace) -> None:
    world.now += world.site.stale_after - 0.01
    async with client.get("/api/v1/events") as stream:
        fresh = await event(stream)
        assert named(await event(stream))[0] == "refreshed"
        world.now += 1
        stale = await event(stream)
        assert (named(stale), stale["id"] != fresh["id"]) == (("generation", "1"), True)


@asynccontextmanager
async def served(site: Any, *middlewares: Any, **limits: float) -> AsyncGenerator[tuple[Client, Events]]:
    """A client of a server of the events alone."""
    events = Events(site, **limits)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] -- as given
    app = web.Application(middlewares=middlewares)
    app.add_routes([web.get("/", events.stream, allow_head=False)])
    app.on_shutdown.append(events.end)
    async with TestClient(TestServer(app, shutdown_timeout=30)) as client:
        yield client, events


@pytest.mark.parametrize("limit", ["limit", "per_address"])
async def test_streams_are_limited_and_one_that_ends_makes_room(world: SimpleNamespace, limit: str) -> None:
    async with served(world.site, **{limit: 2}, spacing=0.01) as (client, events):
        first, second = await client.get("/"), await client.get("/")
        refused = await client.get("/")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "30")
        assert "2 pages follow this exporter already" in (await refused.json(content_type=None))["detail"]
        first.close()

        async def one_left() -> bool:
            # A stream finds that its client disconnected when it sends the next event.
            world.publish()
            return events.open == 1

        await until("the closed stream ends", one_left)
        third = await client.get("/")
        assert third.status == 200
        second.close()
        third.close()


async def test_shutdown_ends_every_stream(world: SimpleNamespace) -> None:
    async with served(world.site) as (client, events):
        streams = [await client.get("/") for _ in range(3)]
        for stream in streams:
            await event(stream)
            await event(stream)
        await client.server.close()
        for stream in streams:
            assert await stream.content.read() == b""
        assert events.open == 0


async def test_a_defect_is_not_a_disconnected_client(world: SimpleNamespace) -> None:
    def broken() -> tuple[str, ...]:
        raise RuntimeError("a defect")

    errors: list[BaseException] = []

    @web.middleware
    async def note(request: web.Request, handler: object) -> web.StreamResponse:
        try:
            return await handler(request)  # type: ignore[operator, no-any-return] # pyright: ignore -- aiohttp's own
        except RuntimeError as error:
            errors.append(error)
            raise

    async with served(replace(world.site, triggers=broken), note) as (client, _):
        with pytest.raises(Exception):  # noqa: B017, PT011 -- however the connection ends
            async with client.get("/") as stream:
                await stream.content.readexactly(1)
    assert [str(error) for error in errors] == ["a defect"]
