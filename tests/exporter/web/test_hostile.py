"""Hostile names, of everything that has one, through the API, both expositions, explain and history: each
comes out as it went in where it is data, spelled out where it is told to a person, and nowhere else.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.history.archive import QueryMoment
from exporter.history.query import HistoryQuery, HistoryResult
from exporter.history.record import HoldingKey
from exporter.mapping.anomalies import find
from exporter.mapping.holdings import HeldSince, holdings
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    DeviceKey,
    PluginReport,
    merge_reports,
)
from exporter.mapping.snapshot import build
from exporter.mapping.state import Failure, State, StateStore
from exporter.metrics.exporter import Metrics
from exporter.views.schema import (
    ClaimsDocument,
    DevicesDocument,
    ExplainDocument,
    HistoryDocument,
    PodsDocument,
)
from exporter.web.app import build as build_app
from harness.hostile import CORPUS, SURROGATES
from harness.lives import PATIENCE, Life
from harness.tools import required
from kubelet.pb.podresources.v1 import api_pb2
from runtime.exposition import Format
from runtime.text import is_hostile, visible

Client = TestClient[web.Request, web.Application]

NOW = 1_793_227_263.25
every = pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS.keys())
GPU = "example.com/gpu"


def state_of(texts: Iterable[str]) -> State:
    """Each text names a resource, a device, a pod with its namespace, container, uid and labels, a claim, a
    reason and an attribute; all of them as a kubelet and a plugin tell them.
    """
    pods, allocatable, advertised = [], [], dict[str, AdvertisedResource]()
    identities = dict[tuple[str, str], PodIdentity]()
    for text in texts:
        devices = [api_pb2.ContainerDevices(resource_name=text, device_ids=[text])]
        claimed = api_pb2.ClaimResource(
            driver_name=text,
            pool_name=text,
            device_name=text,
            share_id=text,
            cdi_devices=[api_pb2.CDIDevice(name=text)],
        )
        claim = api_pb2.DynamicResource(claim_name=text, claim_namespace=text, claim_resources=[claimed])
        container = api_pb2.ContainerResources(name=text, devices=devices, dynamic_resources=[claim])
        pods.append(api_pb2.PodResources(name=text, namespace=text, containers=[container]))
        allocatable.append(api_pb2.ContainerDevices(resource_name=GPU, device_ids=[text]))
        identities[text, text] = PodIdentity(
            *(text, text, text, text),
            workload=Workload(text, text),
            priority_class=text,
            labels=((text, text),),
        )
        device = AdvertisedDevice(healthy=False, reason=text, attributes=((text, text),), parent=text)
        advertised[text] = AdvertisedResource(registered=True, streams=1, devices={text: device})
    listed = api_pb2.ListPodResourcesResponse(pod_resources=pods)
    told = merge_reports([PluginReport("unix:/plugin.sock", advertised, NOW - 5)])
    snapshot = build(
        # Over the wire, as it comes.
        api_pb2.ListPodResourcesResponse.FromString(listed.SerializeToString()),
        api_pb2.AllocatableResourcesResponse(devices=allocatable),
        pod_uids={key: identity.uid for key, identity in identities.items()},
        advertised=told.devices,
    )
    return State(
        generation=1,
        snapshot=snapshot,
        taken_at=NOW,
        since={holding: HeldSince(NOW - 600, exact=True) for holding in holdings(snapshot)},
        pods=identities,
        anomalies=find(snapshot, told),
        advertised=told,
        failure=Failure("List", "UNKNOWN", "".join(texts), NOW),
    )


def key_of(text: str) -> HoldingKey:
    """A holding of which everything is called so."""
    return HoldingKey(text, text, text, text, text, text, text, text, text, text)


class Past:
    """A history in which each text was held once."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.life = Life(None, wall=NOW - 60).start()
        keys = [key_of(text) for text in texts]
        self.life.look()
        self.life.look(*keys, uid="uid")
        self.life.look()

    async def find(self, question: HistoryQuery) -> HistoryResult:
        now = QueryMoment(self.life.sight.last, self.life.sight.failing, self.life.wall, PATIENCE)
        return self.life.archive.find(question, now)


@pytest.fixture(scope="module")
def state() -> State:
    return state_of(CORPUS.values())


@pytest.fixture
async def client(world: SimpleNamespace, state: State) -> AsyncGenerator[Client]:
    world.states.publish(state)
    site = replace(world.site, history=Past(CORPUS.values()))
    async with TestClient(TestServer(build_app(site))) as found:
        yield found


