"""Hostile names through the API, explain, history and pages: data keeps them, and text for people has their
hidden characters spelled out.
"""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import pytest
from msgspec.structs import replace

from exporter.history.record import HoldingFacts, HoldingKey
from exporter.mapping.claimed_devices import ClaimFacts
from exporter.mapping.dra import (
    AllocatedDevice,
    Claim,
    ClaimName,
    DraView,
    PublishedDevice,
    PublishedName,
    Taint,
)
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.listing import ListedPods
from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    PluginReport,
    merge_reports,
)
from exporter.mapping.snapshot import SnapshotBuilder
from exporter.mapping.state import Failure, State
from exporter.views.query import claim_link, device_link, pod_link
from exporter.views.schema import (
    ClaimsDocument,
    DevicesDocument,
    ExplainDocument,
    HistoryDocument,
    PodsDocument,
)
from harness import scene
from harness.hostile import CORPUS, LONG, SURROGATES
from harness.page_reader import Client, PageReader, read_page
from harness.past import Past
from harness.scene import START
from kubelet.pb.podresources.v1 import api_pb2
from runtime.text import is_hostile, visible

Document = TypeVar("Document")

NAMES = set(CORPUS.values())
GPU = "example.com/gpu"
every = pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS.keys())


@pytest.fixture(scope="module")
def state() -> State:
    """Each text names a resource, a device, a pod with its namespace, container, uid and labels, a claim, a
    reason and an attribute, as a kubelet, a plugin, and the API server (ResourceSlices, claims) report them.
    """
    pods, allocatable, advertised = [], [], dict[str, AdvertisedResource]()
    identities = dict[tuple[str, str], PodIdentity]()
    for text in CORPUS.values():
        claimed = api_pb2.ClaimResource(
            **dict.fromkeys(("driver_name", "pool_name", "device_name", "share_id"), text),
            cdi_devices=[api_pb2.CDIDevice(name=text)],
        )
        container = api_pb2.ContainerResources(
            name=text,
            devices=[api_pb2.ContainerDevices(resource_name=text, device_ids=[text])],
            dynamic_resources=[
                api_pb2.DynamicResource(claim_name=text, claim_namespace=text, claim_resources=[claimed])
            ],
        )
        pods.append(api_pb2.PodResources(name=text, namespace=text, containers=[container]))
        allocatable.append(api_pb2.ContainerDevices(resource_name=GPU, device_ids=[text]))
        workload, labels = Workload(text, text), ((text, text),)
        identities[text, text] = PodIdentity(text, text, text, text, workload, text, labels)
        device = AdvertisedDevice(healthy=False, reason=text, attributes=((text, text),), parent=text)
        advertised[text] = AdvertisedResource(registered=True, streams=1, devices={text: device})
    listed = api_pb2.ListPodResourcesResponse(pod_resources=pods)
    reports = merge_reports([PluginReport("unix:/plugin.sock", advertised, START - 5)])
    # Over the wire, as a kubelet sends it.
    received = api_pb2.ListPodResourcesResponse.FromString(listed.SerializeToString())
    snapshot = SnapshotBuilder().build(
        ListedPods(tuple(received.pod_resources)),
        api_pb2.AllocatableResourcesResponse(devices=allocatable),
        pod_uids={key: identity.uid for key, identity in identities.items()},
        advertised=reports.devices,
        claims=ClaimFacts("worker-3", _dra()),
    )
    failure = Failure("List", "UNKNOWN", "".join(CORPUS.values()), START)
    return scene.state(
        snapshot, at=START, since=START - 600, advertised=reports, pods=identities, failure=failure
    )


def _dra() -> DraView:
    """Each text names a published device with its model, attribute, capacity and taint, and a read claim."""
    published, claims = dict[PublishedName, PublishedDevice](), dict[ClaimName, Claim]()
    for text in CORPUS.values():
        name, claim, pairs = PublishedName(text, text, text), ClaimName(text, text), ((text, text),)
        published[name] = PublishedDevice(
            *(name, "", text, text, text),
            parent=text,
            attributes=pairs,
            capacity=pairs,
            taints=(Taint(text, text, "NoExecute", START),),
        )
        claims[claim] = Claim(claim, text, (AllocatedDevice(name, text, text, text, admin=False),))
    return DraView(published=published, drivers=frozenset(NAMES), claims=claims)


@pytest.fixture(autouse=True)
def held(world: SimpleNamespace, past: Past, state: State) -> None:
    """The mapping, and a history in which each text was held once."""
    past.look()
    past.look(*((HoldingKey(*[text] * 5), HoldingFacts("uid", *[text] * 8)) for text in CORPUS.values()))
    past.look()
    world.states.publish(state)


