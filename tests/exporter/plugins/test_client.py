"""exporter.plugins.client: fetching a report, and checking its document."""

import gzip
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.model import AdvertisedDevice
from exporter.plugins.client import DocumentError, PluginClient, PluginError, parse
from harness.commands import serving as served
from harness.raw_server import raw_server
from plugin.config.plan import Sharing
from plugin.devices.device import Device
from plugin.devices.inventory import Inventory, ObservedDevice
from plugin.serving.status import ResourceCounters, ResourceStatus
from plugin.serving.web import document
from runtime.clock import Instant
from runtime.flags import parse_address

DOCUMENT = b'{"version":1,"resources":[{"name":"r","registered":true,"streams":1,"devices":[{"id":"d"}]}]}'
OTHER = DOCUMENT.replace(b'"d"', b'"e2"')

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def serving(handler: Handler) -> AbstractAsyncContextManager[str]:
    """A server that answers at the document's path; its address."""
    app = web.Application()
    app.router.add_get("/api/v1/devices", handler)
    return served(app)


def client(url: str, **limits: float) -> PluginClient:
    return PluginClient(
        parse_address(url), within=limits.get("within", 30.0), limit=int(limits.get("limit", 4096))
    )


def answering(body: bytes, **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, headers=headers)

    return answer


async def problem(asked: PluginClient, known: bytes = b"") -> str:
    with pytest.raises(PluginError) as caught:
        await asked.fetch(known)
    return str(caught.value)


@pytest.mark.parametrize("tagged", [True, False])
async def test_known_document_is_returned_once(*, tagged: bool) -> None:
    body = DOCUMENT
    tags: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        tags.append(request.headers.get("If-None-Match"))
        tag = f'"{len(body)}"'
        if tags[-1] == tag:
            return web.Response(status=304)
        return web.Response(body=body, headers={"ETag": tag} if tagged else {})

    async with serving(answer) as url:
        asked = client(url)
        found = await asked.fetch()
        assert found is not None
        assert list(found.resources["r"].devices) == ["d"]
        assert await asked.fetch(found.digest) is None
        # Without the document, the poller needs it whole.
        assert await asked.fetch() is not None
        tag = f'"{len(DOCUMENT)}"' if tagged else None
        assert tags == [None, tag, None]
        # An invalid document is not remembered by its tag.
        body = b"nonsense"
        for _ in range(2):
            assert "expected the devices of a devicelens plugin" in await problem(asked, found.digest)
        body = OTHER
        other = await asked.fetch(found.digest)
        assert other is not None
        assert list(other.resources["r"].devices) == ["e2"]


async def test_unix_socket_is_opened_anew_for_each_fetch(root: Path) -> None:
    asked = client(f"unix:{root}/p.sock")
    assert await problem(asked) == "there is no such socket"
    for body in (DOCUMENT, OTHER):
        app = web.Application()
        app.router.add_get("/api/v1/devices", answering(body))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.UnixSite(runner, root / "p.sock").start()
        assert await asked.fetch() is not None
        await runner.cleanup()
        (root / "p.sock").unlink(missing_ok=True)
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(root / "p.sock"))
    left.close()
    assert await problem(asked) == "connection refused: nothing listens there"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "its answer is invalid: it closed the connection"),
        (b"SSH-2.0-x\r\n\r\n", "its answer is invalid: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "its answer is invalid: "),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "/api/v1/devices: expected the devices of a devicelens"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "/api/v1/devices: 404 Not Found"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "/api/v1/devices: 302 Found"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 5000, "/api/v1/devices: found more than "),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b" " * 5000,
            "/api/v1/devices: found more than ",
        ),
    ],
)
async def test_other_answers_are_reported(answer: bytes, message: str) -> None:
    async with raw_server(answer) as url:
        assert (await problem(client(url, limit=4096))).startswith(message)
    assert await problem(client(url)) == "connection refused: nothing listens there"


@pytest.mark.parametrize(("answer", "drip"), [(b"", 0.0), (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 1000, 0.01)])
async def test_slow_plugin_times_out(answer: bytes, drip: float) -> None:
    async with raw_server(answer, close=False, drip=drip) as url:
        assert await problem(client(url, within=0.2)) == "no answer within 0.2 s"


async def test_compressed_document_is_not_decompressed() -> None:
    body = gzip.compress(b" " * 1_000_000)
    async with serving(answering(body, **{"Content-Encoding": "gzip"})) as url:
        assert "expected the devices of a devicelens plugin" in await problem(client(url))


def _parsed(**device: Any) -> AdvertisedDevice:
    text = {"version": 1, "resources": [{"name": "r", "devices": [{"id": "d", **device}]}]}
    return parse(json.dumps(text).encode())["r"].devices["d"]


