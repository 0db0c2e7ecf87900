"""/api/v1/history: holdings with their bounds, certainty, and gaps in observation."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.history.record import HoldingFacts
from exporter.mapping.state import State
from exporter.views.query import QueryError, parse_history
from exporter.views.schema import HistoryDocument
from exporter.views.wording import rfc3339
from exporter.web.app import build
from harness.lives import key
from harness.page_reader import Client, read_json
from harness.past import Past
from harness.scene import START

FIRST = START - 3600.0 + 5.0
"""The first poll; further polls are 5 s apart."""
A, B = ((key(device, "train-0"), HoldingFacts("uid-1")) for device in ("gpu-0", "gpu-1"))


@pytest.fixture(autouse=True)
def polled(past: Past, world: SimpleNamespace) -> Past:
    """Five polls: no holding, A, A and B, B, no holding."""
    for held in ((), (A,), (A, B), (B,), ()):
        past.look(*held)
    world.now = past.life.wall
    world.publish()
    return past


async def get(client: Client, status: int = 200, **query: str) -> Any:
    return await read_json(client, "/api/v1/history", status, **query)


async def test_a_holding_has_its_bounds(client: Client) -> None:
    document = await get(client, device="gpu-0")
    (entry,) = document["holdings"]
    empty = ("parent", "driver", "pool", "share_id", "claim_namespace", "claim", "workload_kind", "workload")
    assert entry == dict.fromkeys(empty) | {
        "id": 1,
        "node": "",
        "requested_as": "example.com/gpu",
        "resource": "example.com/gpu",
        "device": "gpu-0",
        "namespace": "ns",
        "pod": "train-0",
        "pod_uid": "uid-1",
        "container": "main",
        "start": {
            "not_before": rfc3339(FIRST),
            "not_after": rfc3339(FIRST + 5),
            "certainty": "between_polls",
        },
        "end": {
            "not_before": rfc3339(FIRST + 10),
            "not_after": rfc3339(FIRST + 15),
            "certainty": "between_polls",
        },
        "assumed": False,
        "certain": None,
    }
    assert (document["complete"], document["unseen"], document["resources"]) == (
        True,
        [],
        ["example.com/gpu"],
    )
    assert (document["earliest"], document["latest"]) == (rfc3339(FIRST), rfc3339(FIRST + 20))
    assert (document["kept_in"], document["trouble"], document["next"]) == ("memory", None, None)
    assert msgspec.json.decode(msgspec.json.encode(document), type=HistoryDocument).node == "worker-3"


@pytest.mark.parametrize(
    ("seconds", "held"),
    [
        (0.0, {}),
        (2.0, {"gpu-0": False}),
        (7.0, {"gpu-0": True, "gpu-1": False}),
        (10.0, {"gpu-0": True, "gpu-1": True}),
        (13.0, {"gpu-0": False, "gpu-1": True}),
        (20.0, {}),
    ],
)
async def test_a_moment_has_certain_and_possible_holdings(
    client: Client, seconds: float, held: dict[str, bool]
) -> None:
    at = FIRST + seconds
    for text in (str(at), rfc3339(at), f"{seconds - 20:g}s" if seconds < 20 else "now"):
        document = await get(client, at=text)
        assert {entry["device"]: entry["certain"] for entry in document["holdings"]} == held
        assert (document["at"], document["complete"]) == (rfc3339(at), True)


@pytest.mark.parametrize(
    ("query", "devices", "matched"),
    [
        ({"device": "GPU-1"}, ["gpu-1"], ("device", False, 1, ["gpu-1"])),
        ({"device": "gpu-1"}, ["gpu-1"], ("device", True, 1, [])),
        ({"pod": "TRAIN"}, ["gpu-1", "gpu-0"], ("pod", False, 1, ["train-0"])),
        ({"resource": "gpu"}, ["gpu-1", "gpu-0"], ("resource", False, 1, ["example.com/gpu"])),
        ({"device": "gpu-9"}, [], ("device", False, 0, [])),
        ({"device": "%"}, [], ("device", False, 0, [])),
    ],
)
async def test_a_part_of_a_name_finds_its_holdings_as_in_the_mapping(
    client: Client, query: dict[str, Any], devices: list[str], matched: tuple[str, bool, int, list[str]]
) -> None:
    document = await get(client, **query)
    assert [entry["device"] for entry in document["holdings"]] == devices
    (found,) = document["matched"]
    assert (found["parameter"], found["whole"], found["count"], found["names"]) == matched
    assert found["given"] == next(iter(query.values()))
    assert found["near"] == (["gpu-0", "gpu-1"] if query == {"device": "gpu-9"} else [])


async def test_a_gap_in_observation_is_named(client: Client, past: Past, world: SimpleNamespace) -> None:
    before = await get(client, at=str(START - 7200))
    assert (before["holdings"], before["complete"]) == ([], False)
    assert before["unseen"] == [{"since": None, "until": before["earliest"], "why": "before_history"}]
    later = await get(client, at=str(past.life.wall + 1))
    assert (later["complete"], later["unseen"][0]["why"]) == (False, "not_yet")
    past.silent(300.0)
    world.now = past.life.wall
    silent = await read_json(client, "/api/v1/history?from=-1m")
    assert ([gap["why"] for gap in silent["unseen"]], silent["complete"]) == (["kubelet_silent"], False)


async def test_a_present_holding_is_certain_up_to_the_last_poll(client: Client, past: Past) -> None:
    past.look(A)
    past.look(A)
    last = past.life.wall

    async def certain(at: float) -> bool:
        (entry,) = (await get(client, at=str(at)))["holdings"]
        assert entry["end"] is None
        return bool(entry["certain"])

    assert await certain(last - 1)
    past.life.pass_time(4.0)
    assert await certain(last + 4)
    past.silent(100.0)
    assert await certain(last)
    assert not await certain(last + 60)


async def test_history_is_paged(client: Client) -> None:
    first = await get(client, limit="1")
    second = await get(client, limit="1", cursor=first["next"])
    assert [entry["device"] for page in (first, second) for entry in page["holdings"]] == ["gpu-1", "gpu-0"]
    assert second["next"] is None


@pytest.mark.parametrize(
    ("query", "found", "expected"),
    [
        ({"at": "yesterday"}, "yesterday", "a time with its zone"),
        ({"at": "2026-11-20T03:12:00"}, "2026-11-20T03:12:00", "a time with its zone"),
        ({"from": "-5"}, "-5", "a time with its zone"),
        ({"at": "-1h", "to": "now"}, "-1h", "either at, or from and to"),
        ({"from": "now", "to": "-1h"}, "now", "a time before that of to"),
        ({"limit": "0"}, "0", "a number from 1 to 1000"),
        ({"cursor": "x"}, "x", "the next of an earlier answer"),
        ({"container": "main"}, "main", "pod, uid or device beside it"),
        ({"q": "gpu"}, "gpu", "one of resource, driver, device"),
        ({"device": "x" * 513}, "x", "at most 512 characters"),
    ],
)
async def test_a_wrong_query_is_refused(
    client: Client, query: dict[str, str], found: str, expected: str
) -> None:
    problem = await get(client, 400, **query)
    assert problem["found"].startswith(found)
    assert problem["expected"].startswith(expected)
    assert problem["parameter"] in query


async def test_a_history_that_does_not_answer_is_503(
    client: Client, past: Past, world: SimpleNamespace
) -> None:
    past.error = "no answer within 5 s: is the disk slow?"
    problem = await get(client, 503)
    assert problem["detail"] == "history cannot be asked: no answer within 5 s: is the disk slow?"
    assert (await client.get("/api/v1/history")).headers["Retry-After"] == "1"
    async with TestClient(TestServer(build(replace(world.site, history=None)))) as without:
        assert (await without.get("/api/v1/history")).status == 503


async def test_history_needs_no_mapping(client: Client, world: SimpleNamespace) -> None:
    world.states.publish(State())
    document = await get(client)
    assert (document["freshness"], len(document["holdings"])) == ("unknown", 2)


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from(["at", "from", "to", "cursor", "limit", "device", "pod"]), st.text(max_size=40)
    )
)
def test_any_query_is_read_or_refused(query: dict[str, str]) -> None:
    with suppress(QueryError):
        assert parse_history(query.items(), START).question.limit >= 1


async def test_a_moment_has_the_devices_that_nobody_held(
    client: Client, past: Past, world: SimpleNamespace
) -> None:
    past.life.known = {"gpu-0": True, "gpu-1": True, "gpu-2": False, "gpu-3": None}
    past.look(A)
    at = world.now = past.life.wall
    world.publish()
    document = await get(client, at=str(at))
    assert [entry["device"] for entry in document["holdings"]] == ["gpu-0"]
    assert document["devices_recorded"] is True
    assert document["devices"] == [
        {"resource": "example.com/gpu", "device": device, "parent": None, "state": state, "healthy": healthy}
        for device, state, healthy in (
            ("gpu-1", "free", True),
            ("gpu-2", "unhealthy", False),
            ("gpu-3", "free", None),
        )
    ]
    assert [one["device"] for one in (await get(client, at=str(at), device="gpu-2"))["devices"]] == ["gpu-2"]
    assert (await get(client))["devices_recorded"] is None
    by_pod = await get(client, at=str(at), pod="train-0")
    assert (by_pod["devices"], by_pod["devices_recorded"]) == ([], None)
    past.look(A, B)
    world.now = at = past.life.wall
    world.publish()
    first = await get(client, at=str(at), limit="1")
    assert (len(first["holdings"]), first["devices"], first["devices_recorded"]) == (1, [], None)
    shown, page = list[str](), await get(client, at=str(at), limit="2")
    while True:
        shown += [entry["device"] for entry in (*page["holdings"], *page["devices"])]
        if page["next"] is None:
            break
        page = await get(client, at=str(at), limit="2", cursor=page["next"])
    assert shown == ["gpu-1", "gpu-0", "gpu-2", "gpu-3"]


async def test_a_claimed_device_is_found_by_what_the_container_asked_by_and_by_its_claim(
    client: Client, past: Past, world: SimpleNamespace
) -> None:
    claimed = key("pool-a/gpu-0", "train-1", "gpu.example.com")
    facts = HoldingFacts(claim_namespace="ns", claim="mine", share_id="s", requested_as="nvidia.com/gpu")
    past.look((claimed, facts), A)
    world.now = past.life.wall
    world.publish()
    for name, value in (
        ("resource", "nvidia.com/gpu"),
        ("resource", "gpu.example.com"),
        ("driver", "gpu.example.com"),
        ("claim", "mine"),
    ):
        (entry,) = (await get(client, 200, **{name: value}))["holdings"]
        assert (entry["resource"], entry["device"]) == ("gpu.example.com", "pool-a/gpu-0")
        assert (entry["requested_as"], entry["claim_namespace"], entry["claim"]) == (
            "nvidia.com/gpu",
            "ns",
            "mine",
        )
        assert (entry["share_id"], entry["driver"], entry["pool"]) == ("s", None, None)
    assert "nvidia.com/gpu" in (await get(client))["resources"]
    past.look((claimed, facts._replace(claim="other", requested_as="")))
    (entry,) = (await get(client, claim="other"))["holdings"]
    assert entry["requested_as"] is None


async def test_in_a_gap_devices_are_unknown(client: Client, past: Past, world: SimpleNamespace) -> None:
    past.life.known = {"gpu-0": True}
    past.look()
    past.silent(100.0)
    past.look()
    world.now = past.life.wall
    world.publish()
    document = await get(client, at=str(past.life.wall - 50))
    assert document["complete"] is False
    assert [entry["state"] for entry in document["devices"]] == ["unknown"]