async def body(client: Client, path: str, status: int = 200) -> bytes:
    answer = await client.get(path)
    assert answer.status == status, await answer.text()
    return await answer.read()


async def test_the_api_tells_every_name_as_it_is(client: Client) -> None:
    names = set(CORPUS.values())
    devices = msgspec.json.decode(await body(client, "/api/v1/devices"), type=DevicesDocument).devices
    assert {d.device for d in devices} == {d.resource for d in devices} - {GPU} == names
    held = [d for d in devices if d.holders]
    assert len(held) == len(names)
    for device in held:
        (holder,) = device.holders
        assert device.plugin is not None
        assert {
            *(device.resource, device.device, device.plugin.reason, *device.plugin.attributes.keys()),
            *(holder.namespace, holder.pod, holder.container, holder.pod_uid),
            *device.plugin.attributes.values(),
        } == {device.device}
        assert holder.workload is not None
        assert (holder.workload.kind, holder.workload.name) == (device.device, device.device)
    pods = msgspec.json.decode(await body(client, "/api/v1/pods"), type=PodsDocument).pods
    assert {pod.name for pod in pods} == names
    assert all(pod.labels == {pod.name: pod.name} == {pod.phase: pod.priority_class} for pod in pods)
    claims = msgspec.json.decode(await body(client, "/api/v1/claims"), type=ClaimsDocument).claims
    assert {claim.driver for claim in claims} == names
    assert all(claim.cdi_devices == (claim.share_id,) == (claim.holders[0].claim,) for claim in claims)
    resources = json.loads(await body(client, "/api/v1/resources"))["resources"]
    assert {entry["resource"] for entry in resources} == {*names, GPU}
    anomalies = json.loads(await body(client, "/api/v1/anomalies"))["anomalies"]
    assert {anomaly["resource"] for anomaly in anomalies} == names
    assert [c for anomaly in anomalies for c in anomaly["evidence"] if is_hostile(c)] == []
    status = json.loads(await body(client, "/api/v1/status"))
    assert set(status["plugins"][0]["resources"]) == names


@every
async def test_what_was_copied_from_where_it_is_shown_finds_it(client: Client, text: str) -> None:
    shown = visible(text, limit=8192)
    if len(shown) > 512:
        shown = shown[-200:]
    if not shown.strip():
        return  # says nothing
    found = json.loads(
        await body(client, f"/api/v1/devices?resource={quote(GPU)}&device={quote(shown, safe='')}")
    )
    assert text in {device["device"] for device in found["devices"]}


@every
async def test_explain_tells_of_it_with_nothing_hidden(client: Client, text: str) -> None:
    query = f"device={quote(text, safe='')}&resource={quote(text, safe='')}"
    answer = await client.get(f"/api/v1/explain?{query}")
    if len(text) > 512 or not text.strip():
        assert answer.status == 400
        return
    assert answer.status == 200, await answer.text()
    document = msgspec.json.decode(await answer.read(), type=ExplainDocument)
    assert (document.device, document.resource, document.attributed) == (text, text, True)
    assert [c for sentence in document.sentences for c in sentence if is_hostile(c)] == []
    unknown = await client.get(f"/api/v1/explain?device={quote('no such ' + text[:400], safe='')}")
    assert unknown.status == 404
    assert [c for c in (await unknown.json(content_type=None))["detail"] if is_hostile(c)] == []


@every
async def test_history_tells_it_as_it_is_and_finds_it_as_it_is_shown(client: Client, text: str) -> None:
    shown = visible(text.strip(), limit=8192)
    if len(shown) > 512 or not shown:
        assert len(json.loads(await body(client, "/api/v1/history?limit=1000"))["holdings"]) == len(CORPUS)
        return
    found = await body(client, f"/api/v1/history?device={quote(shown, safe='')}&limit=1000")
    holdings_ = msgspec.json.decode(found, type=HistoryDocument).holdings
    if text == text.strip():
        assert [(h.device, h.pod, h.claim) for h in holdings_] == [(text, text, text)]


PARAMETERS = [
    *(("devices", name) for name in ("q", "resource", "namespace", "pod", "device", "state")),
    *(("claims", name) for name in ("driver", "pool", "claim")),
    *(("anomalies", "kind"), ("resources", "q"), ("explain", "device"), ("explain", "resource")),
    *(("history", name) for name in ("device", "uid", "container", "at", "from", "limit", "cursor")),
]
HEADERS = {
    *("content-type", "content-length", "date", "vary", "cache-control", "etag", "retry-after", "server"),
    *("devicelens-taken-at", "connection", "content-security-policy", "x-content-type-options"),
    *("x-frame-options", "referrer-policy", "cross-origin-opener-policy", "cross-origin-resource-policy"),
}


