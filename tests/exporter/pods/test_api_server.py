"""exporter.pods.api_server against the simulated one."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from exporter.apiserver import client
from exporter.apiserver.kubeconfig import ApiServerAccess
from exporter.pods.api_server import ApiServer
from exporter.pods.source import LabelFilter, PodGone, PodsListed, PodsUnchanged, StreamOpened
from harness.pod_listener import Listener, following
from harness.waiting import background, until_holds
from simulator import SimulatedKubelet
from simulator import apiserver as simulated
from simulator.model import Owner, PodSpec


class ApiListener(Listener):
    """The events of an ApiServer, which is followed."""

    def __init__(self, source: ApiServer) -> None:
        super().__init__()
        self.source = source


@asynccontextmanager
async def beside(
    kubelet: SimulatedKubelet,
    api: simulated.ApiServer,
    way: ApiServerAccess | None = None,
    *,
    opens: bool = True,
) -> AsyncGenerator[ApiListener]:
    """The events of a source; with an open watch, unless `opens` is False."""
    source = ApiServer(way or ApiServerAccess(api.url), kubelet.node_name, LabelFilter(None), quiet=0.05)
    its = ApiListener(source)
    async with background(its.follow(source)):
        if opens:
            await its.until(lambda _: its.opened)
        yield its
        assert api.most_connections <= 1


@pytest.fixture
async def api(kubelet: SimulatedKubelet) -> AsyncGenerator[simulated.ApiServer]:
    await kubelet.add_pod(PodSpec("first", owner=Owner("DaemonSet", "agent")))
    server = simulated.ApiServer(kubelet)
    async with server.serve():
        yield server


async def test_lists_once_then_watches_the_pods_of_the_node(
    kubelet: SimulatedKubelet, api: simulated.ApiServer
) -> None:
    async with beside(kubelet, api) as its:
        (listed,) = its.lists
        assert [seen.identity.workload for seen in listed.pods] == [("DaemonSet", "agent")]
        # What a cache tells may be old: nothing is proven by it.
        assert listed.asked is None
        uid = await kubelet.add_pod(PodSpec("second"))
        await its.until(lambda _: its.seen and its.seen[-1].identity.phase == "Running")
        # The API server knows it first, the kubelet later.
        phases = [(pod.known, pod.identity.phase) for pod in its.seen]
        assert phases == [(False, "Pending"), (True, "Pending"), (True, "Running")]
        await kubelet.delete_pod("default", "second")
        await its.until(lambda told: told[-1] == PodGone(("default", "second"), uid))
        assert api.calls == {"list": 1, "watch": 1}


async def test_broken_watch_resumes_from_its_resource_version(
    kubelet: SimulatedKubelet, api: simulated.ApiServer
) -> None:
    async with beside(kubelet, api) as its:
        api.drop_watches()
        missed = await kubelet.add_pod(PodSpec("missed"))
        error = await its.failure()
        assert error.code == "UNREACHABLE"
        assert error.message.endswith("the connection broke off")
        count = len(its.told)
        async with following(its.source) as again:
            await again.until(lambda _: missed in again.uids)
            assert again.told[0] == StreamOpened(anew=False)
        assert len(its.told) == count
        assert api.calls["list"] == 1


async def test_bookmark_moves_the_resource_version(
    kubelet: SimulatedKubelet, api: simulated.ApiServer
) -> None:
    async with beside(kubelet, api) as its:
        api.bookmark()
        uid = await kubelet.add_pod(PodSpec("after"))
        await its.until(lambda _: uid in its.uids)
        api.compact()
        api.bookmark()
        # The bookmark is taken in.
        await until_holds(lambda: its.source.version == str(api._version))  # pyright: ignore[reportPrivateUsage]
        api.drop_watches()
        await its.failure()
        async with following(its.source) as again:
            await again.until(lambda told: told)
            assert isinstance(again.told[0], StreamOpened)
        assert api.calls["list"] == 1


@pytest.mark.parametrize("how", ["status", "event"])
async def test_expired_version_causes_an_exact_list(
    how: str, kubelet: SimulatedKubelet, api: simulated.ApiServer
) -> None:
    async with beside(kubelet, api) as its:
        begun = asyncio.get_running_loop().time()
        if how == "status":
            api.drop_watches()
            missed = await kubelet.add_pod(PodSpec("missed"))
            api.compact()
            await its.failure()
            async with following(its.source) as again:
                await again.until(lambda told: StreamOpened(anew=False) in told)
                listed = again.told[0]
        else:
            missed = await kubelet.add_pod(PodSpec("missed"))
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            api.notify({"type": "ERROR", "object": status})
            await its.until(lambda _: its.opened == 2)
            assert its.error is None
            listed = its.lists[-1]
        assert isinstance(listed, PodsListed)
        assert missed in {seen.identity.uid for seen in listed.pods}
        assert listed.asked is not None
        assert listed.asked >= begun


async def test_repeated_expiry_fails_instead_of_looping(
    kubelet: SimulatedKubelet, api: simulated.ApiServer
) -> None:
    await kubelet.add_pod(PodSpec("second"))
    api.compact()
    api.faults = simulated.ApiFaults(old_lists=True)
    async with beside(kubelet, api) as its:
        # From the cache once, then what there is.
        assert [len(listed.pods) for listed in its.lists] == [1, 2]
        assert [listed.asked is None for listed in its.lists] == [True, False]
        status = {"kind": "Status", "code": 410, "reason": "Expired"}
        api.notify({"type": "ERROR", "object": status})
        # Twice within seconds is no way to go on.
        assert (await its.failure()).code == "410"


async def test_list_is_paged(
    kubelet: SimulatedKubelet, api: simulated.ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAGE", 3)
    for n in range(7):
        await kubelet.add_pod(PodSpec(f"p{n}"))
    async with beside(kubelet, api) as its:
        assert await its.source.confirm(thorough=True) is None
        await its.until(lambda _: len(its.lists) == 2)
        assert [len(listed.pods) for listed in its.lists] == [8, 8]
        assert api.calls["list"] == 1 + 3


async def test_quiet_watch_confirms_the_pods(kubelet: SimulatedKubelet, api: simulated.ApiServer) -> None:
    async with beside(kubelet, api) as its:
        before = asyncio.get_running_loop().time()
        unchanged = await its.source.confirm(thorough=False)
        assert isinstance(unchanged, PodsUnchanged)
        assert before <= unchanged.asked <= asyncio.get_running_loop().time() - 0.04
        its.source._quiet = 2.0  # pyright: ignore[reportPrivateUsage] -- longer than this machine stands still
        confirming = asyncio.create_task(its.source.confirm(thorough=False))
        await asyncio.sleep(0)
        api.drop_watches()
        assert await confirming is None


async def test_replaced_token_is_read_again(
    root: Path, kubelet: SimulatedKubelet, api: simulated.ApiServer
) -> None:
    token = root / "token"
    token.write_text("old\n", encoding="ascii")
    api.token = "old"
    way = ApiServerAccess(api.url, token=token)
    async with beside(kubelet, api, way) as its:
        api.token = "new"
        token.write_text("new\n", encoding="ascii")
        api.drop_watches()
        await its.failure()
        async with following(its.source) as again:
            await again.until(lambda told: told)
        assert api.calls["unauthorized"] == 0
        api.token = "newest"
        api.drop_watches()
        async with following(its.source) as again:
            error = await again.failure()
            assert error.code == "401"
            assert "token is not accepted" in error.message
        # Asked once, not again and again with the same.
        assert api.calls["unauthorized"] == 1
        token.unlink()
        async with following(its.source) as again:
            assert (await again.failure()).code == "ACCESS"


@pytest.mark.parametrize(
    ("faults", "code", "wait"),
    [
        (simulated.ApiFaults(status=429, retry_after=7), "429", 7.0),
        (simulated.ApiFaults(status=503, retry_after=100_000), "503", 120.0),
        (simulated.ApiFaults(status=500), "500", 0.0),
        (simulated.ApiFaults(status=403), "403", 0.0),
        (simulated.ApiFaults(garbage=True), "UNDECODABLE", 0.0),
    ],
    ids=str,
)
async def test_refusal_carries_retry_after(
    faults: simulated.ApiFaults, code: str, wait: float, kubelet: SimulatedKubelet, api: simulated.ApiServer
) -> None:
    api.faults = faults
    async with beside(kubelet, api, opens=False) as its:
        error = await its.failure()
        assert (error.code, error.wait) == (code, wait)
        assert not error.absent
        assert "overlays/apiserver" in error.message or code != "403"


async def test_undecodable_event_ends_the_watch_and_causes_a_list(
    kubelet: SimulatedKubelet, api: simulated.ApiServer
) -> None:
    async with beside(kubelet, api) as its:
        api.faults = simulated.ApiFaults(garbage=True)
        uid = await kubelet.add_pod(PodSpec("p"))
        assert (await its.failure()).code == "UNDECODABLE"
        api.faults = simulated.ApiFaults()
        async with following(its.source) as again:
            await again.until(lambda told: told)
            assert isinstance(again.told[0], PodsListed)
            assert uid in {seen.identity.uid for seen in again.told[0].pods}


async def test_hanging_or_absent_api_server_fails(
    kubelet: SimulatedKubelet, api: simulated.ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_LIST", 0.2)
    api.faults = simulated.ApiFaults(hang=True)
    async with beside(kubelet, api, opens=False) as its:
        assert (await its.failure()).code == "TIMEOUT"
    monkeypatch.undo()
    async with beside(kubelet, api, ApiServerAccess("http://127.0.0.1:1"), opens=False) as its:
        assert (await its.failure()).code == "UNREACHABLE"


async def test_silent_watch_is_restarted(
    kubelet: SimulatedKubelet,
    api: simulated.ApiServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(client, "SILENCE", 0.1)
    async with beside(kubelet, api) as its:
        await its.until(lambda _: its.opened >= 2)
        assert its.error is None
        assert api.calls["list"] == 1


async def test_too_large_event_is_refused(
    kubelet: SimulatedKubelet, api: simulated.ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LINE_LIMIT", 100_000)
    async with beside(kubelet, api) as its:
        await kubelet.add_pod(PodSpec("large", annotations={"large": "x" * 200_000}))
        assert (await its.failure()).code == "TOO_LARGE"
