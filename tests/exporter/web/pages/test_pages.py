"""The pages of devices, pods, claims and the past as they are served."""

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from exporter.history.query import HistoryQuery, HistoryResult
from exporter.history.record import HoldingFacts, HoldingKey, bounded
from exporter.mapping.anomalies import find
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Container,
    Device,
    DeviceKey,
    Holder,
    PluginReport,
    Snapshot,
    merge_reports,
)
from exporter.mapping.state import Failure
from exporter.views.query import claim_link, device_link, pod_link
from exporter.web.app import build
from harness.hostile import CORPUS, SURROGATES
from harness.page_reader import PageReader
from harness.past import Past
from runtime.text import is_hostile, visible

Client = TestClient[web.Request, web.Application]
START = 1_793_227_263.25


@pytest.fixture
async def client(world: SimpleNamespace, past: Past) -> AsyncGenerator[Client]:
    """A client of the application with a past. Nothing is published yet."""
    async with TestClient(TestServer(build(world.site))) as found:
        yield found


async def page(client: Client, path: str, status: int = 200) -> PageReader:
    answer = await client.get(URL(path, encoded=True))
    html = await answer.text()
    assert answer.status == status, html
    assert answer.content_type == "text/html"
    reader = PageReader(html)
    assert len(set(reader.values("id"))) == len(reader.values("id"))
    assert "style" not in reader.tags | reader.attributes
    assert not [name for name in reader.attributes if name.startswith("on")]
    return reader


def key(
    device: str, pod: str, resource: str = "nvidia.com/gpu", namespace: str = "ml", container: str = "trainer"
) -> HoldingKey:
    return HoldingKey(resource, "", "", device, "", "", "", namespace, pod, container)


def facts(uid: str = "", parent: str = "") -> HoldingFacts:
    return HoldingFacts(uid, "StatefulSet", "llama", parent, "worker-3")


LLAMA = key("GPU-0", "llama-0")


def remember(past: Past, world: SimpleNamespace) -> None:
    """GPU-0 in the hands of llama-0, of another one, and of llama-0 made anew; now is at the last look."""
    past.look()
    past.look((LLAMA, facts("uid-0")))
    past.look((LLAMA, facts("uid-0")), after=600)
    past.look(after=5)
    past.look((key("GPU-0", "eval-9", namespace="research", container="main"), facts("uid-9")))
    past.silent(100)
    past.look((LLAMA, facts("uid-1")), after=1)
    while past.life.wall < START - 15:
        past.look((LLAMA, facts("uid-1")), after=15)
    world.now = past.life.wall