def _targets() -> Iterator[bytes]:
    """Each hostile text in each place of an address: escaped, and where a line can have it, as it is."""
    texts = [text.encode()[:512] for text in CORPUS.values()]
    texts += [text.encode(errors="surrogatepass") for text in SURROGATES.values()]
    texts += [b"\xff\xfe", b"%ff%fe", b"%ed%a0%80", b"%", b"%u0000", b"%00"]
    for raw in texts:
        for where, name in PARAMETERS:
            device = b"device=x&" if (where, name) == ("explain", "resource") else b""
            yield f"/api/v1/{where}?".encode() + device + name.encode() + b"=" + quote(raw, safe="").encode()
        yield b"/api/v1/devices?" + quote(raw, safe="").encode() + b"=1"
        yield b"/api/v1/" + quote(raw, safe="").encode()
        if not set(raw) & set(b" \r\n\0\t\x0b\x0c#"):
            yield b"/api/v1/devices?q=" + raw
            yield b"/api/v1/" + raw


async def _ask(port: int | None, target: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body for an address as it is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(20):
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    status, *lines = head.decode("ascii").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert len(headers) == len(lines)
    assert len(answer) == int(headers["content-length"])
    return int(status.split()[1]), headers, answer


async def test_no_address_breaks_an_answer_or_gets_into_its_headers(client: Client) -> None:
    asked = 0
    for target in _targets():
        code, headers, answer = await _ask(client.port, target)
        if headers["content-type"].startswith("text/plain"):  # no HTTP: refused before it comes to the API
            assert code == 400, target
            continue
        asked += 1
        assert code in {200, 400, 404}, (target, answer)
        assert set(headers) <= HEADERS, target
        document: Any = json.loads(answer.decode())
        if code != 200:
            assert document["status"] == code
            assert [c for c in document["detail"] if is_hostile(c)] == [], target
    assert asked > 500


async def _exposition(state: State, form: Format) -> str:
    states = StateStore()
    states.publish(state)
    metrics = Metrics(states, node="worker-3", version="1", stale_after=60.0, clock=lambda: NOW)
    try:
        return (await metrics.document(form, compress=False)).decode()
    finally:
        metrics.close()


def _of(families: Iterable[Metric], name: str) -> list[dict[str, str]]:
    return [s.labels for family in families for s in family.samples if s.name == name]


@pytest.mark.parametrize("form", Format)
async def test_the_exposition_tells_every_name_as_it_is(state: State, form: Format) -> None:
    text = await _exposition(state, form)
    families = list((parse_text if form is Format.TEXT else parse_openmetrics)(text))
    names = set(CORPUS.values())
    owners = _of(families, "devicelens_device_owner_info")
    assert {labels["device"] for labels in owners} == names
    for labels in owners:
        assert {labels[n] for n in ("resource", "namespace", "pod", "container", "pod_uid")} == {
            labels["device"]
        }
    claims = _of(families, "devicelens_claim_device_info")
    assert {labels["claim"] for labels in claims} == names
    assert all(labels["driver"] == labels["share_id"] == labels["claim"] for labels in claims)
    known = {
        DeviceKey(labels["resource"], labels["device"]) for labels in _of(families, "devicelens_device_info")
    }
    assert known == {device.key for device in state.snapshot.devices}
    assert not [family.name for family in families if not family.name.startswith("devicelens_")]


async def test_promtool_reads_it(state: State) -> None:
    promtool = required("promtool", "prometheus")
    text = await _exposition(state, Format.TEXT)
    done = await asyncio.to_thread(
        subprocess.run, [promtool, "check", "metrics"], input=text.encode(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("text", SURROGATES.values(), ids=SURROGATES.keys())
async def test_half_characters_of_a_path_do_not_stop_an_answer(
    client: Client, world: SimpleNamespace, state: State, text: str
) -> None:
    failure = Failure("List", "UNAVAILABLE", f"there is no socket at /{text}", NOW)
    world.states.publish(replace(state, failure=failure))
    document = json.loads(await body(client, "/api/v1/devices"))
    assert document["error"]["message"].startswith("there is no socket at /")
    assert "\ufffd" in document["error"]["message"]
    assert "\\u" in (await body(client, "/-/ready", 503)).decode()
