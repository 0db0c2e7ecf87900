"""A resource that is stopped ends, at whatever moment, and whatever fails meanwhile."""

import asyncio
from contextlib import suppress

import pytest
from grpc.aio import _server as grpc_server

from harness.served import Node, configuration, static
from plugin.serving.endpoint import Endpoint

FIRST = configuration(static("a.b/one", "x"))
SECOND = configuration(static("a.b/two", "y"))


async def test_a_resource_stops_while_its_server_starts(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    started = asyncio.Event()
    open_it = Endpoint.open

    async def opening(endpoint: Endpoint) -> None:
        asyncio.get_running_loop().call_soon(started.set)
        await open_it(endpoint)

    monkeypatch.setattr(Endpoint, "open", opening)
    async with node.serve(FIRST) as served:
        for n in range(8):
            await asyncio.wait_for(started.wait(), 30)
            started.clear()
            served.apply(SECOND if n % 2 == 0 else FIRST)
        await node.allocatable("a.b/one")


async def test_an_end_that_fails_ends_all_the_same(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node.serve(FIRST, ready={"a.b/one": 1}) as served:
        close = Endpoint.close

        async def failing(endpoint: Endpoint) -> None:
            await close(endpoint)
            raise RuntimeError("cannot end")

        with monkeypatch.context() as patch:
            patch.setattr(Endpoint, "close", failing)
            served.apply(SECOND)
            await node.allocatable("a.b/two")
        assert [status.name for status in served.fleet.statuses()] == ["a.b/two"]
    assert not list((node.kubelet.root / "device-plugins").glob("devicelens*"))


async def test_a_resource_stops_while_it_renews_its_socket(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """grpc.aio ends a server by asyncio.wait_for, which on Python 3.11 loses a cancellation now and then."""
    stopping = asyncio.Event()
    stop_it = grpc_server.Server.stop

    async def losing(server: grpc_server.Server, grace: float | None) -> None:
        stopping.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.2)
        await stop_it(server, grace)

    async with node.serve(FIRST, ready={"a.b/one": 1}) as served:
        with monkeypatch.context() as patch:
            patch.setattr(grpc_server.Server, "stop", losing)
            (own,) = (node.kubelet.root / "device-plugins").glob("devicelens*.sock")
            own.unlink()
            await asyncio.wait_for(stopping.wait(), 30)
            served.apply(SECOND)
            await node.allocatable("a.b/two")
        assert [status.name for status in served.fleet.statuses()] == ["a.b/two"]
    assert not list((node.kubelet.root / "device-plugins").glob("devicelens*"))
