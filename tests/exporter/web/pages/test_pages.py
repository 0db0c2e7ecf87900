"""The pages of devices, pods, claims and history as they are served."""

import asyncio
import gc
import itertools
import re
from types import SimpleNamespace

import pytest
from aiohttp.test_utils import TestClient, TestServer
from jinja2.runtime import Context
from msgspec.structs import replace

from exporter.history.query import HistoryQuery, HistoryResult
from exporter.history.record import HoldingFacts, HoldingKey, key_of
from exporter.mapping.dra import ChosenDevice, PodDevices, PublishedDevice, PublishedName, SourceStatus, Taint
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import NO_REPORTS, AdvertisedDevice, ClaimHolding, DeviceKey, Doubt, Holder
from exporter.mapping.state import Failure, State
from exporter.views.query import device_link, pod_link
from exporter.views.wording import rfc3339
from exporter.web.app import build
from harness import scene
from harness.page_reader import Client, PageReader, read_page
from harness.past import Past
from harness.scene import GPU, START
from harness.waiting import until

DEVICE, POD, CLAIM, CLAIMED = (
    "/devices/nvidia.com/gpu/GPU-0",
    "/pods/ml/llama-0",
    "/claims/gpu.example.com/pool-a/gpu-0",
    "/devices/gpu.example.com/pool-a%2Fgpu-0",
)


async def has(client: Client, path: str, *words: str, status: int = 200) -> PageReader:
    """The page at `path`, with all these words."""
    found = await read_page(client, path, status)
    for some in words:
        assert some in found.text
    return found


