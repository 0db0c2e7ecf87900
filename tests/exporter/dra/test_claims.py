"""exporter.dra.claims against the simulated API server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession

from exporter.apiserver.client import ApiClient
from exporter.apiserver.kubeconfig import ApiServerAccess
from exporter.dra import claims
from exporter.dra.claims import ClaimReader
from exporter.mapping.dra import ClaimName
from harness.waiting import background, until_holds
from simulator import SimulatedKubelet
from simulator.apiserver import ApiFaults, ApiServer
from simulator.dra_objects import CLAIMS, allocated, claim, request, result

GETS = f"{CLAIMS}.get"
FIRST, SECOND = ClaimName("default", "first"), ClaimName("default", "second")


@asynccontextmanager
async def reading(api: ApiServer) -> AsyncGenerator[ClaimReader]:
    reader = ClaimReader(ApiServerAccess(api.url))
    async with background(reader.run()):
        yield reader


def _create(kubelet: SimulatedKubelet, name: str, *, admin: bool = False) -> None:
    found = claim(name, request("r", "example", admin=admin))
    kubelet.objects.create(
        CLAIMS,
        allocated(found, result("r", "gpu.example.com", "node", "gpu-0", admin=admin), pods=[("p", "u")]),
    )


async def test_wanted_claims_are_read_once_by_name(kubelet: SimulatedKubelet, api: ApiServer) -> None:
    _create(kubelet, "first", admin=True)
    async with reading(api) as reader:
        reader.want([FIRST, SECOND])
        await reader.known([FIRST, SECOND], 60)
        found, absent = reader.view
        assert found[FIRST].devices[0].admin
        assert found[FIRST].devices[0].device_class == "example"
        assert found[FIRST].reserved_for == {"u"}
        assert absent == {SECOND}
        reader.want([FIRST, SECOND])
        await reader.known([FIRST, SECOND], 60)
        assert reader.view[0] is found
        assert api.calls[GETS] == 2
        assert api.calls[f"{CLAIMS}.list"] == api.calls[f"{CLAIMS}.watch"] == 0


async def test_claims_that_no_pod_uses_are_forgotten_and_read_anew(
    kubelet: SimulatedKubelet, api: ApiServer
) -> None:
    _create(kubelet, "first")
    async with reading(api) as reader:
        await reader.known([FIRST, SECOND], 60)
        reader.want([])
        assert reader.view == ({}, frozenset())
        await reader.known([FIRST], 60)
        assert reader.view[0].keys() == {FIRST}
        assert api.calls[GETS] == 3


async def test_claim_that_list_contradicts_is_read_again_and_not_too_often(
    kubelet: SimulatedKubelet, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reading(api) as reader:
        reader.want([FIRST])
        await reader.known([FIRST], 60)
        _create(kubelet, "first")
        await reader.known([FIRST], 60)
        assert api.calls[GETS] == 1, "the claim was read a moment ago"
        monkeypatch.setattr(claims, "SOON", 0.0)
        await reader.known([FIRST], 60)
        assert FIRST in reader.view[0]


async def test_a_claim_is_read_again_after_a_while(
    kubelet: SimulatedKubelet, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "AGAIN", 0.05)
    async with reading(api) as reader:
        changes: list[None] = []
        reader.bind(lambda: changes.append(None))
        reader.want([FIRST])
        await until_holds(lambda: FIRST in reader.view[1])
        _create(kubelet, "first")
        await until_holds(lambda: FIRST in reader.view[0])
        assert reader.view[1] == frozenset()
        reported = len(changes)
        count = api.calls[GETS]
        await until_holds(lambda: api.calls[GETS] > count + 2)
        assert len(changes) == reported
        kubelet.objects.delete(CLAIMS, "first", "default")
        await until_holds(lambda: FIRST in reader.view[1])


async def test_without_the_right_nothing_waits_and_one_request_is_made(
    kubelet: SimulatedKubelet, api: ApiServer
) -> None:
    api.faults = ApiFaults(forbidden=frozenset({CLAIMS}))
    names = [ClaimName("default", f"claim-{n}") for n in range(100)]
    async with reading(api) as reader:
        reader.want(names)
        await reader.known(names, 60)
        status = reader.status
        assert (status.name, status.up) == ("claims", False)
        assert "may not get resourceclaims: see deploy/components/dra" in status.problem
        # The requests that were under way, and no others.
        assert api.calls[GETS] <= claims.AT_ONCE
        assert not reader.view[0]


async def test_failures_end(kubelet: SimulatedKubelet, api: ApiServer) -> None:
    _create(kubelet, "first")
    api.faults = ApiFaults(status=500)
    async with reading(api) as reader:
        await reader.known([FIRST], 60)
        assert not reader.status.up
        assert reader.view[1] == {FIRST}
        api.faults = ApiFaults()
        await until_holds(lambda: FIRST in reader.view[0])
        assert reader.status == ("claims", True, "")
        # What was read stays while the API server is away.
        api.faults = ApiFaults(status=500)
        await reader.known([SECOND], 60)
        assert FIRST in reader.view[0]


async def test_retry_after_is_honoured(
    kubelet: SimulatedKubelet, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.faults = ApiFaults(status=429, retry_after=7)
    async with reading(api) as reader:
        await reader.known([FIRST], 60)
        left = reader._not_before - asyncio.get_running_loop().time()  # pyright: ignore[reportPrivateUsage]
        assert left > 6
        assert api.calls[GETS] == 1


async def test_one_claim_that_does_not_decode_does_not_keep_the_others(
    kubelet: SimulatedKubelet, api: ApiServer
) -> None:
    _create(kubelet, "second")
    kubelet.objects.create(
        CLAIMS, {"metadata": {"name": "first", "namespace": "default"}, "spec": {"devices": 1}}
    )
    async with reading(api) as reader:
        await reader.known([FIRST, SECOND], 60)
        assert reader.status.up
        assert reader.view[0].keys() == {SECOND}
        assert reader.view[1] == {FIRST}


async def test_waiting_is_bounded(kubelet: SimulatedKubelet, api: ApiServer) -> None:
    api.faults = ApiFaults(hang=True)
    async with reading(api) as reader:
        await reader.known([FIRST], 0.01)
        assert not reader.view[0]


async def test_claims_are_bounded_and_strange_names_are_never_requested(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MAX_CLAIMS", 3)
    async with reading(api) as reader:
        strange = [ClaimName("default", name) for name in ("..", "a/b", "a?b", "", "x" * 254)]
        reader.want([*strange, ClaimName("../..", "a"), *(ClaimName("default", f"c{n}") for n in range(9))])
        await until_holds(lambda: len(reader.view[1]) == 3)
        assert "more than 3 claims" in reader.status.problem
        reader.want(strange)
        assert reader.status.problem == ""
        await reader.known(strange, 60)
        assert api.calls[GETS] == 3


async def test_few_requests_are_under_way_at_once(kubelet: SimulatedKubelet, api: ApiServer) -> None:
    api.faults = ApiFaults(hang=True, resources=frozenset({CLAIMS}))
    async with reading(api) as reader:
        reader.want([ClaimName("default", f"c{n}") for n in range(50)])
        await until_holds(lambda: api.calls[GETS] == claims.AT_ONCE)
        await reader.known([FIRST], 0.1)
        assert api.calls[GETS] == claims.AT_ONCE


async def test_certificates_are_read_for_the_first_claim(
    kubelet: SimulatedKubelet, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[None] = []
    real = ApiClient.session

    def session(client: ApiClient) -> ClientSession:
        sessions.append(None)
        return real(client)

    monkeypatch.setattr(ApiClient, "session", session)
    _create(kubelet, "first")
    async with reading(api) as reader:
        reader.want([])
        await asyncio.sleep(0)
        assert sessions == []
        await reader.known([FIRST], 60)
        assert len(sessions) == 1
        assert FIRST in reader.view[0]


async def test_first_denial_is_no_lasting_one(
    kubelet: SimulatedKubelet, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that has just started denies what it allows a moment later."""
    monkeypatch.setattr(claims, "DENIED_AT_FIRST", 0.01)
    names = [ClaimName("default", f"claim-{n}") for n in range(9)]
    for name in names:
        _create(kubelet, name.name)
    api.faults = ApiFaults(forbidden=frozenset({CLAIMS}))
    async with reading(api) as reader:
        # All requests that are under way at once are denied.
        reader.want(names)
        await until_holds(lambda: not reader.status.up)
        api.faults = ApiFaults()
        await until_holds(lambda: len(reader.view[0]) == len(names))
        assert reader.status.up


async def test_claim_of_another_pod_is_read_again_soon_after_it_was_read(
    kubelet: SimulatedKubelet, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "SOON", 0.1)
    _create(kubelet, "first")
    async with reading(api) as reader:
        await reader.known([FIRST], 60)
        kubelet.objects.delete(CLAIMS, "first", "default")
        _create(kubelet, "first", admin=True)
        await reader.known([FIRST], 60)
        await until_holds(lambda: reader.view[0][FIRST].devices[0].admin)