def test_document_of_the_plugin_is_read() -> None:
    """The two processes never import each other: this is where their two ends meet."""
    inventory = Inventory(Sharing(2))
    well = Device("gpu0", "gpu0", "/dev/gpu0", {"model": "A100"}, (0, 1))
    ill = Device("gpu1", "gpu1")
    inventory.survey([ObservedDevice(well), ObservedDevice(ill, "its node is gone")], Instant(1000.25, 1.0))
    inventory.name(["gpu0::1", "gpu1::1"], Instant(1010.5, 11.0))
    inventory.give(["gpu0::1"], Instant(1010.5, 11.0))
    status = ResourceStatus(
        name="example.com/gpu",
        registered=True,
        streams=1,
        ready=True,
        state="",
        advertised=inventory.advertised(),
        last_allocated=inventory.last_given,
        counters=ResourceCounters(),
    )
    read = parse(msgspec.json.encode(document((status,))))
    resource = read["example.com/gpu"]
    assert (resource.registered, resource.streams, resource.served) == (True, 1, True)
    assert list(resource.devices) == ["gpu0::0", "gpu0::1", "gpu1::0", "gpu1::1"]
    assert resource.devices["gpu0::1"] == AdvertisedDevice(
        healthy=True,
        reason="",
        since=1000.25,
        numa_nodes=(0, 1),
        attributes=(("model", "A100"), ("parent", "gpu0"), ("path", "/dev/gpu0")),
        last_allocated=1010.5,
        parent="gpu0",
    )
    assert resource.devices["gpu1::0"].reason == "its node is gone"
    assert not resource.devices["gpu1::0"].healthy
    assert resource.devices["gpu0::0"].last_allocated is None
    assert resource.devices["gpu1::1"].last_allocated is None, "it was asked for, and refused"


def test_missing_keys_have_defaults_and_unknown_ones_are_ignored() -> None:
    text = (
        b'{"version":1,"new":[],"resources":[{"name":"r","x":1,"devices":[{"id":"d","y":{}}]},{"name":"s"}]}'
    )
    read = parse(text)
    assert read["r"].devices == {"d": AdvertisedDevice(healthy=False, reason="its health is ''")}
    assert (read["s"].registered, read["s"].streams, read["s"].devices) == (False, 0, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"version":2,"resources":[{"id":"other"}]}', "found version 2, expected 1"),
        (b'{"resources":[]}', "expected the devices of a devicelens plugin: Object missing required field"),
        (b'{"version":1}', "missing required field `resources`"),
        (b'{"version":1,"resources":[{"name":1}]}', "Expected `str`, got `int` - at `$.resources[0].name`"),
        (
            b'{"version":1,"resources":[{"name":"r","devices":[{"id":"d","numa_nodes":null}]}]}',
            "Expected `array`, got `null`",
        ),
        (b"<html>", "expected the devices of a devicelens plugin: "),
        (b"", "expected the devices of a devicelens plugin: "),
        (b"\xff\xfe", "expected the devices of a devicelens plugin: "),
        (b"[" * 100_000, "expected the devices of a devicelens plugin: "),
        (b'{"version":1,"resources":' + b"[" * 100_000, "expected the devices of a devicelens plugin: "),
    ],
)
def test_invalid_document_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-10-28T22:41:03.250Z", 1_793_227_263.25),
        ("2026-10-28T23:41:03.250+01:00", 1_793_227_263.25),
        ("1970-01-01T00:00:00Z", 0.0),
        ("2026-10-28T22:41:03", None),
        ("1969-12-31T23:59:59Z", None),
        ("9999-12-31T23:59:59-23:59", None),
        ("yesterday", None),
        ("", None),
        (None, None),
        ("2" * 10_000, None),
    ],
)
def test_invalid_time_is_none(text: str | None, at: float | None) -> None:
    found = _parsed(health="Healthy", since=text, last_allocated=text)
    assert (found.since, found.last_allocated) == (at, at)


def test_health_is_read_as_the_kubelet_reads_it() -> None:
    assert _parsed(health="Healthy") == AdvertisedDevice(healthy=True)
    assert _parsed(health="Unhealthy", reason="dust") == AdvertisedDevice(healthy=False, reason="dust")
    assert _parsed(health="Unhealthy") == AdvertisedDevice(healthy=False)
    assert _parsed(health="healthy").reason == "its health is 'healthy'"


def test_texts_nodes_and_attributes_are_bounded() -> None:
    found = _parsed(
        health="Unhealthy",
        reason="x" * 5000,
        numa_nodes=[1, -1, 0, 1, *range(5000)],
        attributes={f"a{n:04}": "y" * 5000 for n in range(500)},
    )
    assert len(found.reason) == 1024
    assert found.reason.endswith("…")
    assert len(found.numa_nodes) <= 1024
    assert min(found.numa_nodes) == 0
    assert len(found.attributes) == 64
    assert all(len(value) == 1024 for _, value in found.attributes)


def test_too_many_devices_are_refused() -> None:
    devices = ",".join(f'{{"id":"{n}"}}' for n in range(100_001))
    with pytest.raises(DocumentError, match="found 100001 devices, expected at most 100000"):
        parse(f'{{"version":1,"resources":[{{"name":"r","devices":[{devices}]}}]}}'.encode())


def test_device_is_not_its_own_parent() -> None:
    assert _parsed(attributes={"parent": "d"}).parent == ""
    assert _parsed(attributes={"parent": "p"}).parent == "p"
    assert _parsed(attributes={"parent": "p" * 5000}).parent == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["version", "resources", "name", "devices", "id", "health", "numa_nodes", "since"]
            )
            | st.text(max_size=3),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=100)
@given(JSON | st.fixed_dictionaries({"version": st.just(1), "resources": JSON}))
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        parse(json.dumps(value).encode())
    except DocumentError:
        return