async def test_a_device_page_answers_who_has_it_since_when_and_is_it_well(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    remember(past, world)
    identity = PodIdentity("ml", "llama-0", "uid-1", "Running", Workload("StatefulSet", "llama"))
    world.publish(pods={("ml", "llama-0"): identity})
    found = await page(client, "/devices/nvidia.com/gpu/GPU-0")
    for words in (
        "The mapping is fresh.",
        "GPU-0 Held by 1 pod. ml / llama-0 container trainer , StatefulSet llama since",
        "uid uid-1",
        "healthy · the kubelet offers it",
        "NUMA node 0 by the kubelet",
        "GPU-0 of nvidia.com/gpu is a whole device",
        "Not observed from",
        ": the kubelet did not answer.",
        "History of this node begins",
    ):
        assert words in found.text
    links = [value for value in found.values("href") if value.startswith("/pods/")]
    assert pod_link("research", "eval-9") in {link.partition("#")[0] for link in links}
    bars = [value for value in found.values("class") if value.startswith("stretch")]
    assert sorted(bars) == ["stretch ended", "stretch ended", "stretch held"]
    assert {"GPU-0", "uid-0", "uid-1", "uid-9"} <= set(found.values("data-copy"))


async def test_a_device_that_fails_says_why_since_when_and_whose_word_that_is(
    client: Client, world: SimpleNamespace
) -> None:
    told = AdvertisedDevice(False, "Xid 79: fallen off the bus", START - 900, (0,), (("model", "H100"),))
    resource = AdvertisedResource(registered=True, streams=1, devices={"GPU-2": told})
    advertised = merge_reports(
        [PluginReport("http://plugin:10191", {"nvidia.com/gpu": resource}, START - 3000)]
    )
    world.publish(advertised=advertised, anomalies=find(world.snapshot, advertised))
    found = await page(client, "/devices/nvidia.com/gpu/GPU-2")
    for words in (
        "Held by 1 pod, and unhealthy.",
        "unhealthy : Xid 79: fallen off the bus since 22:26:03 15 min · its plugin, at http://plugin:10191",
        "What is wrong unhealthy, held batch/render-1 (blender) holds nvidia.com/gpu GPU-2",
        "model H100",
        "No holdings found in this time.",
    ):
        assert words in found.text


async def test_a_free_device_says_that_nobody_holds_it(client: Client, world: SimpleNamespace) -> None:
    world.publish()
    assert (
        "Held by no pod. Free: no pod holds it." in (await page(client, "/devices/nvidia.com/gpu/GPU-3")).text
    )


async def test_shares_of_one_device_are_shown_beside_one_another(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    shares = [key(f"GPU-7::{i}", "vllm-0", "nvidia.com/gpu.shared", "inference", "server") for i in range(2)]
    past.look(*((share, facts(parent="GPU-7")) for share in shares))
    world.now = past.life.wall
    world.publish()
    share = await page(client, "/devices/nvidia.com/gpu.shared/GPU-7%3A%3A0")
    for words in ("Part of GPU-7 share 0 (id rule", "Others of GPU-7", "GPU-7::1 nvidia.com/gpu.shared free"):
        assert words in share.text
    parent = await page(client, "/devices/nvidia.com/gpu.shared/GPU-7")
    assert "Divided into 2 devices; 1 is held." in parent.text
    assert "Its shares and parts" in parent.text
    lanes = [bar for bar in parent.values("class") if bar.startswith("stretch")]
    assert len(lanes) == 2, "who held the physical device is seen at its own page"


async def test_a_device_that_is_gone_still_has_a_page(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    remember(past, world)
    world.publish(replace(world.snapshot, devices=world.snapshot.devices[1:]))
    past.look()
    world.now = past.life.wall
    found = await page(client, "/devices/nvidia.com/gpu/GPU-0")
    assert "It is not on this node now; last held by ml/llama-0, until between" in found.text
    past.life.pass_time(3 * 86400)
    world.now = past.life.wall
    world.publish(replace(world.snapshot, devices=world.snapshot.devices[1:]))
    later = await page(client, "/devices/nvidia.com/gpu/GPU-0")
    assert "It is not on this node now; last held" in later.text, "however long ago that was"


async def test_a_device_never_heard_of_has_the_nearest_ones(client: Client, world: SimpleNamespace) -> None:
    world.publish()
    found = await page(client, "/devices/nvidia.com/gpu/GPU-9", 404)
    assert "No such device GPU-9" in found.text
    assert "/devices/nvidia.com/gpu/GPU-0" in found.values("href")
    part = await page(client, "/devices/nvidia.com/gpu.shared/PU-7%3A%3A0", 404)
    assert "/devices/nvidia.com/gpu.shared/GPU-7%3A%3A0" in part.values("href")
    assert "No such device" in (await page(client, "/devices/other.com/x/GPU-0", 404)).text
    answer = await client.get("/devices/nvidia.com/gpu/GPU-9")
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/devices/GPU-0", "/devices/a//b", "/devices/a/b/%FF", "/pods/x", "/pods/a/b/c", "/claims/a/b"]
)
async def test_an_address_that_is_none_says_what_was_expected(
    client: Client, world: SimpleNamespace, path: str
) -> None:
    world.publish()
    assert "expected" in (await page(client, path, 404)).text


@pytest.mark.parametrize("query", ["?from=yesterday", "?q=x", "?from=-1h&to=-2h", "?to=03:12&to=04:12"])
@pytest.mark.parametrize(
    "path", ["/devices/nvidia.com/gpu/GPU-0", "/pods/ml/llama-0", "/claims/gpu.example.com/pool-a/gpu-0"]
)
async def test_a_time_that_cannot_be_read_is_400(
    client: Client, world: SimpleNamespace, path: str, query: str
) -> None:
    world.publish()
    assert "This address cannot be read" in (await page(client, path + query, 400)).text


async def test_what_cannot_be_known_is_not_said_to_be_nothing(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    for path in ("/devices/nvidia.com/gpu/GPU-0", "/pods/ml/llama-0", "/claims/a/b/c"):
        assert "The kubelet has not answered yet" in (await page(client, path, 503)).text
    world.publish()
    past.error = "the disk is slow"
    for path in ("/devices/nvidia.com/gpu/none", "/pods/ml/none", "/claims/a/b/c"):
        found = await page(client, path, 503)
        assert "History is not available: the disk is slow. It may have more." in found.text
    for path in ("/devices/nvidia.com/gpu/GPU-0", "/pods/ml/llama-0", "/claims/gpu.example.com/pool-a/gpu-0"):
        assert "History is not available: the disk is slow" in (await page(client, path)).text


async def test_an_old_mapping_is_not_shown_as_fresh(client: Client, world: SimpleNamespace) -> None:
    state = world.publish()
    world.states.publish(replace(state, failure=Failure("List", "UNAVAILABLE", "gone", START)))
    world.now += 120
    for path in ("/devices/nvidia.com/gpu/GPU-0", "/pods/ml/llama-0"):
        found = await page(client, path)
        assert "Do not trust this mapping." in found.text
        assert "List has failed since" in found.text
        assert any("old" in value.split() for value in found.values("class"))


# --- pods


async def test_a_pod_page_tells_all_that_it_holds_and_where_that_lies(
    client: Client, world: SimpleNamespace
) -> None:
    world.publish()
    found = await page(client, "/pods/ml/llama-0")
    for words in (
        "ml / llama-0 It holds 2 devices.",
        "trainer container, NUMA 0",
        "GPU-0 nvidia.com/gpu healthy",
        "aligned: everything is on NUMA node 0.",
        "NUMA node 1 nothing of this pod",
    ):
        assert words in found.text
    engine = await page(client, "/pods/trading/engine-0")
    for words in (
        "It holds 4 exclusive CPUs.",
        "Exclusive CPUs 1-3,8",
        "Pinned memory 200 MiB memory on NUMA 0",
    ):
        assert words in engine.text
    claimant = await page(client, "/pods/dra/shared-1")
    assert "gpu-0 gpu.example.com, pool pool-a, claim shared claimed 22:31:03 10 min" in claimant.text


async def test_a_pod_that_was_made_anew_has_its_lives_apart_with_links_between(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    remember(past, world)
    holder = Holder("ml", "llama-0", "trainer", "uid-1")
    world.publish(
        replace(
            world.snapshot,
            devices=(Device(DeviceKey("nvidia.com/gpu", "GPU-0"), "", (0,), True, (holder,)),),
            containers=(Container(holder, {"nvidia.com/gpu": 1}, numa_nodes=(0,)),),
        )
    )
    found = await page(client, "/pods/ml/llama-0")
    new, old = found.text.index("Life 2 on this node now"), found.text.index("Life 1 uid uid-0")
    assert new < old, "the newest first"
    for words in ("Made anew after it: life 2", "Before it: life 1", "uid uid-1"):
        assert words in found.text
    targets = {value[1:] for value in found.values("href") if value.startswith("#uid-")}
    assert targets
    assert targets <= set(found.values("id"))
    device = await page(client, "/devices/nvidia.com/gpu/GPU-0")
    anchors = {v.partition("#")[2] for v in device.values("href") if v.startswith("/pods/ml/llama-0#")}
    assert anchors == targets, "a device's page leads to the very pod that is meant"


async def test_a_pod_that_only_history_knows_has_a_page(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    remember(past, world)
    world.publish()
    found = await page(client, "/pods/research/eval-9")
    assert "It holds nothing on this node now; its last holding ended between" in found.text
    assert "This pod uid uid-9" in found.text


async def test_a_pod_never_heard_of_has_near_ones(client: Client, world: SimpleNamespace) -> None:
    world.publish()
    found = await page(client, "/pods/ml/llama-1", 404)
    assert "/pods/ml/llama-0" in found.values("href")
    other = await page(client, "/pods/default/render-1", 404)
    assert "/pods/batch/render-1" in other.values("href"), "a namespace is easily mistaken"


# --- claims


async def test_a_claim_page_tells_holders_claims_and_history(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    claimed = HoldingKey(
        "", "gpu.example.com", "pool-a", "gpu-0", "", "dra", "shared", "dra", "shared-1", "a"
    )
    elsewhere = claimed._replace(pool="pool-b", pod="not-here")
    past.look()
    past.look((claimed, facts()), (elsewhere, facts()))
    world.now = past.life.wall
    world.publish()
    found = await page(client, "/claims/gpu.example.com/pool-a/gpu-0")
    for words in (
        "gpu-0 Held by 2 pods through 1 claim.",
        "dra / shared-1 a dra/shared 22:31:03",
        "dra / shared-2 a dra/shared before 22:31:03",
        "example.com/gpu=claim-1",
    ):
        assert words in found.text
    assert "not-here" not in found.text
    assert len([v for v in found.values("class") if v.startswith("stretch")]) == 1
    near = await page(client, "/claims/gpu.example.com/pool-a/gpu-1", 404)
    assert "/claims/gpu.example.com/pool-a/gpu-0" in near.values("href")
    gone = await page(client, "/claims/gpu.example.com/pool-b/gpu-0")
    assert "No pod on this node holds it now" in gone.text


# --- history


async def test_the_history_page_tells_a_time_and_a_moment(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    remember(past, world)
    world.publish()
    found = await page(client, "/history")
    assert "3 holdings, the newest first." in found.text
    assert "research / eval-9" in found.text
    at = START - 3600 + 8
    then = await page(client, f"/history?at={at}&device=GPU-0")
    assert "Who held what" in then.text
    assert "there were 0 holdings, and 1 possible." in then.text
    assert "perhaps" in then.text
    sure = await page(client, f"/history?at={START - 3600 + 100}")
    assert "there was 1 holding." in sure.text
    assert "still held" not in sure.text
    nobody = await page(client, "/history?pod=none")
    assert re.search(r"No holdings found between \S+ \S+ \S+ and \S+ UTC\.", nobody.text)


async def test_what_nobody_knows_is_said_plainly(client: Client, world: SimpleNamespace, past: Past) -> None:
    remember(past, world)
    world.publish()
    gap = await page(client, f"/history?at={START - 3600 + 650}")
    assert ": the kubelet did not answer." in gap.text
    early = await page(client, "/history?at=-3h")
    assert "there were no known holdings: there was a gap in observation" in early.text
    assert ": history does not go back so far." in early.text
    future = await page(client, f"/history?at={world.now + 3600}")
    assert "This moment is 1 h in the future." in future.text
    assert "in the future: its holdings are unknown" in future.text
    ahead = await page(client, f"/history?from={world.now + 60}&to={world.now + 3600}")
    assert "This range begins" in ahead.text


async def test_the_history_page_keeps_what_was_typed_beside_what_is_wrong(
    client: Client, world: SimpleNamespace
) -> None:
    world.publish()
    found = await page(client, "/history?from=yesterday&device=GPU-0&at=%3Cb%3E&limit=7", 400)
    assert {"yesterday", "GPU-0", "<b>", "7"} <= set(found.values("value"))
    assert "found 'yesterday', expected" in found.text
    assert found.values("aria-invalid") == ["true", "true"]
    described = set(found.values("aria-describedby"))
    assert {"p-from", "p-at"} <= described
    assert described <= set(found.values("id"))
    assert "'q'" in (await page(client, "/history?q=x", 400)).text


async def test_history_is_read_page_by_page(client: Client, world: SimpleNamespace, past: Past) -> None:
    remember(past, world)
    world.publish()
    path, seen, found = "/history?limit=1", list[str](), PageReader()
    for _ in range(5):
        found = await page(client, path)
        seen += [v for v in found.values("data-key") if re.fullmatch("h[0-9]+", v)]
        following = [v for v in found.values("href") if "cursor=" in v]
        if not following:
            break
        path = following[0]
    assert seen == ["h3", "h2", "h1"]
    assert "First page" in found.text
    await page(client, "/history?cursor=broken", 400)


async def test_a_history_that_cannot_be_asked_is_503(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    world.publish()
    past.error = "no answer within 5 s: is the disk slow?"
    answer = await client.get("/history")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    assert "no answer within 5 s: is the disk slow?" in await answer.text()
    async with TestClient(TestServer(build(replace(world.site, history=None)))) as without:
        assert (await without.get("/history")).status == 503
        assert (await without.get("/devices/nvidia.com/gpu/GPU-0")).status == 200


async def test_many_pages_at_the_same_moment_ask_history_once(
    world: SimpleNamespace, past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    """History refuses more than a few questions at once: fifty pages that follow one device are one."""
    world.publish()
    ticking = itertools.count()
    site = replace(world.site, clock=lambda: START + 0.001 * next(ticking))
    go_on = asyncio.Event()
    ask, running = past.find, [0, 0]

    async def slowly(question: HistoryQuery) -> HistoryResult:
        running[0] += 1
        running[1] = max(running)
        await go_on.wait()
        running[0] -= 1
        return await ask(question)

    monkeypatch.setattr(past, "find", slowly)
    async with TestClient(TestServer(build(site))) as client:
        same = [asyncio.create_task(client.get("/devices/nvidia.com/gpu/GPU-0")) for _ in range(20)]
        others = [asyncio.create_task(client.get(f"/pods/ml/p-{i}")) for i in range(20)]
        while running[0] < 4:
            await asyncio.sleep(0)
        go_on.set()
        answers = await asyncio.gather(*same, *others)
    assert [answer.status for answer in answers] == [200] * 20 + [404] * 20
    assert running[1] == 4
    assert len([q for q in past.asked if q.device]) == 1


async def test_a_client_that_goes_takes_no_answer_from_others(
    client: Client, world: SimpleNamespace, past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish()
    started, go_on = asyncio.Event(), asyncio.Event()
    ask = past.find

    async def slowly(question: HistoryQuery) -> HistoryResult:
        started.set()
        await go_on.wait()
        return await ask(question)

    monkeypatch.setattr(past, "find", slowly)
    gone = asyncio.create_task(client.get("/pods/ml/llama-0"))
    await started.wait()
    gone.cancel()
    stays = asyncio.create_task(client.get("/pods/ml/llama-0"))
    await asyncio.sleep(0.02)
    go_on.set()
    assert (await stays).status == 200


# --- hostile names


HOSTILE = CORPUS | SURROGATES


@pytest.mark.parametrize("name", HOSTILE, ids=str)
async def test_hostile_names_are_inert_on_every_page(
    client: Client, world: SimpleNamespace, past: Past, name: str
) -> None:
    raw = HOSTILE[name]
    holder = Holder(raw, raw, raw, raw)
    device = Device(DeviceKey("r.example/x", raw), raw, (0,), False, (holder,))
    claimed = ClaimDevice(ClaimDeviceKey(raw, raw, raw, raw), (ClaimHolder(holder, raw, raw),), (raw,))
    advertised = merge_reports(
        [
            PluginReport(
                raw,
                {
                    "r.example/x": AdvertisedResource(
                        True, 1, {raw: AdvertisedDevice(False, raw, START, (), ((raw, raw),))}
                    )
                },
                START,
            )
        ]
    )
    identity = PodIdentity(raw, raw, raw, raw, Workload(raw, raw), raw, ((raw, raw),), START)
    snapshot = Snapshot((device,), (claimed,), (Container(holder, {"r.example/x": 1}),), 1)
    past.look(
        (
            HoldingKey(
                "r.example/x", "", "", bounded(raw), "", "", "", bounded(raw), bounded(raw), bounded(raw)
            ),
            HoldingFacts(bounded(raw)),
        )
    )
    world.now = past.life.wall
    world.publish(
        snapshot, advertised=advertised, pods={(raw, raw): identity}, anomalies=find(snapshot, advertised)
    )
    for link in (device_link("r.example/x", raw), pod_link(raw, raw), claim_link(raw, raw, raw)):
        if link.startswith("/?"):
            continue  # too long for any address
        found = await page(client, link)
        assert found.tags <= TAGS, link
        assert not any(_hostile(word) for word in found.words)
        assert any(visible(raw, limit=8192)[:8].split(" ")[0] in word for word in found.words)
    whole = await page(client, "/history")
    assert whole.tags <= TAGS


def _hostile(word: str) -> bool:
    return any(is_hostile(c) for c in word if c != "\n")


TAGS = frozenset(
    (
        *("html", "head", "meta", "title", "link", "script", "noscript", "body", "header", "main", "footer"),
        *("nav", "div", "section", "a", "p", "span", "bdi", "strong", "i", "abbr", "h1", "h2", "h3", "time"),
        *("ul", "li", "dl", "dt", "dd", "table", "caption", "thead", "tbody", "tr", "th", "td"),
        *("figure", "figcaption", "svg", "defs", "pattern", "rect", "g", "line", "text", "desc"),
        *(
            "form",
            "fieldset",
            "legend",
            "label",
            "input",
            "datalist",
            "option",
            "details",
            "summary",
            "button",
        ),
    )
)
"""All that these pages are made of."""
