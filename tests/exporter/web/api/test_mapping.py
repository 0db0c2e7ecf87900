"""/api/v1/…: what programs get."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import strategies as st

from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    Anomaly,
    Holder,
    PluginReport,
    PluginReports,
    merge_reports,
)
from exporter.mapping.state import Failure, State
from exporter.views import schema
from exporter.web.app import build

Client = TestClient[web.Request, web.Application]

START = 1_793_227_263.25
MAPPING = ("devices", "pods", "claims", "resources", "anomalies")
FAILURE = Failure("List", "UNAVAILABLE", "there is no socket", START + 5)


async def get(client: Client, path: str, status: int = 200) -> Any:
    answer = await client.get(path)
    assert answer.status == status, await answer.text()
    expected = "application/json" if status == 200 else "application/problem+json"
    assert answer.content_type == expected
    return await answer.json(content_type=None)


@pytest.mark.parametrize("name", MAPPING)
async def test_before_the_kubelet_has_answered_there_is_no_empty_list(client: Client, name: str) -> None:
    problem = await get(client, f"/api/v1/{name}", 503)
    assert problem["status"] == 503
    assert problem["detail"] == "no mapping yet; the kubelet has not answered"
    assert problem["freshness"] == "unknown"
    assert (await client.get(f"/api/v1/{name}")).headers["Retry-After"] == "5"


async def test_before_the_kubelet_has_answered_the_reason_is_told(
    client: Client, world: SimpleNamespace
) -> None:
    world.states.publish(State(failure=FAILURE))
    problem = await get(client, "/api/v1/devices", 503)
    assert problem["detail"].endswith(": UNAVAILABLE: there is no socket")
    status = await get(client, "/api/v1/status")
    assert status["counts"] is None
    assert status["error"]["code"] == "UNAVAILABLE"


async def test_every_answer_about_the_mapping_has_the_same_envelope(
    client: Client, world: SimpleNamespace
) -> None:
    world.publish()
    world.now += 2.5
    for name in (*MAPPING, "status"):
        document = await get(client, f"/api/v1/{name}")
        envelope = {key: document[key] for key in schema.Envelope.__struct_fields__}
        assert envelope == {
            "node": "worker-3",
            "generation": 1,
            "taken_at": "2026-10-28T22:41:03.250Z",
            "age_seconds": 2.5,
            "freshness": "fresh",
            "error": None,
        }


async def test_the_last_good_mapping_is_told_with_its_age_and_the_error(
    client: Client, world: SimpleNamespace
) -> None:
    state = world.publish()
    world.states.publish(replace(state, failure=FAILURE))
    world.now += 10
    ageing = await get(client, "/api/v1/devices")
    assert (ageing["freshness"], ageing["age_seconds"], len(ageing["devices"])) == ("ageing", 10.0, 9)
    assert ageing["error"] == {
        "method": "List",
        "code": "UNAVAILABLE",
        "message": "there is no socket",
        "since": "2026-10-28T22:41:08.250Z",
    }
    world.now += 60
    stale = await get(client, "/api/v1/devices")
    assert (stale["freshness"], len(stale["devices"])) == ("stale", 9)
    (anomaly,) = (a for a in (await get(client, "/api/v1/anomalies"))["anomalies"] if a["kind"] == "stale")
    assert anomaly == {
        "kind": "stale",
        "resource": None,
        "device": None,
        "holder": None,
        "evidence": "the mapping is 1 min old; more than 1 min is too old",
        "since": "2026-10-28T22:42:03.250Z",
        "devices": [],
        "pods": [],
        "numa_nodes": [],
    }


async def test_who_a_pod_is_is_told_where_it_is_known(client: Client, world: SimpleNamespace) -> None:
    identity = PodIdentity(
        *("ml", "llama-0", "uid-1", "Running"),
        workload=Workload("StatefulSet", "llama"),
        priority_class="high",
        labels=(("team", "ml"),),
    )
    bare = PodIdentity("inference", "vllm-0", "uid-2", workload=Workload("Pod", "vllm-0"))
    world.publish(pods={identity.key: identity, bare.key: bare})
    devices = (await (await client.get("/api/v1/devices?namespace=ml")).json())["devices"]
    assert [d["holders"][0]["workload"] for d in devices] == [{"kind": "StatefulSet", "name": "llama"}] * 2
    pods = {pod["name"]: pod for pod in (await (await client.get("/api/v1/pods")).json())["pods"]}
    known, unknown = pods["llama-0"], pods["render-1"]
    assert (known["phase"], known["priority_class"], known["labels"]) == ("Running", "high", {"team": "ml"})
    assert known["workload"] == {"kind": "StatefulSet", "name": "llama"}
    assert [unknown[name] for name in ("uid", "workload", "phase", "priority_class", "labels")] == [None] * 5
    page = await (await client.get("/")).text()
    # What a bare pod belongs to is the pod.
    assert "StatefulSet llama" in page
    assert "Pod vllm-0" not in page


async def test_devices(client: Client, world: SimpleNamespace) -> None:
    world.publish()
    devices = (await get(client, "/api/v1/devices"))["devices"]
    assert [(d["resource"], d["device"]) for d in devices] == [
        (d.key.resource, d.key.device) for d in world.snapshot.devices
    ]
    by_id = {d["device"]: d for d in devices}
    assert by_id["GPU-0"] == {
        "resource": "nvidia.com/gpu",
        "device": "GPU-0",
        "parent": None,
        "numa_nodes": [0],
        "healthy": True,
        "holders": [
            {
                "namespace": "ml",
                "pod": "llama-0",
                "container": "trainer",
                "pod_uid": "uid-1",
                "since": "2026-10-28T22:31:03.250Z",
                "since_exact": True,
                "workload": None,
            }
        ],
        "plugin": None,
    }
    assert by_id["GPU-2"]["healthy"] is False
    assert by_id["GPU-7::1"]["holders"] == []
    assert by_id["GPU-7::0"]["parent"] == "GPU-7"
    (holder,) = by_id["GPU-7::0"]["holders"]
    assert (holder["pod_uid"], holder["since_exact"]) == (None, False)


async def test_pods(client: Client, world: SimpleNamespace) -> None:
    world.publish()
    pods = (await get(client, "/api/v1/pods"))["pods"]
    assert [(p["namespace"], p["name"], p["uid"]) for p in pods] == [
        ("batch", "render-1", None),
        ("dra", "shared-1", None),
        ("dra", "shared-2", None),
        ("inference", "vllm-0", None),
        ("ml", "llama-0", "uid-1"),
        ("trading", "engine-0", None),
    ]
    assert pods[0]["containers"][0]["devices"] == [
        {
            "resource": "nvidia.com/gpu",
            "device": "GPU-2",
            "parent": None,
            "healthy": False,
            "since": "2026-10-28T22:31:03.250Z",
            "since_exact": True,
        }
    ]
    assert pods[1]["containers"][0]["claims"] == [
        {
            "claim_namespace": "dra",
            "claim": "shared",
            "driver": "gpu.example.com",
            "pool": "pool-a",
            "device": "gpu-0",
            "share_id": None,
            "since": "2026-10-28T22:31:03.250Z",
            "since_exact": True,
        }
    ]
    assert pods[5]["containers"] == [
        {
            "name": "main",
            "devices": [],
            "claims": [],
            "cpu_ids": [1, 2, 3, 8],
            "memory": [{"type": "memory", "numa_nodes": [0], "bytes": 209715200}],
            "numa_nodes": [0],
        }
    ]


async def test_claims_resources_and_anomalies(client: Client, world: SimpleNamespace) -> None:
    world.publish()
    (claim,) = (await get(client, "/api/v1/claims"))["claims"]
    began = "2026-10-28T22:31:03.250Z"
    assert [(h["claim"], h["pod"], h["since"], h["since_exact"]) for h in claim["holders"]] == [
        ("shared", "shared-1", began, True),
        ("shared", "shared-2", began, False),
    ]
    assert claim["cdi_devices"] == ["example.com/gpu=claim-1"]
    assert (await get(client, "/api/v1/resources"))["resources"] == [
        {
            "resource": "nvidia.com/gpu",
            "known": 7,
            "allocatable": 6,
            "allocated": 3,
            "unhealthy": 1,
            "free": 4,
        },
        {
            "resource": "nvidia.com/gpu.shared",
            "known": 2,
            "allocatable": 2,
            "allocated": 1,
            "unhealthy": 0,
            "free": 1,
        },
    ]
    (anomaly,) = (await get(client, "/api/v1/anomalies"))["anomalies"]
    assert (anomaly["kind"], anomaly["device"], anomaly["holder"]["pod"]) == (
        "unhealthy_held",
        "GPU-2",
        "render-1",
    )


async def test_status(client: Client, world: SimpleNamespace) -> None:
    world.publish(notes=("no NUMA",))
    status = await get(client, "/api/v1/status")
    assert {key: status[key] for key in status if key not in schema.Envelope.__struct_fields__} == {
        "api_version": "v1",
        "notes": ["no NUMA"],
        "triggers": ["timer every 5s"],
        "poll_interval_seconds": 5.0,
        "stale_after_seconds": 60.0,
        "version": "1.2.3",
        "counts": {
            "resources": 2,
            "devices": 9,
            "held": 4,
            "free": 5,
            "unhealthy": 1,
            "claimed_devices": 1,
            "containers": 6,
            "pods": 6,
            "anomalies": 1,
        },
        "plugins": [],
    }


def _advertised(problem: str = "") -> PluginReports:
    devices = {
        "GPU-2": AdvertisedDevice(
            *(False, "XID 79", START - 60, (1,)),
            attributes=(("model", "A100"), ("parent", "<b>")),
            last_allocated=START - 600,
        ),
        "GPU-3": AdvertisedDevice(healthy=True),
    }
    resource = AdvertisedResource(registered=True, streams=1, devices=devices)
    telling = PluginReport(
        "unix:/p.sock", {"nvidia.com/gpu": resource}, START - 5, problem, START if problem else None
    )
    return merge_reports([telling, PluginReport("http://n:1", problem="not polled yet")])


async def test_what_plugins_tell(client: Client, world: SimpleNamespace) -> None:
    world.publish(advertised=_advertised())
    by_id = {d["device"]: d for d in (await get(client, "/api/v1/devices"))["devices"]}
    assert by_id["GPU-2"]["plugin"] == {
        "source": "unix:/p.sock",
        "answers": True,
        "health": "Unhealthy",
        "reason": "XID 79",
        "since": "2026-10-28T22:40:03.250Z",
        "attributes": {"model": "A100", "parent": "<b>"},
        "last_allocated": "2026-10-28T22:31:03.250Z",
    }
    assert by_id["GPU-3"]["plugin"]["health"] == "Healthy"
    assert (by_id["GPU-3"]["plugin"]["reason"], by_id["GPU-3"]["plugin"]["since"]) == (None, None)
    assert by_id["GPU-0"]["plugin"] is None
    assert (await get(client, "/api/v1/status"))["plugins"] == [
        {
            "source": "unix:/p.sock",
            "answers": True,
            "resources": ["nvidia.com/gpu"],
            "told_at": "2026-10-28T22:40:58.250Z",
            "silent_since": None,
            "problem": None,
        },
        {
            "source": "http://n:1",
            "answers": False,
            "resources": [],
            "told_at": None,
            "silent_since": None,
            "problem": "not polled yet",
        },
    ]


async def test_a_plugin_that_is_silent_is_said_to_be(client: Client, world: SimpleNamespace) -> None:
    world.publish(advertised=_advertised("connection refused"))
    (device,) = (await get(client, "/api/v1/devices?device=GPU-2"))["devices"]
    assert (device["plugin"]["answers"], device["plugin"]["reason"]) == (False, "XID 79")
    (silent, _) = (await get(client, "/api/v1/status"))["plugins"]
    assert (silent["problem"], silent["silent_since"]) == ("connection refused", "2026-10-28T22:41:03.250Z")


async def test_anomalies_have_their_facts(client: Client, world: SimpleNamespace) -> None:
    split = Anomaly(
        *("numa_split", "nvidia.com/gpu", "", Holder("ml", "llama-0", "trainer"), "words"),
        since=START,
        devices=("GPU-0", "GPU-1"),
        pods=(("ml", "llama-0"),),
        numa_nodes=(1,),
    )
    world.publish(anomalies=(split,))
    (anomaly,) = (await get(client, "/api/v1/anomalies"))["anomalies"]
    assert anomaly == {
        "kind": "numa_split",
        "resource": "nvidia.com/gpu",
        "device": None,
        "holder": {"namespace": "ml", "pod": "llama-0", "container": "trainer", "pod_uid": None},
        "evidence": "words",
        "since": "2026-10-28T22:41:03.250Z",
        "devices": ["GPU-0", "GPU-1"],
        "pods": [{"namespace": "ml", "pod": "llama-0"}],
        "numa_nodes": [1],
    }


async def test_where_the_kubelet_cannot_tell_what_is_allocatable_neither_does_the_api(
    client: Client, world: SimpleNamespace
) -> None:
    world.publish(replace(world.snapshot, complete=False))
    devices = (await get(client, "/api/v1/devices"))["devices"]
    assert {d["healthy"] for d in devices} == {None}
    for entry in (await get(client, "/api/v1/resources"))["resources"]:
        assert (entry["allocatable"], entry["unhealthy"], entry["free"]) == (None, None, None)
    counts = (await get(client, "/api/v1/status"))["counts"]
    assert (counts["free"], counts["unhealthy"], counts["held"]) == (None, None, 4)


async def test_generations_of_two_runs_are_not_taken_for_each_other(world: SimpleNamespace) -> None:
    world.publish()
    other = replace(world.site, run="another")
    assert world.site.tag(world.site.moment()) != other.tag(other.moment())


async def test_large_answers_are_compressed_for_those_who_take_it(
    client: Client, world: SimpleNamespace
) -> None:
    world.publish()
    plain = await client.get("/api/v1/devices", headers={"Accept-Encoding": "identity"})
    squeezed = await client.get("/api/v1/devices", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in plain.headers
    assert squeezed.headers["Content-Encoding"] == "gzip"
    assert squeezed.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"
    assert await plain.json() == await squeezed.json()


async def test_nothing_changes_state_over_http(client: Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert (await client.request(method, "/api/v1/devices")).status == 405


@pytest.mark.parametrize(
    "target", [b"/api/v1/devices?q=%ff%fe", b"/api/v1/devices?q=\xff\xfe", b"/?q=%ed%a0%80", b"/?q=%00%0a"]
)
async def test_bytes_that_are_no_text_do_no_harm(world: SimpleNamespace, target: bytes) -> None:
    world.publish()
    async with TestServer(build(world.site)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        head = (await reader.read()).partition(b"\r\n")[0]
        writer.close()
        await writer.wait_closed()
    assert head.split()[1] in {b"200", b"400"}


HOSTILE = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("<>&\"'`/\\\0\x1b\x7f\x9b\u202e\u2028\ufeff"),
    ),
    max_size=40,
)
