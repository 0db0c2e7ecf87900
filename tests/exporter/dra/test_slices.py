"""exporter.dra.slices against the simulated API server. tests/exporter/pods/test_api_server.py tests lists,
watches, and refusals in general.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from exporter.apiserver.client import ApiServerError, pause_after
from exporter.apiserver.kubeconfig import ApiServerAccess
from exporter.dra import slices
from exporter.dra.slices import SliceWatch
from harness.waiting import background, until_holds
from simulator import SimulatedKubelet
from simulator.apiserver import ApiFaults, ApiServer
from simulator.dra_objects import SLICES, device, resource_slice

DRIVER = "gpu.example.com"


class Watching:
    """A SliceWatch that runs, and how often it reported a change."""

    def __init__(self, source: SliceWatch) -> None:
        self.source = source
        self.changes = 0
        source.bind(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    @property
    def names(self) -> set[str]:
        return {name.device for name in self.source.devices.published}

    async def has(self, *names: str) -> None:
        await until_holds(lambda: self.names == set(names) and self.source.status.up, f"devices {names}")


@asynccontextmanager
async def watching(url: str, node: str = "sim-node") -> AsyncGenerator[Watching]:
    its = Watching(SliceWatch(ApiServerAccess(url), node))
    async with background(its.source.run()):
        yield its


def _publish(
    kubelet: SimulatedKubelet, *names: str, node: str = "", generation: int = 1, name: str = "s"
) -> None:
    document = resource_slice(
        DRIVER, node or kubelet.node_name, map(device, names), generation=generation, name=name
    )
    if kubelet.objects.get(SLICES, name) is None:
        kubelet.objects.create(SLICES, document)
    else:
        kubelet.objects.update(SLICES, document)


def _pauses(monkeypatch: pytest.MonkeyPatch, short: int = 0) -> list[float]:
    """The pauses after failures: the first `short` ones end at once, the others never."""
    pauses: list[float] = []

    def pause(error: ApiServerError, failures: int, *, seldom: float) -> float:
        pauses.append(pause_after(error, failures, seldom=seldom))
        return 0.0 if len(pauses) <= short else 1e6

    monkeypatch.setattr(slices, "pause_after", pause)
    return pauses


async def test_slices_of_the_node_are_listed_and_watched(kubelet: SimulatedKubelet, api: ApiServer) -> None:
    _publish(kubelet, "gpu-0")
    _publish(kubelet, "gpu-7", node="another", name="other")
    async with watching(api.url, kubelet.node_name) as its:
        await its.has("gpu-0")
        assert its.source.devices.drivers == {DRIVER}
        _publish(kubelet, "gpu-0", "gpu-1", generation=2)
        await its.has("gpu-0", "gpu-1")
        before = its.changes
        api.drop_watches()
        _publish(kubelet, "gpu-2", generation=3)
        await its.has("gpu-2")
        assert its.changes > before
        assert api.calls[f"{SLICES}.list"] == 1


async def test_slices_that_do_not_return_expire(
    kubelet: SimulatedKubelet, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.mapping.slices.RETURN_WITHIN", 0.05)
    _publish(kubelet, "gpu-0")
    async with watching(api.url, kubelet.node_name) as its:
        await its.has("gpu-0")
        kubelet.objects.delete_slices(kubelet.node_name)
        await its.has()
        assert its.source.devices.drivers == frozenset()


async def test_without_the_right_the_message_names_it_and_requests_are_rare(
    kubelet: SimulatedKubelet, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.faults = ApiFaults(forbidden=frozenset({SLICES}))
    pauses = _pauses(monkeypatch, short=1)
    async with watching(api.url, kubelet.node_name) as its:
        await until_holds(lambda: len(pauses) == 2, "two pauses")
        assert its.source.status.name == "slices"
        assert not its.source.status.up
        assert "may not list and watch resourceslices: see deploy/components/dra" in its.source.status.problem
        # An API server that has just started denies what it allows a moment later.
        assert pauses[0] < 10
        assert 60 <= pauses[1] <= 90
        assert its.source.devices.drivers == frozenset()


@pytest.mark.parametrize(("expected", "level"), [(True, "WARNING"), (False, "INFO")])
async def test_a_missing_right_is_a_failure_where_slices_were_configured(
    expected: bool,
    level: str,
    api: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    api.faults = ApiFaults(forbidden=frozenset({SLICES}))
    pauses = _pauses(monkeypatch)
    async with background(SliceWatch(ApiServerAccess(api.url), "n", expected=expected).run()):
        await until_holds(lambda: pauses)
    assert [one.levelname for one in caplog.records if "cannot be watched" in one.getMessage()] == [level]


async def test_devices_stay_known_while_the_api_server_is_away(
    kubelet: SimulatedKubelet, api: ApiServer
) -> None:
    _publish(kubelet, "gpu-0")
    async with watching(api.url, kubelet.node_name) as its:
        await its.has("gpu-0")
        api.faults = ApiFaults(status=503)
        api.drop_watches()
        await until_holds(lambda: not its.source.status.up)
        assert its.names == {"gpu-0"}
        assert "503" in its.source.status.problem or "broke off" in its.source.status.problem
        api.faults = ApiFaults()
        _publish(kubelet, "gpu-1", generation=2)
        await its.has("gpu-1")
        assert its.source.status.problem == ""


async def test_an_incomplete_pool_is_said(kubelet: SimulatedKubelet, api: ApiServer) -> None:
    document = resource_slice(DRIVER, kubelet.node_name, [device("gpu-0")], count=2)
    kubelet.objects.create(SLICES, document)
    async with watching(api.url, kubelet.node_name) as its:
        await until_holds(lambda: its.source.status.up)
        assert "not complete" in its.source.status.problem


@asynccontextmanager
async def _serving(*versions: str) -> AsyncGenerator[tuple[str, list[str]]]:
    """An API server of these versions, and the paths that were requested."""
    paths: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        if request.path.split("/")[3] not in versions:
            return web.Response(status=404, text="404 page not found\n")
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
        facts = {"attributes": {"model": {"string": "old"}}}
        spec = {
            "driver": DRIVER,
            "nodeName": "sim-node",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "basic": facts}],
        }
        item = {"metadata": {"name": "s", "resourceVersion": "1"}, "spec": spec}
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [item]})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", paths
    finally:
        await runner.cleanup()


async def test_an_older_cluster_serves_an_older_version() -> None:
    async with _serving("v1beta1") as (url, paths), watching(url) as its:
        await its.has("gpu-0")
        (found,) = its.source.devices.published.values()
        assert found.model == "old"
        group = "/apis/resource.k8s.io"
        assert list(dict.fromkeys(paths)) == [
            f"{group}/{version}/resourceslices" for version in ("v1", "v1beta2", "v1beta1")
        ]


async def test_a_cluster_without_the_api_is_asked_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = _pauses(monkeypatch)
    async with _serving() as (url, paths), watching(url) as its:
        await until_holds(lambda: pauses)
        assert len(paths) == 3
        assert pauses[0] >= 60
        assert "does not serve" in its.source.status.problem


@pytest.mark.parametrize("status", [200, 403])
async def test_a_deeply_nested_answer_is_a_failure_like_any_other(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b'{"metadata":{},"x":' + b"[" * 50_000, status=status)

    pauses = _pauses(monkeypatch)
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with watching(f"http://127.0.0.1:{runner.addresses[0][1]}") as its:
            await until_holds(lambda: pauses, "a pause")
            assert not its.source.status.up
            assert "not watched" in its.source.status.problem
    finally:
        await runner.cleanup()