async def body(client: Client, path: str, status: int = 200) -> bytes:
    answer = await client.get(path)
    assert answer.status == status, await answer.text()
    return await answer.read()


async def read(client: Client, name: str, kind: type[Document]) -> Document:
    return msgspec.json.decode(await body(client, f"/api/v1/{name}"), type=kind)


def hidden(text: str) -> list[str]:
    return [character for character in text if is_hostile(character)]


async def test_documents_have_every_name_as_it_is(client: Client) -> None:
    every = (await read(client, "devices", DevicesDocument)).devices
    claimed = [d for d in every if d.claimed is not None]
    assert {(d.resource, d.device) for d in claimed} == {(name, f"{name}/{name}") for name in NAMES}
    for device in claimed:
        assert device.claimed is not None
        (through,), (taint,) = device.claimed.through, device.claimed.taints
        assert {
            *(*device.claimed.cdi_devices, device.claimed.pool, taint.key, taint.value),
            *(through.claim, through.share_id, through.request, through.requested_as, through.pod),
            *(*device.claimed.capacity, *device.claimed.attributes.values()),
        } == {device.resource}
    devices = [d for d in every if d.claimed is None]
    assert {d.device for d in devices} == {d.resource for d in devices} - {GPU} == NAMES
    held = [d for d in devices if d.holders]
    assert len(held) == len(NAMES)
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
    pods = (await read(client, "pods", PodsDocument)).pods
    assert {pod.name for pod in pods} == NAMES
    assert all(pod.labels == {pod.name: pod.name} == {pod.phase: pod.priority_class} for pod in pods)
    claims = (await read(client, "claims", ClaimsDocument)).claims
    assert {claim.driver for claim in claims} == NAMES
    assert all(claim.cdi_devices == (claim.share_id,) == (claim.holders[0].claim,) for claim in claims)
    resources = json.loads(await body(client, "/api/v1/resources"))["resources"]
    assert {entry["resource"] for entry in resources} == {*NAMES, GPU}
    anomalies = json.loads(await body(client, "/api/v1/anomalies"))["anomalies"]
    assert {anomaly["resource"] for anomaly in anomalies} == NAMES
    assert not any(hidden(anomaly["evidence"]) for anomaly in anomalies)
    status = json.loads(await body(client, "/api/v1/status"))
    assert set(status["plugins"][0]["resources"]) == NAMES


@every
async def test_a_text_as_it_is_shown_finds_its_device_and_its_holdings(client: Client, text: str) -> None:
    shown = visible(text, limit=8192)
    part = quote(shown if len(shown) <= 512 else shown[-200:], safe="")
    if not shown.strip():
        return  # no filter
    devices = json.loads(await body(client, f"/api/v1/devices?resource={quote(GPU)}&device={part}"))
    assert text in {device["device"] for device in devices["devices"]}
    if len(shown) > 512:
        return  # history matches whole names
    found = await read(client, f"history?device={part}&limit=1000", HistoryDocument)
    if text == text.strip():
        assert [(h.device, h.pod, h.claim) for h in found.holdings] == [(text, text, text)]


@every
async def test_sentences_have_hidden_characters_spelled_out(client: Client, text: str) -> None:
    query = f"device={quote(text, safe='')}&resource={quote(text, safe='')}"
    answer = await client.get(f"/api/v1/explain?{query}")
    if len(text) > 512 or not text.strip():
        assert answer.status == 400
        return
    assert answer.status == 200, await answer.text()
    document = msgspec.json.decode(await answer.read(), type=ExplainDocument)
    assert (document.device, document.resource, document.attributed) == (text, text, True)
    assert not any(map(hidden, document.sentences))
    unknown = await client.get(f"/api/v1/explain?device={quote('no such ' + text[:400], safe='')}")
    assert unknown.status == 404
    assert hidden((await unknown.json(content_type=None))["detail"]) == []


PARAMETERS = [
    *(("devices", name) for name in ("q", "state")),
    *(("claims", "driver"), ("anomalies", "kind"), ("explain", "device"), ("explain", "resource")),
    *(("history", name) for name in ("device", "at", "limit", "cursor")),
]
"""One parameter of each way to read a value."""
HEADERS = {
    *("content-type", "content-length", "date", "vary", "cache-control", "etag", "retry-after", "server"),
    *("devicelens-taken-at", "connection", "content-security-policy", "x-content-type-options"),
    *("x-frame-options", "referrer-policy", "cross-origin-opener-policy", "cross-origin-resource-policy"),
}


