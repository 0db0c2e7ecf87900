"""The simulated API server, as a client sees it. Its faults are in tests/exporter/pods/test_api_server.py."""

import asyncio
import json

import aiohttp

from simulator import SimulatedKubelet
from simulator.apiserver import ApiServer
from simulator.model import PodSpec

NODE = {"fieldSelector": "spec.nodeName=sim-node"}


async def test_a_list_is_followed_by_a_watch_from_where_it_was(kubelet: SimulatedKubelet) -> None:
    await kubelet.add_pod(PodSpec("one", labels={"app": "x"}))
    api = ApiServer(kubelet)
    async with api.serve(), aiohttp.ClientSession() as session, asyncio.timeout(60):
        url = f"{api.url}/api/v1/pods"
        async with session.get(url) as response:
            assert response.status == 403, "of other nodes it lists nothing"
        async with session.get(url, params=NODE) as response:
            listed = await response.json()
        (pod,) = listed["items"]
        assert (pod["metadata"]["name"], pod["metadata"]["labels"]) == ("one", {"app": "x"})
        assert (pod["status"]["phase"], pod["spec"]["nodeName"]) == ("Running", "sim-node")
        uid = await kubelet.add_pod(PodSpec("two"))
        await kubelet.delete_pod("default", "two")
        since = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
        async with session.get(url, params=NODE | since) as response:
            events = [json.loads(await response.content.readline()) for _ in range(6)]
    assert [event["type"] for event in events] == ["ADDED", *["MODIFIED"] * 4, "DELETED"]
    assert {event["object"]["metadata"]["uid"] for event in events} == {uid}
    # Bound first; taken on by the kubelet later.
    assert ["startTime" in event["object"]["status"] for event in events[:2]] == [False, True]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))
    api.token = "secret"
    assert json.loads(api.kubeconfig())["users"][0]["user"] == {"token": "secret"}
