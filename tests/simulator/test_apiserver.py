"""The simulated API server: lists, watches, and what goes wrong, as a client sees it."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest

from simulator import SimulatedKubelet
from simulator.apiserver import ApiFaults, ApiServer
from simulator.model import PodSpec

NODE = {"fieldSelector": "spec.nodeName=sim-node"}


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = f"{url}/api/v1/pods"

    async def listed(self, **query: str) -> tuple[int, Any]:
        async with self.session.get(self.url, params=NODE | query) as response:
            return response.status, await response.json(content_type=None)

    async def events(self, count: int, **query: str) -> list[Any]:
        found: list[Any] = []
        async with (
            asyncio.timeout(20),
            self.session.get(self.url, params=NODE | {"watch": "1"} | query) as response,
        ):
            while len(found) < count:
                found.append(json.loads(await response.content.readline()))
        return found


@pytest.fixture
async def api(kubelet: SimulatedKubelet) -> AsyncGenerator[ApiServer]:
    await kubelet.add_pod(PodSpec("one", labels={"app": "x"}))
    server = ApiServer(kubelet)
    async with server.serve():
        yield server


@pytest.fixture
async def client(api: ApiServer) -> AsyncGenerator[Client]:
    async with aiohttp.ClientSession() as session:
        yield Client(session, api.url)


async def test_a_list_is_followed_by_a_watch_from_where_it_was(
    kubelet: SimulatedKubelet, client: Client
) -> None:
    status, listed = await client.listed()
    assert status == 200
    (pod,) = listed["items"]
    assert (pod["metadata"]["name"], pod["metadata"]["labels"]) == ("one", {"app": "x"})
    assert (pod["status"]["phase"], pod["spec"]["nodeName"]) == ("Running", "sim-node")
    uid = await kubelet.add_pod(PodSpec("two"))
    await kubelet.delete_pod("default", "two")
    events = await client.events(6, resourceVersion=listed["metadata"]["resourceVersion"])
    assert [event["type"] for event in events] == ["ADDED", *["MODIFIED"] * 4, "DELETED"]
    assert {event["object"]["metadata"]["uid"] for event in events} == {uid}
    # Bound first; taken on by the kubelet later.
    assert ["startTime" in event["object"]["status"] for event in events[:2]] == [False, True]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))


async def test_lists_come_page_by_page_unless_they_come_from_the_cache(
    kubelet: SimulatedKubelet, client: Client
) -> None:
    for n in range(4):
        await kubelet.add_pod(PodSpec(f"p{n}"))
    _, first = await client.listed(limit="3")
    assert len(first["items"]) == 3
    _, second = await client.listed(limit="3", **{"continue": first["metadata"]["continue"]})
    assert len(second["items"]) == 2
    assert "continue" not in second["metadata"]
    _, cached = await client.listed(limit="3", resourceVersion="0")
    assert len(cached["items"]) == 5


async def test_what_was_compacted_has_expired(
    kubelet: SimulatedKubelet, api: ApiServer, client: Client
) -> None:
    _, listed = await client.listed()
    await kubelet.add_pod(PodSpec("two"))
    api.compact()
    status, answer = await client.listed(watch="1", resourceVersion=listed["metadata"]["resourceVersion"])
    assert (status, answer["reason"]) == (410, "Expired")
    status, _ = await client.listed()
    assert status == 200


async def test_it_refuses_as_it_is_told(api: ApiServer, client: Client) -> None:
    api.faults = ApiFaults(status=429, retry_after=3)
    async with client.session.get(client.url, params=NODE) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "3")
    api.faults = ApiFaults()
    async with client.session.get(client.url) as response:
        assert response.status == 403
    api.token = "secret"
    assert (await client.listed())[0] == 401
    assert json.loads(api.kubeconfig())["users"][0]["user"] == {"token": "secret"}
