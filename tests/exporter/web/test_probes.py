"""/-/healthy, /-/ready, /metrics, static files, and headers of every answer."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from exporter.mapping.model import Doubt
from exporter.mapping.state import Failure, State
from harness.page_reader import Client


async def ready(client: Client) -> tuple[int, str]:
    answer = await client.get("/-/ready")
    assert answer.content_type == "text/plain"
    return answer.status, await answer.text()


async def test_healthy_is_the_process_alone(client: Client) -> None:
    answer = await client.get("/-/healthy")
    assert (answer.status, await answer.text()) == (200, "healthy\n")


async def test_ready_has_the_freshness_in_words(client: Client, world: SimpleNamespace) -> None:
    world.states.publish(State())
    assert await ready(client) == (503, "not ready: no mapping yet; the kubelet has not answered\n")
    failure = Failure("List", "UNAVAILABLE", "no\nsocket \x1b[2J", world.now - 75)
    world.states.publish(State(failure=failure))
    assert await ready(client) == (
        503,
        (
            "not ready: no mapping yet; the kubelet has not answered; List has failed since "
            "2026-10-28T22:39:48.250Z (1 min): UNAVAILABLE: no\\nsocket \\x1b[2J\n"
        ),
    )
    state = world.publish()
    world.now += 3
    assert await ready(client) == (200, "ready: the mapping is fresh; the kubelet answered 3 s ago\n")
    world.states.publish(replace(state, failure=replace(failure, since=world.now)))
    status, text = await ready(client)
    assert status == 503
    assert text.startswith(
        "not ready: the kubelet does not answer as it should; this is the mapping of 22:41:03 UTC, 3 s"
    )
    doubt = Doubt("the kubelet may not list all pods yet", world.now, world.now + 10)
    unconfirmed = replace(state.snapshot, unconfirmed={("ml", "llama-0"): doubt})
    world.states.publish(replace(state, snapshot=unconfirmed))
    assert await ready(client) == (
        200,
        (
            "ready: the mapping is fresh; the kubelet answered 3 s ago; "
            "1 pod not confirmed since the kubelet restarted\n"
        ),
    )
    world.states.publish(state)
    world.now += 60
    status, text = await ready(client)
    assert status == 503
    assert text == (
        "not ready: the mapping is stale, do not trust it; "
        "it is of 22:41:03 UTC, 1 min old, and more than 1 min is too old\n"
    )


@pytest.mark.parametrize(
    ("accept", "body", "kind"),
    [
        ("*/*", "TEXT plain\n", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
            "OPENMETRICS plain\n",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
    ],
)
async def test_metrics_are_negotiated(client: Client, accept: str, body: str, kind: str) -> None:
    answer = await client.get("/metrics", headers={"Accept": accept, "Accept-Encoding": "identity"})
    assert await answer.text() == body
    assert answer.headers["Content-Type"] == kind
    assert answer.headers["Vary"] == "Accept, Accept-Encoding"


async def test_metrics_are_compressed_by_their_source(client: Client) -> None:
    answer = await client.head("/metrics", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert answer.headers["Content-Length"] == str(len("TEXT gzip\n"))


async def test_static_files_are_immutable_at_an_address_with_their_hash(client: Client) -> None:
    page = await (await client.get("/")).text()
    addresses = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page))
    assert {Path(address).suffix for address in addresses} == {".css", ".js", ".svg"}
    for address in addresses:
        answer = await client.get(address)
        assert answer.status == 200
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert (await client.get("/static/devicelens.js")).status == 404
    assert (await client.get("/static/..%2fapp.py")).status == 404
