"""The OpenAPI document is true to the answers: schemathesis asks a running exporter whatever the document
allows, and much that it does not.
"""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest
import requests
import schemathesis
from schemathesis import Case, CheckFunction, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.core.result import Ok
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.checks import positive_data_acceptance

from harness import owners
from harness.node import Node, Pod
from harness.nodes import running_node
from harness.openapi_reference import DOCUMENT
from harness.simulated import SimulatedNode
from harness.stack import Stack
from harness.waiting import LIMIT, until
from simulator.model import ClaimDevice, ClaimSpec, ContainerSpec, PodSpec

EXAMPLES = int(os.environ.get("DEVICELENS_API_EXAMPLES", "25"))
"""For each address, besides those that are worked out."""

pytestmark = pytest.mark.timeout(300)

_CONFIG = SchemathesisConfig.from_dict(
    {
        "seed": 5,
        "generation": {
            "mode": "all",
            "max-examples": EXAMPLES,
            "deterministic": True,
            "database": "none",
            # A parameter that the document does not name is refused, which no schema can say of a query.
            "allow-extra-parameters": False,
        },
    }
)
SCHEMA = schemathesis.openapi.from_path(DOCUMENT, config=_CONFIG)
PATHS = sorted(set(SCHEMA) - {"/api/v1/events"})


def _make_sense(case: Case[Any]) -> None:
    """What the document says in words alone: which parameters exclude or need one another."""
    positive = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    query = case.query
    if case.path != "/api/v1/history" or not query or not positive:
        return
    given = {name for name, value in query.items() if str(value).strip()}
    for excluded in ("from", "to") if "at" in given else ("to",) if "from" in given else ():
        query.pop(excluded, None)
    if not {"pod", "uid", "device"} & given:
        query.pop("container", None)


async def _inhabit(stack: Stack, node: Node) -> None:
    """Devices, held, free and failed; a past; in a simulation also CPUs and a claim that pods share."""
    stack.add_devices("cherry", "classic", "zero", "light")
    await stack.allocatable_is(4)
    # An allocation counts if the exporter has seen the device without it.
    await stack.metric_is(4, "devicelens_resource_allocatable_devices")
    await node.add_pod(Pod("gone", {"main": {stack.resource: 1}}))
    await stack.metric_is(1, "devicelens_allocations_total")
    for name in ("train-0", "train-1"):
        await _train(name, stack, node)
    await stack.metric_is(3, "devicelens_allocations_total")
    await node.delete_pod("gone")
    await stack.metric_is(1, "devicelens_releases_total")
    stack.remove_devices(next(held.device for held in await stack.held()))

    async def known() -> bool:
        counts = (await owners.get_json(stack.url, "/api/v1/status"))["counts"]
        claimed = counts["claimed_devices"] or not isinstance(node, SimulatedNode)
        return bool(counts["anomalies"] and claimed and counts["free"])

    await until("all of it is known", known, limit=node.limit)


async def _train(name: str, stack: Stack, node: Node) -> None:
    resources = {stack.resource: 1}
    if not isinstance(node, SimulatedNode):
        await node.add_pod(Pod(name, {"main": resources}))
        return
    shared = ClaimSpec("shared", (ClaimDevice("gpu.example.com", "pool-a", "gpu-0", ("example.com/gpu=a",)),))
    container = ContainerSpec("main", resources, exclusive_cpus=1, claims=(shared,))
    await node.control.add_pod(PodSpec(name, containers=(container,)))


class _Place(threading.Thread):
    """The processes in a loop of their own, for schemathesis is not of asyncio."""

    def __init__(self) -> None:
        super().__init__(name="place", daemon=True)
        self.url = ""
        self.failure: BaseException | None = None
        self.ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 -- told to the one who waits
            self.failure = error
        finally:
            self.ready.set()

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with running_node() as node:
            stack = Stack(node, "--stale-after", "1h", "--poll.interval", "500ms")
            stack.exporter.arguments += ("--plugin.url", f"unix:{stack.plugin_socket}")
            async with stack:
                await _inhabit(stack, node)
                self.url = stack.url
                self.ready.set()
                await self._over.wait()

    def end(self) -> None:
        if self._loop is not None and self._over is not None:
            with suppress(RuntimeError):  # it is closed already
                self._loop.call_soon_threadsafe(self._over.set)
        self.join(30)
        if self.failure is not None:
            raise self.failure


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    place = _Place()
    place.start()
    assert place.ready.wait(200)
    try:
        if not place.failure:
            yield place.url
    finally:
        place.end()


def _check(case: Case[Any], url: str) -> None:
    _make_sense(case)
    if len(case.as_curl_command()) > 8000:
        return  # it is refused before it is read, and not by the API
    # A part of an id may be one of several's, which no schema says.
    excluded: list[CheckFunction] = []
    if case.path == "/api/v1/explain":
        excluded.append(positive_data_acceptance)
    case.call_and_validate(base_url=url, excluded_checks=excluded)


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_as_the_document_says(path: str, url: str) -> None:
    """The cases are generated here: `SCHEMA.parametrize` generates those of all paths at collection."""
    load_all_checks()
    found = list(
        get_all_tests(schema=SCHEMA.include(path=path), test_func=_check, settings=None, given_kwargs={})
    )
    assert found
    for result in found:
        assert isinstance(result, Ok)
        _, test = result.ok()
        test(url=url)


def test_while_the_kubelet_says_the_same_a_client_is_told_how_fresh_that_is_and_nothing_else(
    url: str,
) -> None:
    first = requests.get(f"{url}/api/v1/devices", timeout=20)
    taken_at = datetime.fromisoformat(first.headers["Devicelens-Taken-At"])
    assert taken_at == datetime.fromisoformat(first.json()["taken_at"])
    end = time.monotonic() + LIMIT
    while True:
        known = {"If-None-Match": first.headers["ETag"]}
        again = requests.get(f"{url}/api/v1/devices", headers=known, timeout=20)
        assert (again.status_code, again.content) == (304, b"")
        if datetime.fromisoformat(again.headers["Devicelens-Taken-At"]) > taken_at:
            break
        assert time.monotonic() < end
        time.sleep(0.05)
