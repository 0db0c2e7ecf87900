"""The status page as it is served, and its cache."""

from types import SimpleNamespace

import pytest

from exporter.mapping.model import (
    Holder,
    Snapshot,
)
from exporter.mapping.state import Failure
from exporter.views.query import PageQuery
from exporter.web.pages.status import status_page
from harness import scene
from harness.page_reader import Client, read_page
from harness.scene import START

FAILURE = Failure("List", "UNAVAILABLE", "there is no socket", START - 61)


async def test_the_page_has_every_fact_of_the_mapping(client: Client, world: SimpleNamespace) -> None:
    world.now += 3
    text = (await read_page(client, "/")).text
    for words in (
        "The mapping is fresh. The kubelet answered 3 s ago.",
        "Refreshes on: timer every 5s",
        "unhealthy, held batch/render-1 (blender) holds nvidia.com/gpu GPU-2 , which is unhealthy.",
        "Devices Held Free Unavailable gpu.example.com 1 1 ? ? nvidia.com/gpu 7 1 unhealthy of 3 4 0",
        "10 devices",
        "GPU-0 nvidia.com/gpu held ml / llama-0 trainer 22:31:03 10 min 0",
        "GPU-2 nvidia.com/gpu unhealthy, held batch / render-1 blender 22:31:03 10 min 0",
        "GPU-3 nvidia.com/gpu free",
        "GPU-7 ::0 nvidia.com/gpu.shared held inference / vllm-0 server before 22:31:03 over 10 min 1",
        "pool-a/ gpu-0 DRA driver gpu.example.com pool pool-a CDI example.com/gpu=claim-1",
        "gpu.example.com DRA held by 2 health not reported",
        "dra / shared-1 claim shared a 22:31:03 10 min dra / shared-2 claim shared a before 22:31:03 over",
        "trading / engine-0 main 1-3,8 4 CPUs 200 MiB memory on NUMA 0 0",
        "devicelens 1.2.3",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("changes", "age", "words"),
    [
        (
            {"failure": FAILURE},
            20,
            (
                "The kubelet does not answer as it should. This mapping is 20 s old . Holders may have "
                "changed since. It is withdrawn from Prometheus once older than 1 min. "
                "List has failed since 22:40:02 UTC : UNAVAILABLE: there is no socket"
            ),
        ),
        (
            {"failure": FAILURE},
            120,
            (
                "Do not trust this mapping. This mapping is 2 min old . Holders may have changed since. It "
                "is older than 1 min, and withdrawn from Prometheus. "
                "List has failed since 22:40:02 UTC : UNAVAILABLE: there is no socket"
            ),
        ),
        ({}, 120, "Do not trust this mapping. This mapping is 2 min old ."),
        (
            {"failure": FAILURE, "snapshot": Snapshot(), "taken_at": None},
            0,
            (
                "There is no mapping yet. The kubelet has not answered since the exporter started. "
                "List has failed since 22:40:02 UTC : UNAVAILABLE: there is no socket"
            ),
        ),
    ],
    ids=["ageing", "stale and failing", "stale", "unknown"],
)
async def test_a_banner_says_how_fresh_the_mapping_is(
    client: Client, world: SimpleNamespace, changes: dict[str, object], age: float, words: str
) -> None:
    world.publish(**{"snapshot": world.snapshot} | changes)
    world.now += age
    text = (await read_page(client, "/")).text
    assert words in text
    known = "taken_at" not in changes
    assert ("GPU-0 nvidia.com/gpu held" in text, "0 devices" in text) == (known, known)


async def test_an_empty_node_says_so(client: Client, world: SimpleNamespace) -> None:
    world.publish(Snapshot())
    found = await read_page(client, "/")
    assert "No device plugin has registered with this node's kubelet, and no pod holds a device" in found.text
    assert "form" not in found.tags
    world.publish(Snapshot(complete=False), notes=("this kubelet does not serve GetAllocatableResources",))
    text = (await read_page(client, "/")).text
    assert "this kubelet does not serve GetAllocatableResources" in text
    assert "This kubelet does not report free devices." in text


async def test_the_address_filters_the_page(client: Client) -> None:
    found = await read_page(client, "/?q=llama&state=held")
    assert "2 of 10 devices" in found.text
    assert "GPU-1 nvidia.com/gpu" in found.text
    assert "GPU-2 nvidia.com/gpu" not in found.text
    assert "gpu.example.com DRA" not in found.text
    nothing = await read_page(client, "/?device=none&namespace=gone&per_page=7")
    assert "No device matches. Show all devices" in nothing.text
    assert {"none", "gone", "7"} <= set(nothing.values()), "the form keeps the input"
    refused = (await read_page(client, "/?state=%3Cb%3E&q=", 400)).text
    assert "query parameter 'state': found '<b>', expected one of held, free, unhealthy" in refused


async def test_an_unknown_address_has_a_page_for_browsers(client: Client) -> None:
    text = (await read_page(client, "/%3Cscript%3E%E2%80%AE", 404)).text
    assert "This exporter serves nothing at /<script>\\u202e." in text
    plain = await client.get("/nothing", headers={"Accept": "*/*"})
    assert (plain.status, await plain.text()) == (404, "nothing is at /nothing\n")


async def test_many_devices_come_in_pages_with_counts_of_all(client: Client, world: SimpleNamespace) -> None:
    holder = Holder("ns", "pod", "c")
    world.publish(
        scene.snapshot(
            *(scene.device(f"dev-{i:04}", *[holder] * (i % 2), resource="r/x") for i in range(450))
        )
    )
    first = await read_page(client, "/")
    assert "1 to 200 of 450 devices Page 1 of 3 Next" in first.text
    assert "r/x 450 225 225 0" in first.text
    assert first.text.count(" r/x held ") == 100
    last = await read_page(client, "/?page=3")
    assert "401 to 450 of 450 devices Previous Page 3 of 3" in last.text
    assert "dev-0449" in last.text
    beyond = await read_page(client, "/?page=99")
    assert "Page 3 of 3" in beyond.text, "beyond the end is the last page"
    filtered = await read_page(client, "/?state=held&per_page=100&page=2")
    assert "101 to 200 of 225 of 450 devices" in filtered.text
    assert "/?state=held&page=3&per_page=100" in filtered.values()


async def test_a_page_is_rendered_once_for_each_address_and_mapping(
    client: Client, world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[PageQuery] = []

    def count(moment: object, query: PageQuery, **rest: object) -> object:
        rendered.append(query)
        return status_page(moment, query, **rest)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] -- as it came

    monkeypatch.setattr("exporter.web.pages.handlers.status_page", count)
    world.publish()
    for encoding in ("gzip", "identity", "gzip"):
        await client.get("/?q=&namespace=ml", headers={"Accept-Encoding": encoding})
    assert len(rendered) == 1
    await client.get("/")
    assert len(rendered) == 2
    world.now += 7
    assert "answered 7 s ago" in (await read_page(client, "/")).text
    assert len(rendered) == 2, "only ages changed"
    world.publish()
    assert "GPU-0" in await (await client.get("/")).text()
    assert len(rendered) == 3, "the mapping changed"
    world.now += 86400
    assert "28 Oct 22:31" in (await read_page(client, "/")).text
    assert len(rendered) == 4, "on another day clock times have a date"
    for i in range(20):
        await client.get(f"/?q={i}")
    assert "GPU-0" in await (await client.get("/")).text()
    assert len(rendered) == 25, "the cache is bounded"