async def test_a_page_that_is_sent_leaves_nothing_to_the_garbage_collector(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    def contexts() -> int:
        return sum(isinstance(one, Context) for one in gc.get_objects())

    async def request() -> None:
        world.publish()
        for path in ("/", DEVICE, POD, CLAIM, "/history", "/?state=none"):
            await client.get(path)

    await request()
    gc.collect()
    gc.disable()
    try:
        before = contexts()
        await request()
        assert contexts() == before
    finally:
        gc.enable()


def bars(found: PageReader) -> list[str]:
    return sorted(value for value in found.values("class") if value.startswith("stretch"))


# --- devices --------------------------------------------------------------------------------------------


async def test_a_device_page_has_holder_start_health_and_past(
    client: Client, world: SimpleNamespace, story: Past
) -> None:
    identity = PodIdentity("ml", "llama-0", "uid-1", "Running", Workload("StatefulSet", "llama"))
    world.publish(pods={("ml", "llama-0"): identity})
    found = await has(
        client,
        DEVICE,
        "The mapping is fresh.",
        "GPU-0 a whole device of nvidia.com/gpu Held by 1 pod.",
        "ml / llama-0 container trainer , StatefulSet llama since",
        "uid uid-1",
        "healthy · the kubelet offers it",
        "NUMA node 0 reported by the kubelet",
        "GPU-0 of nvidia.com/gpu is a whole device",
        "Not observed from",
        ": the kubelet did not answer.",
        "History of this node begins",
    )
    links = {value.partition("#")[0] for value in found.values("href")}
    assert pod_link("research", "evaluation-run-9") in links
    assert bars(found) == ["stretch ended", "stretch ended", "stretch held"]
    assert {"GPU-0", "uid-0", "uid-1", "uid-9"} <= set(found.values("data-copy"))


async def test_a_failed_device_has_its_reason_its_start_and_their_source(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    report = AdvertisedDevice(
        *(False, "Xid 79: fallen off the bus", START - 900, (0,), (("model", "H100"),)),
        last_allocated=START - 660,
    )
    world.publish(advertised=scene.reported({"GPU-2": report}, source="http://plugin:10191"))
    await has(
        client,
        "/devices/nvidia.com/gpu/GPU-2",
        "Unhealthy; held by 1 pod.",
        "unhealthy : Xid 79: fallen off the bus since 22:26:03 15 min · its plugin, at http://plugin:10191",
        "What is wrong unhealthy, held batch/render-1 (blender) holds nvidia.com/gpu GPU-2",
        "model H100",
        "Last allocated 22:30:03 11 min reported by its plugin",
        "No holdings found in this time.",
    )
    await has(client, "/devices/nvidia.com/gpu/GPU-3", "Held by no pod. Free: no pod holds it.")


async def test_shares_of_one_device_are_on_each_others_pages(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    for_vllm = ("inference", "vllm-0", "server")
    shares = [HoldingKey(f"{GPU}.shared", f"GPU-7::{i}", *for_vllm) for i in range(2)]
    past.look(*((share, HoldingFacts(parent="GPU-7")) for share in shares))
    world.now = past.life.wall
    world.publish()
    await has(
        client,
        "/devices/nvidia.com/gpu.shared/GPU-7%3A%3A0",
        "Part of GPU-7 share 0 (id rule",
        "Others of GPU-7",
        "GPU-7::1 nvidia.com/gpu.shared free",
    )
    path = "/devices/nvidia.com/gpu.shared/GPU-7"
    parent = await has(client, path, "Divided into 2 devices, 1 held.", "Its shares and parts")
    assert len(bars(parent)) == 2, "the parent's page has the past of its shares"


async def test_a_slice_is_named_and_an_id_in_two_resources_links_both(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    mig = "nvidia.com/mig-1g"
    world.publish(
        scene.snapshot(
            scene.device("nvidia3/gi2", resource=mig, parent="nvidia3"),
            scene.device("nvidia3/gi2", resource="other.com/gpu", parent="nvidia3"),
        )
    )
    found = await has(client, "/devices/nvidia.com/mig-1g/nvidia3%2Fgi2", "slice gi2 (id rule gke-mig)")
    assert device_link("other.com/gpu", "nvidia3/gi2") in found.values("href")


async def test_a_device_that_is_gone_has_a_page_however_long_ago(
    client: Client, world: SimpleNamespace, story: Past
) -> None:
    story.look()
    for passed in (0, 3 * 86400):
        story.life.pass_time(passed)
        world.now = story.life.wall
        others = [one for one in world.snapshot.devices if one.key.device != "GPU-0"]
        world.publish(replace(world.snapshot, devices=tuple(others)))
        await has(client, DEVICE, "It is not on this node now; last held by ml/llama-0, until between")


@pytest.mark.usefixtures("past")
@pytest.mark.parametrize(
    ("path", "words", "similar"),
    [
        ("/devices/nvidia.com/gpu/GPU-9", "No such device GPU-9", DEVICE),
        (
            "/devices/nvidia.com/gpu.shared/PU-7%3A%3A0",
            "No such device",
            "/devices/nvidia.com/gpu.shared/GPU-7%3A%3A0",
        ),
        ("/devices/other.com/x/GPU-0", "No such device", "/"),
        ("/pods/ml/llama-1", "Unknown pod", POD),
        ("/pods/default/render-1", "Unknown pod", "/pods/batch/render-1"),
        ("/claims/gpu.example.com/pool-a/gpu-1", "No such device", CLAIMED),
    ],
)
async def test_an_unknown_name_is_404_with_similar_names(
    client: Client, path: str, words: str, similar: str
) -> None:
    assert similar in (await has(client, path, words, status=404)).values("href")
    assert (await client.get(path)).headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/devices/GPU-0", "/devices/a//b", "/devices/a/b/%FF", "/pods/x", "/pods/a/b/c", "/claims/a/b"]
)
async def test_an_invalid_path_has_what_was_expected(client: Client, path: str) -> None:
    await has(client, path, "This address cannot be read", "expected", status=404)


@pytest.mark.parametrize("query", ["?from=yesterday", "?q=x", "?from=-1h&to=-2h", "?to=03:12&to=04:12"])
async def test_an_invalid_time_is_400(client: Client, query: str) -> None:
    for path in (DEVICE, POD, CLAIM):
        await has(client, path + query, "This address cannot be read", status=400)


async def test_what_is_unknown_for_now_is_503_not_404(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    world.states.publish(State())
    for path in (DEVICE, "/devices/no.such/resource/x", POD, "/claims/a/b/c"):
        found = await has(client, path, "Not known yet", "The kubelet has not answered yet", status=503)
        for words in ("No such", "has no resources", "Unknown", "No pod"):
            assert words not in found.text
    world.publish()
    past.error = "the disk is slow"
    trouble = "History is not available: the disk is slow"
    for path in ("/devices/nvidia.com/gpu/none", "/pods/ml/none", "/claims/a/b/c"):
        await has(client, path, f"{trouble}. It may have more.", status=503)
    for path in (DEVICE, POD, CLAIM):
        await has(client, path, trouble)


async def test_before_the_first_answer_a_page_with_a_past_says_that_the_present_is_unknown(
    client: Client, world: SimpleNamespace, story: Past
) -> None:
    world.states.publish(State())
    for path in (DEVICE, POD):
        found = await has(
            client, path, "Not known yet: the kubelet has not answered since the exporter started"
        )
        assert "not on this node" not in found.text
        assert "nothing on this node" not in found.text


async def test_a_stale_mapping_is_marked_on_every_page(client: Client, world: SimpleNamespace) -> None:
    world.publish(failure=Failure("List", "UNAVAILABLE", "gone", START))
    world.now += 120
    for path in (DEVICE, POD):
        found = await has(client, path, "Do not trust this mapping.", "List has failed since")
        assert any("old" in value.split() for value in found.values("class"))
        assert "This mapping is 2 min old . Holders may have changed since." in found.text
        assert "Last known: " in found.text
        assert path != DEVICE or "last known: healthy" in found.text
        for words in ("answered 2 min ago", "and fresh", "2 min ago"):
            assert words not in found.text


async def test_a_device_page_begins_with_what_it_is_and_its_holder_then_sources_then_the_past(
    client: Client, world: SimpleNamespace, story: Past
) -> None:
    text = (await read_page(client, DEVICE)).text
    order = [
        *("a whole device of nvidia.com/gpu", "Held by 1 pod.", "llama-0", "What it is", "Who says so"),
        *("Who had it", "Who held it at", "History of this node begins"),
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


async def test_who_held_it_at_a_time_is_asked_on_a_page_of_a_device(
    client: Client, world: SimpleNamespace, story: Past
) -> None:
    expected = {
        DEVICE: {"resource": GPU, "device": "GPU-0"},
        "/devices/nvidia.com/gpu.shared/GPU-7": {"device": "GPU-7"},
        CLAIM: {"resource": "gpu.example.com", "device": "pool-a/gpu-0"},
    }
    for path, names in expected.items():
        found = await read_page(client, path)
        fields = [field for tag, field in found.elements if tag == "input"]
        assert {f["name"]: f["value"] for f in fields if f.get("type") == "hidden"} == names
        assert [f["name"] for f in fields if f.get("type") != "hidden"] == ["at"]
        assert ("/history", "get") in [(f.get("action"), f.get("method")) for _, f in found.elements]
    query = f"resource={GPU}&device=GPU-0&at={START - 3600 + 100}"
    await has(client, f"/history?{query}", "Who held what", "there was 1 holding.")


@pytest.mark.parametrize(
    ("ok", "reasons", "words"),
    [
        ((True, True), (), ("Divided into 2 devices, 1 held.", "healthy · the kubelet offers it")),
        (
            (False, False),
            ("XID 79", "XID 79"),
            ("Unhealthy; divided into 2 devices, 1 held.", "unhealthy : XID 79 since 22:26:03 15 min"),
        ),
        (
            (False, True),
            ("XID 79", ""),
            ("1 of 2 parts unhealthy; divided into 2 devices, 1 held.", "GPU-7::0: XID 79 since 22:26:03"),
        ),
    ],
)
@pytest.mark.usefixtures("past")
async def test_a_physical_device_has_one_health_and_the_colour_of_the_worst(
    client: Client,
    world: SimpleNamespace,
    ok: tuple[bool, bool],
    reasons: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    shared = f"{GPU}.shared"
    reports = {
        f"GPU-7::{i}": AdvertisedDevice(not reason, reason, START - 900) for i, reason in enumerate(reasons)
    }
    advertised = scene.reported(reports, resource=shared) if reports else NO_REPORTS
    devices = tuple(
        replace(d, allocatable=ok[int(d.key.device[-1])]) if d.parent else d for d in world.snapshot.devices
    )
    world.publish(replace(world.snapshot, devices=devices), advertised=advertised)
    found = await has(client, "/devices/nvidia.com/gpu.shared/GPU-7", *words)
    severities = {"ok", "critical"} & {word for value in found.values("class") for word in value.split()}
    assert ("critical" in severities) == (not all(ok))


async def test_a_holder_that_is_not_confirmed_is_marked_on_every_page(
    client: Client, world: SimpleNamespace
) -> None:
    await has(client, "/", "ml / llama-0")
    pods = (("ml", "llama-0"), ("dra", "shared-1"))
    doubts = dict.fromkeys(pods, Doubt("its uid is unknown", START - 9, START + 60))
    world.publish(replace(world.snapshot, unconfirmed=doubts))
    words = "not confirmed since the kubelet restarted"
    assert (await has(client, "/", words)).text.count(words) == 3
    for path in (DEVICE, POD, CLAIM):
        found = await has(client, path, words, f"{words} at 22:40:54 : List leaves the pod out, and its uid")
        assert any(value.startswith("answer held warning") for value in found.values("class"))


async def test_a_physical_device_that_another_scheduler_chose_is_shown_or_said_to_be_unprovable(
    client: Client, world: SimpleNamespace
) -> None:
    def publish(devices: PodDevices) -> None:
        pod = PodIdentity("ml", "llama-0", "uid-1", devices=devices)
        world.publish(world.snapshot, pods={pod.key: pod})

    chosen = tuple([ChosenDevice("HAMi", "trainer", gpu) for gpu in ("GPU-4", "GPU-5")])
    publish(PodDevices(chosen=chosen))
    for path in ("/", POD):
        await has(client, path, "uses GPU-4")
    await has(client, DEVICE, "HAMi chose GPU-4 for it")
    publish(PodDevices(unreadable="volcano.sh/gpu-index"))
    for path in ("/", POD):
        await has(client, path, "physical device not provable")
    await has(client, DEVICE, "is not provable: the pod's annotation volcano.sh/gpu-index cannot be read")


async def test_a_device_that_is_no_longer_offered_says_so_first(
    client: Client, world: SimpleNamespace
) -> None:
    gone = replace(world.snapshot.devices[4], allocatable=False, no_longer_offered_since=START - 60)
    world.publish(replace(world.snapshot, devices=(*world.snapshot.devices[:4], gone)))
    found = await has(client, device_link(*gone.key), "No longer offered; held by no pod.")
    assert "answer unhealthy critical" in found.values("class")


async def test_a_pod_with_a_broken_device_says_so_first_and_in_its_colour(
    client: Client, world: SimpleNamespace
) -> None:
    found = await has(client, "/pods/batch/render-1", "render-1 Its device is unhealthy; it holds 1 device.")
    assert "answer held critical" in found.values("class")
    assert "answer held ok" in (await read_page(client, "/pods/trading/engine-0")).values("class")


# --- pods and claims ------------------------------------------------------------------------------------


async def test_a_pod_page_has_devices_cpus_memory_claims_and_their_nodes(
    client: Client, world: SimpleNamespace
) -> None:
    identity = PodIdentity(
        *("ml", "llama-0", "uid-1", "Running", Workload("StatefulSet", "llama"), "high"),
        labels=(("team", "ml"),),
        created=START - 700,
        static=True,
    )
    world.publish(pods={identity.key: identity})
    await has(
        client,
        POD,
        "ml / llama-0 It holds 2 devices.",
        "Workload StatefulSet llama Phase Running Created 22:29:23 11 min Priority class high",
        "Kind static pod, from a file of the kubelet team ml label",
        "trainer container, NUMA 0",
        "GPU-0 nvidia.com/gpu healthy",
        "aligned: everything is on NUMA node 0.",
        "NUMA node 1 nothing of this pod",
    )
    memory = "Pinned memory 200 MiB memory on NUMA 0"
    await has(
        client,
        "/pods/trading/engine-0",
        "It holds 4 exclusive CPUs and 200 MiB memory.",
        "Exclusive CPUs 1-3,8",
        memory,
    )
    words = "It holds 1 device; its health is not reported."
    await has(client, "/pods/dra/shared-1", words, "NUMA alignment unknown for pool-a/gpu-0.")
    claim = "pool-a/gpu-0 gpu.example.com claim shared health not reported 22:31:03 10 min"
    await has(client, "/pods/dra/shared-1", claim)


async def test_an_administrator_is_shown_and_holds_nothing(client: Client, world: SimpleNamespace) -> None:
    admin = ClaimHolding(Holder("ops", "watcher", "main"), "ops", "watch", admin=True)
    world.publish(scene.snapshot(scene.claimed("gpu-0", admin)))
    await has(client, "/", "ops / watcher claim watch for administration: not a holder main")
    page = await has(
        client,
        "/pods/ops/watcher",
        "It holds nothing; it uses 1 device for administration.",
        "For administration, without holding: pool-a/gpu-0",
    )
    assert CLAIMED in page.values("href")
    await has(
        client,
        CLAIMED,
        "Health not reported; held by no pod.",
        "for administration: ops / watcher container main , claim watch",
        "It is also used for administration by ops/watcher (container main) through the claim ops/watch",
    )


async def test_what_a_container_asked_by_and_the_slice_are_on_the_pages(
    client: Client, world: SimpleNamespace
) -> None:
    one = ClaimHolding(Holder("ml", "train-0", "main"), "ml", "mine", "s-1", requested_as=GPU, admin=False)
    published = PublishedDevice(
        PublishedName("gpu.example.com", "pool-a", "gpu-0"),
        model="H100",
        capacity=(("memory", "80Gi"),),
        taints=(Taint("example.com/xid", "79", "NoExecute", START - 60),),
        attributes=(("cores", "7"),),
    )
    device = scene.claimed("gpu-0", one, published=published, allocatable=False, numa_nodes=(1,))
    spare = scene.claimed("half", parent="pool-a/gpu-0", alternative=True)
    world.publish(scene.snapshot(device, spare, published=["gpu.example.com"]))
    page = await has(
        client,
        "/",
        "H100 DRA driver gpu.example.com pool pool-a memory 80Gi taint example.com/xid=79:NoExecute",
        f"ml / train-0 claim mine , share s-1 requested as {GPU} main",
        "unhealthy, held taint example.com/xid=79:NoExecute since 22:40:03",
        "1 and 1 alternative 1 unhealthy of 1 0 0",
    )
    assert page.text.index("pool-a/ gpu-0") < page.text.index("pool-a/ half")
    await has(
        client,
        CLAIMED,
        "a device of the DRA driver gpu.example.com Tainted; held by 1 pod through 1 claim.",
        "Capacity memory 80Gi Taint example.com/xid=79:NoExecute cores 7 NUMA node 1 published by its driver",
        f"container main , claim mine , share s-1 , requested as {GPU}",
    )
    words = f"pool-a/gpu-0 gpu.example.com , requested as {GPU} claim mine , share s-1 unhealthy"
    await has(client, "/pods/ml/train-0", words)


async def test_the_page_of_a_device_without_a_slice_says_which_right_is_missing(
    client: Client, world: SimpleNamespace
) -> None:
    problem = "free claimed devices are unknown: the right to list resourceslices is missing"
    world.publish(sources=(SourceStatus("slices", up=False, problem=problem),))
    await has(client, CLAIMED, problem)


async def test_a_recreated_pod_has_its_lives_apart_with_links_between(
    client: Client, world: SimpleNamespace, story: Past
) -> None:
    holder = Holder("ml", "llama-0", "trainer", "uid-1")
    world.publish(scene.snapshot(scene.device("GPU-0", holder, numa=(0,))))
    words = ("Made anew after it: life 2", "Before it: life 1", "uid uid-1")
    found = await has(client, POD, *words)
    assert found.text.index("Life 2 on this node now") < found.text.index("Life 1 uid uid-0")
    targets = {value[1:] for value in found.values("href") if value.startswith("#uid-")}
    assert targets
    assert targets <= set(found.values("id"))
    device = await read_page(client, DEVICE)
    anchors = {v.partition("#")[2] for v in device.values("href") if v.startswith(f"{POD}#")}
    assert anchors == targets, "a device's page leads to the right life"


async def test_a_claim_page_has_holders_and_history_of_its_pool(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    keys = [DeviceKey("gpu.example.com", f"{pool}/gpu-0") for pool in ("pool-a", "pool-b")]
    holders = [Holder("dra", pod, "a") for pod in ("shared-1", "not-here")]
    past.look()
    past.look(*((key_of(*one), HoldingFacts()) for one in zip(keys, holders, strict=True)))
    world.now = past.life.wall
    world.publish()
    for path in (CLAIM, CLAIMED):
        found = await has(
            client,
            path,
            "pool-a/gpu-0 a device of the DRA driver gpu.example.com Health not reported; held by 2 pods",
            "dra / shared-1 container a , claim shared since 22:31:03",
            "dra / shared-2 container a , claim shared since before 22:31:03",
            "CDI example.com/gpu=claim-1",
        )
        assert "not-here" not in found.text
        assert len(bars(found)) == 1
    await has(
        client, CLAIM.replace("pool-a", "pool-b"), "It is not on this node now; last held by dra/not-here"
    )


# --- history --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", ("3 holdings, the newest first.", "research / evaluation-run-9")),
        (
            f"?at={START - 3600 + 8}&device=GPU-0",
            ("Who held what", "there were 0 holdings, and 1 possible.", "perhaps"),
        ),
        (f"?at={START - 3600 + 100}", ("there was 1 holding.",)),
        (f"?at={START - 3600 + 650}", (": the kubelet did not answer.",)),
        (
            "?at=-3h",
            (
                "there were no known holdings: there was a gap in observation",
                ": the record begins later.",
            ),
        ),
        (
            f"?at={START + 7200}",
            ("This moment is 2 h in the future.", "in the future: its holdings are unknown"),
        ),
        (f"?from={START + 60}&to={START + 3600}", ("This range begins",)),
        (f"?from={START - 60}&to={START + 3600}", ("This range ends",)),
    ],
)
async def test_the_history_page_of_a_range_and_of_a_moment(
    client: Client, story: Past, query: str, words: tuple[str, ...]
) -> None:
    await has(client, f"/history{query}", *words)


@pytest.mark.parametrize(
    ("query", "words", "link"),
    [
        ("pod=LLAMA", ("2 holdings, the newest", "LLAMA is part of the names of 1 pod:"), "pod=llama-0"),
        ("device=pu-0", ("3 holdings", "pu-0 is part of the names of 1 device:"), "device=GPU-0"),
        ("resource=gpu", ("3 holdings", "Resources with the name gpu after"), "resource=nvidia.com%2Fgpu"),
        ("device=GPU-9", ("No holdings", "History has no device GPU-9", "Did you mean:"), "device=GPU-0"),
        ("pod=%25", ("No holdings", "History has no pod %, and none with this part in its name."), ""),
    ],
)
async def test_a_part_of_a_name_is_found_and_links_to_the_whole_name(
    client: Client, story: Past, query: str, words: tuple[str, ...], link: str
) -> None:
    found = await has(client, f"/history?{query}", *words)
    assert f"/history?{link}" in found.values("href") if link else True


async def test_a_range_without_holdings_names_its_bounds(client: Client, story: Past) -> None:
    found = await read_page(client, "/history?pod=none")
    assert re.search(r"No holdings found between \S+ \S+ \S+ and \S+ UTC\.", found.text)


async def test_an_invalid_history_query_keeps_the_input_beside_the_problem(client: Client) -> None:
    path = "/history?from=yesterday&device=GPU-0&at=%3Cb%3E&limit=7"
    found = await has(client, path, "found 'yesterday', expected", status=400)
    assert {"yesterday", "GPU-0", "<b>", "7"} <= set(found.values("value"))
    assert found.values("aria-invalid") == ["true", "true"]
    described = set(found.values("aria-describedby"))
    assert {"p-from", "p-at"} <= described <= set(found.values("id"))
    await has(client, "/history?q=x", "'q'", status=400)
    await read_page(client, "/history?cursor=broken", 400)


async def test_history_is_paged(client: Client, story: Past) -> None:
    path, seen, found = "/history?limit=1", list[str](), PageReader()
    while path:
        found = await read_page(client, path)
        seen += [v for v in found.values("data-key") if re.fullmatch("h[0-9]+", v)]
        path = next((v for v in found.values("href") if "cursor=" in v), "")
    assert seen == ["h3", "h2", "h1"]
    assert "First page" in found.text


def drawn_from(found: PageReader) -> str:
    """When the drawing begins, by its caption."""
    caption = next(i for i, (tag, _) in enumerate(found.elements) if tag == "figcaption")
    return next(times["datetime"] for tag, times in found.elements[caption:] if tag == "time")


async def test_the_drawing_begins_where_it_is_whole_and_says_so(client: Client, past: Past) -> None:
    def held(device: str, pod: str) -> tuple[HoldingKey, HoldingFacts]:
        return HoldingKey(GPU, device, "ml", pod, "main"), HoldingFacts()

    past.look()
    lasts = held("GPU-5", "lasts-0")
    for number in range(12):
        past.look(lasts, held(f"GPU-{number % 3}", f"run-{number}"))
    began = past.life.wall - 6 * 5.0
    found = await has(
        client, "/history?limit=6", "The drawing begins at", "it has all, also those that began"
    )
    # The six newest, and what was held already as the oldest of them began.
    assert len(bars(found)) == 8
    assert [v for v in found.values("aria-label") if "lasts-0" in v]
    assert drawn_from(found) == rfc3339(began)
    path = next(v for v in found.values("href") if "cursor=" in v)
    found = await has(client, path, "The drawing begins at", "and ends at")
    assert len(bars(found)) == 7
    assert [v for v in found.values("aria-label") if "lasts-0" in v]
    whole = await has(client, "/history?limit=200")
    assert len(bars(whole)) == 13
    assert "The drawing begins" not in whole.text
    moment = await has(client, f"/history?at={past.life.wall - 1}", "only the holdings of this moment")
    assert len(bars(moment)) == 2 + 1


async def test_a_drawing_has_a_limit_and_stays_whole(
    client: Client, past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.web.pages.past.BARS", 4)
    past.look()
    for number in range(9):
        key = HoldingKey(GPU, "GPU-0", "ml", f"run-{number}", "main")
        past.look((key, HoldingFacts()))
    for path in ("/history", DEVICE):
        found = await has(client, path, "The drawing begins at")
        # Two more may have ended, or ended, as the first of them began.
        assert len(bars(found)) == 4 + 2


async def test_a_history_that_does_not_answer_is_503(
    client: Client, world: SimpleNamespace, past: Past
) -> None:
    past.error = "no answer within 5 s: is the disk slow?"
    answer = await client.get("/history")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    assert "no answer within 5 s: is the disk slow?" in await answer.text()
    async with TestClient(TestServer(build(replace(world.site, history=None)))) as without:
        assert (await without.get("/history")).status == 503
        assert (await without.get(DEVICE)).status == 200


async def test_equal_queries_are_one_and_few_run_at_once_whoever_disconnects(
    world: SimpleNamespace, past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    async def four_run() -> bool:
        return running[0] == 4

    monkeypatch.setattr(past, "find", slowly)
    async with TestClient(TestServer(build(site))) as client:
        gone = asyncio.create_task(client.get(DEVICE))
        same = [asyncio.create_task(client.get(DEVICE)) for _ in range(20)]
        others = [asyncio.create_task(client.get(f"/pods/ml/p-{i}")) for i in range(20)]
        await until("four queries run", four_run)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        go_on.set()
        answers = await asyncio.gather(*same, *others)
    assert [answer.status for answer in answers] == [200] * 20 + [404] * 20
    assert running[1] == 4
    assert len([q for q in past.asked if q.device]) == 1


async def test_history_at_a_moment_lists_the_devices_that_no_pod_held(
    client: Client, story: Past, world: SimpleNamespace
) -> None:
    resource = "example.com/gpu"
    known: dict[str, bool | None] = {f"free-{number}": True for number in range(3)}
    story.life.known = known | {"<b>ill": False}
    story.look()
    world.now = at = story.life.wall
    world.publish()
    found = await has(
        client,
        f"/history?at={at}",
        "No pod held 4 devices: 3 free, 1 unavailable.",
        "<b>ill",
        "unhealthy",
        "free-2",
    )
    assert device_link(resource, "free-0") in found.values("href")
    await has(client, f"/history?at={at}&device=free-1", "No pod held 1 device: 1 free.")
    await has(client, f"/history?at={at}&limit=2", "No pod held 4 devices: ", "Further devices")
    page = await read_page(client, f"/history?at={at}&pod=llama-0")
    assert "No pod held" not in page.text
    story.life.known = None
    story.look()
    world.now = story.life.wall
    world.publish()
    await has(client, f"/history?at={story.life.wall}", "No pod held 4 devices: 4 unknown.")
