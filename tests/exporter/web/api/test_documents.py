"""The documents of /api/v1 except history: what they say of the mapping, of plugins, and of one device."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from exporter.mapping.device_ids import BUILT_IN_RULES, IdReader, rule
from exporter.mapping.dra import ClaimName, PublishedDevice, PublishedName, SourceStatus, Taint
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    Anomaly,
    ClaimHolding,
    Doubt,
    Holder,
    PluginReport,
    PluginReports,
    merge_reports,
)
from exporter.mapping.state import Failure, State
from exporter.views import schema
from exporter.web.app import build
from harness import scene
from harness.page_reader import Client, read_json
from harness.scene import GPU, START

BEGAN = "2026-10-28T22:31:03.250Z"
LISTS = ("devices", "pods", "claims", "resources", "anomalies")
FAILURE = Failure("List", "UNAVAILABLE", "there is no socket", START + 5)


async def get(client: Client, name: str, status: int = 200, **query: str) -> Any:
    """The list of a document, or the whole document of another address."""
    document = await read_json(client, f"/api/v1/{name}", status, **query)
    return document[name] if name in LISTS and status == 200 else document


async def explain(client: Client, device: str, resource: str = "", status: int = 200) -> Any:
    return await get(client, "explain", status, device=device, resource=resource)


# --- pages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("filters", [{}, {"q": "gpu"}])
async def test_all_pages_of_a_list_joined_are_the_list(
    client: Client, name: str, large: bool, filters: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.web.api.LARGE_FROM", 0 if large else 10**6)
    whole = await read_json(client, f"/api/v1/{name}", 200, **filters)
    assert (whole["next"], list(whole)[-1]) == (None, name)
    pages = list[Any]()
    cursor: str | None = ""
    while cursor is not None:
        query = {"limit": "2", "cursor": cursor} | filters
        answer = await client.get(f"/api/v1/{name}", params=query)
        page = await answer.json()
        assert page["generation"] == whole["generation"]
        pages += page[name]
        cursor = page["next"]
        assert len(page[name]) == 2 or cursor is None
        current = await client.get(
            f"/api/v1/{name}", params=query, headers={"If-None-Match": answer.headers["ETag"]}
        )
        assert current.status == 304
    assert pages == whole[name]


async def test_a_page_goes_on_after_its_cursor_in_a_later_generation(
    client: Client, world: SimpleNamespace
) -> None:
    first = await read_json(client, "/api/v1/devices", limit="3")
    shown, last = world.states.state.snapshot, first["devices"][-1]["device"]
    kept = tuple(one for one in shown.devices if one.key.device != last)
    world.publish(snapshot=replace(shown, devices=kept))
    rest = await read_json(client, "/api/v1/devices", cursor=first["next"])
    assert rest["generation"] == first["generation"] + 1
    assert [one["device"] for one in rest["devices"]] == [one.key.device for one in kept[2:]]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        *(({"limit": found}, "limit") for found in ("0", "1001", "-1", "x", "1.0")),
        *(({"cursor": found}, "cursor") for found in ("x", "6", "6A", "61-", "61.6")),
        ({"cursor": "61" * 300}, "cursor"),
    ],
)
async def test_a_page_that_cannot_be_is_refused(
    client: Client, query: dict[str, str], parameter: str
) -> None:
    found = await read_json(client, "/api/v1/devices", 400, **query)
    assert (found["parameter"], found["found"][:8]) == (parameter, query[parameter][:8])


# --- before the first mapping, and after a failure ------------------------------------------------------


@pytest.mark.parametrize("name", [*LISTS, "explain"])
async def test_before_the_first_mapping_a_list_is_503_and_not_empty(
    client: Client, world: SimpleNamespace, name: str
) -> None:
    world.states.publish(State())
    query = {"device": "x"} if name == "explain" else {}
    problem = await get(client, name, 503, **query)
    assert (problem["status"], problem["freshness"]) == (503, "unknown")
    assert problem["detail"] == "no mapping yet; the kubelet has not answered"
    world.states.publish(State(failure=FAILURE))
    assert (await get(client, name, 503, **query))["detail"].endswith(": UNAVAILABLE: there is no socket")
    # No tag is current.
    answer = await client.get(f"/api/v1/{name}", params=query, headers={"If-None-Match": "*"})
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert "Devicelens-Taken-At" not in answer.headers
    status = await get(client, "status")
    assert (status["counts"], status["error"]["code"]) == (None, "UNAVAILABLE")


async def test_every_document_begins_with_the_envelope(client: Client, world: SimpleNamespace) -> None:
    world.now += 2.5
    for path in (*LISTS, "status", "explain?device=GPU-0"):
        document = await read_json(client, f"/api/v1/{path}")
        assert {name: document[name] for name in schema.Envelope.__struct_fields__} == {
            "node": "worker-3",
            "generation": 1,
            "taken_at": "2026-10-28T22:41:03.250Z",
            "age_seconds": 2.5,
            "freshness": "fresh",
            "error": None,
        }


async def test_the_last_good_mapping_has_its_age_the_error_and_an_anomaly_once_stale(
    client: Client, world: SimpleNamespace
) -> None:
    world.publish(failure=FAILURE, anomalies=())
    error = {"method": "List", "code": "UNAVAILABLE", "message": "there is no socket"}
    for passed, freshness in ((10.0, "ageing"), (70.0, "stale")):
        world.now = START + passed
        found = await read_json(client, "/api/v1/devices")
        assert (found["freshness"], found["age_seconds"], len(found["devices"])) == (freshness, passed, 10)
        assert found["error"] == {**error, "since": "2026-10-28T22:41:08.250Z"}
    assert await get(client, "anomalies", kind="stale") == [
        {
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
    ]


# --- the lists ------------------------------------------------------------------------------------------


async def test_devices(client: Client, world: SimpleNamespace) -> None:
    devices = await get(client, "devices")
    assert [(d["resource"], d["device"]) for d in devices] == [d.key for d in world.snapshot.devices]
    by_id = {d["device"]: d for d in devices}
    holder = {
        "namespace": "ml",
        "pod": "llama-0",
        "container": "trainer",
        "pod_uid": "uid-1",
        "since": BEGAN,
        "since_exact": True,
        "workload": None,
        "confirmed": True,
        "chosen": None,
        "provable": True,
        "requested_as": GPU,
    }
    assert by_id["GPU-0"] == {
        "resource": GPU,
        "device": "GPU-0",
        "parent": None,
        "numa_nodes": [0],
        "healthy": True,
        "holders": [holder],
        "plugin": None,
        "no_longer_offered_since": None,
        "identity": None,
        "claimed": None,
        "free": False,
    }
    assert [by_id[name]["free"] for name in ("GPU-3", "GPU-7::1", "pool-a/gpu-0")] == [True, True, None]
    (claimed,) = [d for d in devices if d["resource"] == "gpu.example.com"]
    assert claimed["identity"] == {"uuid": "", "pci_address": "", "model": "", "driver": "gpu.example.com"}
    assert by_id["GPU-2"]["healthy"] is False
    assert (by_id["GPU-7::1"]["holders"], by_id["GPU-7::0"]["parent"]) == ([], "GPU-7")
    (holder,) = by_id["GPU-7::0"]["holders"]
    assert (holder["pod_uid"], holder["since_exact"]) == (None, False)


async def test_a_claimed_device_has_what_its_slice_and_its_claims_say(
    client: Client, world: SimpleNamespace
) -> None:
    mine = ClaimHolding(Holder("ml", "train-0", "main", "u"), "ml", "mine", "s-1", "r", GPU, admin=False)
    admin = ClaimHolding(Holder("ops", "watcher", "main"), "ops", "watch", admin=True)
    published = PublishedDevice(
        PublishedName("gpu.example.com", "pool-a", "gpu-0"),
        capacity=(("memory", "80Gi"),),
        attributes=(("cores", "7"),),
        taints=(Taint("example.com/xid", "79", "NoExecute", START),),
        shareable=True,
    )
    reserved = [ClaimName("ml", "init-only")]
    held = scene.claimed("gpu-0", mine, admin, published=published, reserved=reserved, allocatable=False)
    spare = scene.claimed("half", published=published, alternative=True)
    world.publish(scene.snapshot(held, spare, published=["gpu.example.com"]))
    first, second = await get(client, "devices")
    (holder,) = first["holders"]
    assert (holder["pod"], holder["requested_as"]) == ("train-0", GPU)
    assert first["healthy"] is False
    now = "2026-10-28T22:41:03.250Z"
    no_share = {"share_id": None, "request": None, "requested_as": None, "admin": True}
    assert first["claimed"] == {
        "driver": "gpu.example.com",
        "pool": "pool-a",
        "device": "gpu-0",
        "cdi_devices": [],
        "capacity": {"memory": "80Gi"},
        "attributes": {"cores": "7"},
        "taints": [{"key": "example.com/xid", "value": "79", "effect": "NoExecute", "since": now}],
        "shareable": True,
        "alternative": False,
        "through": [
            {
                "namespace": "ml",
                "pod": "train-0",
                "container": "main",
                "claim_namespace": "ml",
                "claim": "mine",
                "share_id": "s-1",
                "request": "r",
                "requested_as": GPU,
                "admin": False,
            },
            {
                "namespace": "ops",
                "pod": "watcher",
                "container": "main",
                "claim_namespace": "ops",
                "claim": "watch",
                **no_share,
            },
        ],
        "reserved": [{"claim_namespace": "ml", "claim": "init-only"}],
    }
    assert (second["claimed"]["alternative"], second["holders"]) == (True, [])
    (claim,) = await get(client, "claims")
    assert (claim["share_id"], [h["pod"] for h in claim["holders"]]) == ("s-1", ["train-0"])
    (counts,) = await get(client, "resources")
    assert (counts["known"], counts["allocated"], counts["free"], counts["alternatives"]) == (1, 1, 0, 1)
    pods = {pod["name"]: pod["containers"][0] for pod in await get(client, "pods")}
    assert (pods["watcher"]["devices"], pods["watcher"]["claims"]) == ([], [])


async def test_pods(client: Client) -> None:
    pods = await get(client, "pods")
    assert [f"{p['namespace']}/{p['name']}" for p in pods] == [
        *("batch/render-1", "dra/shared-1", "dra/shared-2", "inference/vllm-0", "ml/llama-0"),
        "trading/engine-0",
    ]
    assert [p["uid"] for p in pods] == [None] * 4 + ["uid-1", None]
    since = {"since": BEGAN, "since_exact": True}
    assert pods[0]["containers"][0]["devices"] == [
        {
            "resource": GPU,
            "device": "GPU-2",
            "parent": None,
            "healthy": False,
            **since,
            "provable": True,
            "requested_as": GPU,
        }
    ]
    claim = {"claim_namespace": "dra", "claim": "shared", "share_id": None, **since}
    driver = {"driver": "gpu.example.com", "pool": "pool-a", "device": "gpu-0"}
    assert pods[1]["containers"][0]["claims"] == [{**claim, **driver}]
    (held,) = pods[1]["containers"][0]["devices"]
    assert (held["resource"], held["device"]) == ("gpu.example.com", "pool-a/gpu-0")
    assert (held["healthy"], held["requested_as"], held["since"]) == (None, None, BEGAN)
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
    split = Anomaly(
        *("numa_split", GPU, "", Holder("ml", "llama-0", "trainer"), "words"),
        since=START,
        devices=("GPU-0", "GPU-1"),
        pods=(("ml", "llama-0"),),
        numa_nodes=(1,),
    )
    world.publish(anomalies=(split,))
    (claim,) = await get(client, "claims")
    assert [(h["claim"], h["pod"], h["since"], h["since_exact"]) for h in claim["holders"]] == [
        ("shared", "shared-1", BEGAN, True),
        ("shared", "shared-2", BEGAN, False),
    ]
    assert claim["cdi_devices"] == ["example.com/gpu=claim-1"]
    counts = (
        "resource",
        "known",
        "allocated",
        "free",
        "unavailable",
        "unhealthy",
        "held_unhealthy",
        "allocatable",
    )
    assert [tuple(entry[name] for name in counts) for entry in await get(client, "resources")] == [
        ("gpu.example.com", 1, 1, None, None, None, None, None),
        (GPU, 7, 3, 4, 0, 1, 1, 6),
        (f"{GPU}.shared", 2, 1, 1, 0, 0, 0, 2),
    ]
    assert await get(client, "anomalies") == [
        {
            "kind": "numa_split",
            "resource": GPU,
            "device": None,
            "holder": {"namespace": "ml", "pod": "llama-0", "container": "trainer", "pod_uid": None},
            "evidence": "words",
            "since": "2026-10-28T22:41:03.250Z",
            "devices": ["GPU-0", "GPU-1"],
            "pods": [{"namespace": "ml", "pod": "llama-0"}],
            "numa_nodes": [1],
        }
    ]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("devices?namespace=ml", ["GPU-0", "GPU-1"]),
        ("devices?q=llama-BIG", ["GPU-0", "GPU-1"]),
        ("claims?device=GPU&driver=gpu.example.com", ["gpu-0"]),
        ("claims?claim=other", []),
        ("pods?resource=gpu.example.com", ["shared-1", "shared-2"]),
        ("pods?q=llama-big", ["llama-0"]),
        ("resources?q=GPU.SHARED", [f"{GPU}.shared"]),
        ("anomalies?kind=unhealthy_held&pod=render", ["GPU-2"]),
        ("anomalies?kind=plugin_gone", []),
    ],
)
async def test_each_list_is_filtered_by_its_query(
    client: Client, world: SimpleNamespace, path: str, found: list[str]
) -> None:
    """exporter.views.matching decides; tests/exporter/views/test_matching.py has its rules."""
    identity = PodIdentity("ml", "llama-0", "uid-1", "Running", workload=Workload("StatefulSet", "llama-big"))
    world.publish(pods={identity.key: identity})
    name = path.partition("?")[0]
    member = {"pods": "name", "resources": "resource"}.get(name, "device")
    document = await read_json(client, f"/api/v1/{path}")
    assert [entry[member] for entry in document[name]] == found


async def test_identities_of_pods(client: Client, world: SimpleNamespace) -> None:
    identity = PodIdentity(
        *("ml", "llama-0", "uid-1", "Running"),
        workload=Workload("StatefulSet", "llama"),
        priority_class="high",
        labels=(("team", "ml"),),
    )
    bare = PodIdentity("inference", "vllm-0", "uid-2", workload=Workload("Pod", "vllm-0"))
    world.publish(pods={identity.key: identity, bare.key: bare})
    owner = {"kind": "StatefulSet", "name": "llama"}
    devices = await get(client, "devices", namespace="ml")
    assert [d["holders"][0]["workload"] for d in devices] == [owner] * 2
    pods = {pod["name"]: pod for pod in await get(client, "pods")}
    names = ("uid", "workload", "phase", "priority_class", "labels")
    assert [pods["llama-0"][name] for name in names] == ["uid-1", owner, "Running", "high", {"team": "ml"}]
    assert [pods["render-1"][name] for name in names] == [None] * 5
    page = await (await client.get("/")).text()
    assert "StatefulSet llama" in page
    assert "Pod vllm-0" not in page, "a bare pod is its own workload"


async def test_status_has_the_exporter_and_its_counts(client: Client, world: SimpleNamespace) -> None:
    sources = (SourceStatus("slices", up=False, problem="no right"), SourceStatus("cdi", up=True))
    world.publish(notes=("no NUMA",), sources=sources)
    status = await get(client, "status")
    assert {key: status[key] for key in status if key not in schema.Envelope.__struct_fields__} == {
        "api_version": "v1",
        "notes": ["no NUMA"],
        "triggers": ["timer every 5s"],
        "poll_interval_seconds": 5.0,
        "stale_after_seconds": 60.0,
        "version": "1.2.3",
        "counts": {
            "resources": 3,
            "devices": 10,
            "held": 5,
            "free": 5,
            "unhealthy": 1,
            "unavailable": 0,
            "held_unhealthy": 1,
            "claimed_devices": 1,
            "containers": 6,
            "pods": 6,
            "anomalies": 1,
            "unconfirmed_pods": 0,
        },
        "plugins": [],
        "sources": [
            {"name": "slices", "up": False, "problem": "no right"},
            {"name": "cdi", "up": True, "problem": None},
        ],
    }


async def test_pod_that_is_not_listed_since_a_restart_is_not_confirmed(
    client: Client, world: SimpleNamespace
) -> None:
    doubt = Doubt("the kubelet may not list all pods yet", world.now, world.now + 10)
    missing = {("ml", "llama-0"), ("dra", "shared-1")}
    world.publish(replace(world.snapshot, unconfirmed=dict.fromkeys(missing, doubt)))
    devices = await get(client, "devices")
    assert {h["pod"] for d in devices for h in d["holders"] if not h["confirmed"]} == {"llama-0", "shared-1"}
    (entry,) = await get(client, "claims")
    assert [h["confirmed"] for h in entry["holders"]] == [False, True]
    pods = await get(client, "pods")
    assert {(p["namespace"], p["name"]) for p in pods if not p["confirmed"]} == missing
    assert (await get(client, "status"))["counts"]["unconfirmed_pods"] == len(missing)


async def test_an_incomplete_mapping_has_null_where_the_kubelet_does_not_report(
    client: Client, world: SimpleNamespace
) -> None:
    world.publish(replace(world.snapshot, complete=False))
    assert {d["healthy"] for d in await get(client, "devices")} == {None}
    for entry in await get(client, "resources"):
        assert (entry["allocatable"], entry["unhealthy"], entry["free"]) == (None, None, None)
    counts = (await get(client, "status"))["counts"]
    assert (counts["free"], counts["unhealthy"], counts["held"]) == (None, None, 5)


# --- plugins --------------------------------------------------------------------------------------------


def _advertised(problem: str = "") -> PluginReports:
    ill = AdvertisedDevice(
        *(False, "XID 79", START - 60, (1,)),
        attributes=(("model", "A100"), ("parent", "<b>")),
        last_allocated=START - 600,
    )
    devices = {"GPU-2": ill, "GPU-3": AdvertisedDevice(healthy=True)}
    resource = AdvertisedResource(registered=True, streams=1, devices=devices)
    first = PluginReport("unix:/p.sock", {GPU: resource}, START - 5, problem, START if problem else None)
    return merge_reports([first, PluginReport("http://n:1", problem="not polled yet")])


async def test_reports_of_plugins(client: Client, world: SimpleNamespace) -> None:
    world.publish(advertised=_advertised())
    by_id = {d["device"]: d["plugin"] for d in await get(client, "devices")}
    assert by_id["GPU-2"] == {
        "source": "unix:/p.sock",
        "answers": True,
        "health": "Unhealthy",
        "reason": "XID 79",
        "since": "2026-10-28T22:40:03.250Z",
        "attributes": {"model": "A100", "parent": "<b>"},
        "last_allocated": "2026-10-28T22:31:03.250Z",
    }
    assert [by_id["GPU-3"][name] for name in ("health", "reason", "since")] == ["Healthy", None, None]
    assert by_id["GPU-0"] is None
    first, second = (await get(client, "status"))["plugins"]
    assert first == {
        "source": "unix:/p.sock",
        "answers": True,
        "resources": [GPU],
        "told_at": "2026-10-28T22:40:58.250Z",
        "silent_since": None,
        "problem": None,
    }
    assert (second["answers"], second["resources"], second["told_at"]) == (False, [], None)
    assert second["problem"] == "not polled yet"
    world.publish(advertised=_advertised("connection refused"))
    (device,) = await get(client, "devices", device="GPU-2")
    assert (device["plugin"]["answers"], device["plugin"]["reason"]) == (False, "XID 79")
    silent = (await get(client, "status"))["plugins"][0]
    assert (silent["problem"], silent["silent_since"]) == ("connection refused", "2026-10-28T22:41:03.250Z")


# --- explain --------------------------------------------------------------------------------------------


async def test_explain_of_parents_claimed_unhealthy_and_free_devices(client: Client) -> None:
    parent = await explain(client, "GPU-7")
    assert (parent["subject"], parent["entry"], parent["resource"]) == ("parent", None, None)
    assert [part["device"] for part in parent["parts"]] == ["GPU-7::0", "GPU-7::1"]
    assert (parent["severity"], parent["health"]["health"]) == ("ok", "healthy")
    assert parent["sentences"][0] == "GPU-7: divided into 2 devices, 1 held."
    claimed = await explain(client, "gpu-0")
    assert (claimed["subject"], claimed["attributed"]) == ("device", True)
    assert (claimed["severity"], claimed["health"]["health"]) == ("unknown", "unknown")
    assert claimed["entry"]["claimed"]["cdi_devices"] == ["example.com/gpu=claim-1"]
    assert [claim["driver"] for claim in claimed["claims"]] == ["gpu.example.com"]
    ill = await explain(client, "GPU-2")
    assert [anomaly["kind"] for anomaly in ill["anomalies"]] == ["unhealthy_held"]
    assert (ill["severity"], ill["health"]["health"]) == ("critical", "unhealthy")
    assert ill["sentences"][0] == "GPU-2: unhealthy; held by 1 pod."
    free = await explain(client, "GPU-3")
    assert (free["attributed"], free["why_nobody"]) == (False, "free: no pod holds it")


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("", "device"),
        ("?device=", "device"),
        ("?device=GPU", "device"),
        ("?device=a&device=b", "device"),
        ("?id=a", "id"),
        ("?device=" + "x" * 513, "device"),
    ],
)
async def test_explain_refuses_a_wrong_query(client: Client, query: str, parameter: str) -> None:
    assert (await read_json(client, f"/api/v1/explain{query}", 400))["parameter"] == parameter


async def test_explain_uses_the_users_id_rules_and_the_schema_of_the_command(world: SimpleNamespace) -> None:
    mine = rule("mine", r"(?P<parent>GPU)-(?P<replica>\d)", resource=GPU)
    site = replace(world.site, reader=IdReader([mine, *BUILT_IN_RULES]))
    async with TestClient(TestServer(build(site))) as client:
        body = await (await client.get("/api/v1/explain?device=GPU-0")).read()
    found = msgspec.json.decode(body, type=schema.ExplainDocument)
    assert found.reading.rule == "mine"
    assert isinstance(found.entry, schema.DeviceEntry)
    assert msgspec.json.encode(found) == body