def _targets() -> Iterator[bytes]:
    """Each hostile text in an address: escaped in a third of the parameters, in a parameter's name and in the
    path, and where a request line can have it, raw.
    """
    texts = [text.encode()[:512] for text in CORPUS.values()]
    texts += [text.encode(errors="surrogatepass") for text in SURROGATES.values()]
    texts += [b"\xff\xfe", b"%ff%fe", b"%ed%a0%80", b"%", b"%u0000", b"%00"]
    for number, raw in enumerate(texts):
        for where, name in PARAMETERS[number % 3 :: 3]:
            device = b"device=x&" if (where, name) == ("explain", "resource") else b""
            yield f"/api/v1/{where}?".encode() + device + name.encode() + b"=" + quote(raw, safe="").encode()
        yield b"/api/v1/devices?" + quote(raw, safe="").encode() + b"=1"
        yield b"/api/v1/" + quote(raw, safe="").encode()
        if not set(raw) & set(b" \r\n\0\t\x0b\x0c#"):
            yield b"/api/v1/devices?q=" + raw
            yield b"/api/v1/" + raw


async def _ask(port: int | None, target: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body for a raw request target."""
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


async def test_no_address_breaks_an_answer_or_adds_a_header(client: Client) -> None:
    answered = 0
    for target in _targets():
        code, headers, answer = await _ask(client.port, target)
        if headers["content-type"].startswith("text/plain"):  # no HTTP: refused before the API
            assert code == 400, target
            continue
        answered += 1
        assert code in {200, 400, 404}, (target, answer)
        assert set(headers) <= HEADERS, target
        document: Any = json.loads(answer.decode())
        if code != 200:
            assert document["status"] == code
            assert hidden(document["detail"]) == [], target
    assert answered > 250


TAGS = frozenset(
    (
        *("html", "head", "meta", "title", "link", "script", "noscript", "body", "header", "main", "footer"),
        *("nav", "div", "section", "a", "p", "span", "bdi", "strong", "i", "abbr", "h1", "h2", "h3", "time"),
        *("ul", "li", "dl", "dt", "dd", "table", "caption", "thead", "tbody", "tr", "th", "td", "details"),
        *("figure", "figcaption", "svg", "defs", "pattern", "rect", "g", "line", "text", "desc", "summary"),
        *("form", "fieldset", "legend", "label", "input", "datalist", "option", "select", "button"),
    )
)
"""All tags of the pages."""
ADDRESSES = ("/", "#", "https://")
FIELDS = ("q", "resource", "namespace", "pod", "device")


def _is_inert(page: PageReader) -> bool:
    """Whether no text became an element, an attribute, an address or a hidden character."""
    assert page.tags <= TAGS
    assert all(value.startswith(ADDRESSES) for value in (*page.values("href"), *page.values("src")))
    assert len(set(page.keys)) == len(page.keys), "the page's module finds elements by their keys"
    texts = (*page.words, *page.values())
    return not any(hidden(text.replace("\n", "")) for text in texts)


async def test_names_are_inert_on_every_page(client: Client) -> None:
    for path in ("/?per_page=1000", "/?group=device&per_page=1000", "/?group=pod&per_page=1000", "/history"):
        page = await read_page(client, path)
        assert _is_inert(page)
        assert LONG in page.values(), "the title of a cut name is the whole name"
        assert max(map(len, page.words)) < 1500
        assert len([source for source in page.values("src") if source.startswith("/static/")]) == 1
    for number, name in enumerate(CORPUS.values()):
        links = (device_link(name, name), pod_link(name, name), claim_link(name, name, name))
        if not (link := links[number % 3]).startswith("/?"):  # too long for a path
            page = await read_page(client, link)
            assert _is_inert(page), link
            assert any(visible(name, limit=8192)[:8].split(" ")[0] in word for word in page.words)
    # The whole status page five names at a time, each in another field of its form.
    cut = [name[:500] for name in CORPUS.values()]
    for at in range(0, len(cut), len(FIELDS)):
        echoed = urlencode(dict(zip(FIELDS, cut[at:], strict=False)))
        assert _is_inert(await read_page(client, f"/?{echoed}"))
    for name in SURROGATES.values():
        for link in (device_link(name, name), pod_link(name, name), claim_link(name, name, name)):
            assert _is_inert(await read_page(client, link, 404)), link
    for raw in ("%ff%fe", "%ed%a0%80"):
        assert _is_inert(await read_page(client, f"/?q={raw}"))


@pytest.mark.parametrize("text", SURROGATES.values(), ids=SURROGATES.keys())
async def test_lone_surrogates_of_a_path_are_replaced(
    client: Client, world: SimpleNamespace, state: State, text: str
) -> None:
    failure = Failure("List", "UNAVAILABLE", f"there is no socket at /{text}", START)
    world.states.publish(replace(state, failure=failure))
    message = json.loads(await body(client, "/api/v1/devices"))["error"]["message"]
    assert message.startswith("there is no socket at /")
    assert "\ufffd" in message
    assert "\\u" in (await body(client, "/-/ready", 503)).decode()
