"""The simulated API server, as a client sees it. Its faults are in tests/exporter/pods/test_api_server.py."""

import asyncio
import json

import aiohttp

from simulator import SimulatedKubelet
from simulator.apiserver import ApiFaults, ApiServer
from simulator.dra_objects import CLAIMS, SLICES, claim, device, request, resource_slice
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


SLICES_URL = "/apis/resource.k8s.io/v1/resourceslices"


async def test_slices_are_listed_watched_and_written_by_their_selectors(kubelet: SimulatedKubelet) -> None:
    ours, others = (
        resource_slice("a.example", "sim-node", [device("g0")]),
        resource_slice("b.example", "n2", []),
    )
    kubelet.objects.create(SLICES, ours)
    kubelet.objects.create(SLICES, others)
    api = ApiServer(kubelet)
    async with api.serve(), aiohttp.ClientSession(api.url) as session, asyncio.timeout(60):
        async with session.get(SLICES_URL, params=NODE) as response:
            listed = await response.json()
        (found,) = listed["items"]
        assert (listed["kind"], found["spec"]) == ("ResourceSliceList", ours["spec"])
        found["spec"]["pool"]["generation"] = 2
        address = f"{SLICES_URL}/{found['metadata']['name']}"
        async with session.put(address, json=found) as response:
            updated = await response.json()
        async with session.put(address, json=found) as response:
            assert response.status == 409, "of an older resourceVersion"
        async with session.post(SLICES_URL, json=resource_slice("c.example", "sim-node", [])) as response:
            assert response.status == 201
        async with session.delete(address) as response:
            assert response.status == 200
        since = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
        selector = {"fieldSelector": "spec.nodeName=sim-node,spec.driver=a.example"}
        async with session.get(SLICES_URL, params=selector | since) as response:
            events = [json.loads(await response.content.readline()) for _ in range(2)]
        assert [event["type"] for event in events] == ["MODIFIED", "DELETED"]
        assert events[0]["object"] == updated
        async with session.get(address) as response:
            assert response.status == 404
        api.compact()
        async with session.get(SLICES_URL, params=NODE | since) as response:
            assert response.status == 410


async def test_claims_are_read_by_name_and_rights_are_of_one_resource(kubelet: SimulatedKubelet) -> None:
    made = kubelet.objects.create(CLAIMS, claim("c", request("r", "gpu"), namespace="ns"))
    api = ApiServer(kubelet)
    api.faults = ApiFaults(forbidden=frozenset({SLICES}))
    async with api.serve(), aiohttp.ClientSession(api.url) as session, asyncio.timeout(60):
        claims = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
        async with session.get(f"{claims.format('ns')}/c") as response:
            assert await response.json() == made
        async with session.get(claims.format("other")) as response:
            assert (await response.json())["items"] == []
        async with session.get(SLICES_URL) as response:
            assert response.status == 403
        api.faults = ApiFaults(status=500, resources=frozenset({CLAIMS}))
        async with session.get(f"{claims.format('ns')}/c") as response:
            assert response.status == 500
        async with session.get(SLICES_URL) as response:
            assert response.status == 200
        async with session.get("/api/v1/nodes/sim-node") as response:
            assert (await response.json())["metadata"]["uid"] == kubelet.node_uid
    assert api.calls["resourceclaims.get"] == 2
    assert api.calls["resourceslices.list"] == 2
