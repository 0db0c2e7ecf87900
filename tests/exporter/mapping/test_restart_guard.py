"""exporter.mapping.restart_guard: when a List is not believed."""

from dataclasses import replace

import pytest

from exporter.mapping.identity import API_SYNC, PodIdentity, PodRegistry
from exporter.mapping.model import Container, Holder, Snapshot
from exporter.mapping.restart_guard import (
    DISTRUST,
    DISTRUST_EMPTY_START,
    DISTRUST_UNSYNCED,
    after_restart,
    at_start,
)

KEY = ("n", "p")
POD = PodIdentity("n", "p", "uid-1", "Running")
RETURNED = 100.0


def _register(*, synced_at: float | None = None) -> PodRegistry:
    register = PodRegistry()
    register.connect()
    if synced_at is not None:
        register.sync(synced_at)
    return register


AGENT = ("n", "agent")
"""A pod of the API server that holds nothing."""
STATIC = ("kube-system", "etcd-node-1.example")

Pods = tuple[tuple[str, str], ...]


def _doubted(
    register: PodRegistry,
    after: float,
    *,
    listed: Pods = (),
    before: Pods = (KEY,),
    node: str = "",
    uid: str = "",
) -> bool:
    now, view = RETURNED + after, register.view
    reason = after_restart(
        {KEY: uid}, view, listed=listed, before=before, node=node, now=now, restarted_at=RETURNED
    )
    return reason is not None


def test_without_a_source_distrust_ends_by_time() -> None:
    assert _doubted(PodRegistry(), 0.0)
    assert _doubted(PodRegistry(), DISTRUST - 0.1)
    assert not _doubted(PodRegistry(), DISTRUST)
    view = PodRegistry().view
    assert after_restart({}, view, listed=(), before=(), node="", now=RETURNED, restarted_at=RETURNED) is None


@pytest.mark.parametrize("listed", [(), (STATIC,), (STATIC, ("kube-system", "scheduler-node-1.example"))])
def test_without_a_source_a_kubelet_that_lists_no_pod_of_the_api_server_is_not_believed_for_long(
    listed: Pods,
) -> None:
    """It has come up while the API server is away: then it lists static pods alone, for as long."""
    node, before = "Node-1.example", (KEY, AGENT, *listed)
    assert _doubted(PodRegistry(), DISTRUST + 50, listed=listed, before=before, node=node)
    assert _doubted(PodRegistry(), DISTRUST_UNSYNCED - 1, listed=listed, before=before, node=node)
    assert not _doubted(PodRegistry(), DISTRUST_UNSYNCED, listed=listed, before=before, node=node)
    assert not _doubted(PodRegistry(), DISTRUST, listed=(*listed, AGENT), before=before, node=node)


def test_without_a_source_pods_that_were_the_only_ones_of_the_api_server_may_be_gone() -> None:
    node = "node-1.example"
    assert not _doubted(PodRegistry(), DISTRUST, listed=(STATIC,), before=(KEY, STATIC), node=node)
    assert not _doubted(PodRegistry(), DISTRUST, listed=(), before=(KEY, STATIC), node=node)


def test_without_the_node_s_name_every_pod_may_be_the_api_server_s() -> None:
    assert not _doubted(PodRegistry(), DISTRUST, listed=(STATIC,), before=(KEY, AGENT, STATIC))
    assert _doubted(PodRegistry(), DISTRUST, listed=(), before=(KEY, AGENT, STATIC))


def test_a_kubelet_that_has_heard_of_no_pod_of_the_api_server_is_not_believed_for_long() -> None:
    register = _register()
    register.see(replace(POD, pod="static", static=True), RETURNED)
    assert _doubted(register, DISTRUST + 50)
    assert _doubted(register, DISTRUST_UNSYNCED - 1)
    assert not _doubted(register, DISTRUST_UNSYNCED)


def test_once_it_has_heard_what_is_not_there_is_gone_and_what_is_there_is_waited_for() -> None:
    register = _register(synced_at=RETURNED + 1)
    assert _doubted(register, 1 + API_SYNC / 2)
    assert not _doubted(register, 1 + API_SYNC)
    register.see(POD, RETURNED + 1)
    assert _doubted(register, 60)
    register.see(replace(POD, phase="Succeeded"), RETURNED + 2)
    assert not _doubted(register, 60)


def test_what_the_api_server_told_before_it_fell_silent_counts() -> None:
    register = _register(synced_at=50.0)
    register.see(POD, 50.0)
    register.connect(connected=False)
    assert _doubted(register, DISTRUST + 50)
    register.end(KEY, "uid-1", RETURNED)
    assert not _doubted(register, DISTRUST + 50)


def _at_start(
    snapshot: Snapshot, register: PodRegistry, age: float | None, listed: tuple[str, ...] = ()
) -> bool:
    names = [("n", name) for name in listed]
    return at_start(snapshot, names, register.view, now=RETURNED, socket_age=age) is not None


def test_empty_list_just_after_the_socket_is_not_believed() -> None:
    nobody, somebody = Snapshot(), Snapshot(containers=(Container(Holder("n", "p", "c")),))
    assert _at_start(nobody, PodRegistry(), DISTRUST_EMPTY_START - 0.1)
    assert not _at_start(nobody, PodRegistry(), DISTRUST_EMPTY_START)
    assert not _at_start(nobody, PodRegistry(), None)
    assert not _at_start(nobody, PodRegistry(), -1.0)
    assert not _at_start(somebody, PodRegistry(), 0.1)


def test_source_decides_whether_an_empty_first_list_is_complete() -> None:
    nobody = Snapshot()
    unheard = _register()
    assert _at_start(nobody, unheard, DISTRUST - 0.1)
    assert not _at_start(nobody, unheard, DISTRUST)
    synced_at = _register(synced_at=RETURNED - API_SYNC)
    assert not _at_start(nobody, synced_at, 0.1)
    synced_at.see(POD, RETURNED)
    assert _at_start(nobody, synced_at, DISTRUST - 0.1)
    assert not _at_start(nobody, synced_at, 0.1, listed=("p",))


def test_a_successor_of_the_same_name_is_not_the_pod_that_is_missing() -> None:
    register = PodRegistry()
    register.connect()
    register.sync(RETURNED - 10.0)
    register.see(PodIdentity(*KEY, "second"), RETURNED + 1.0)
    assert not _doubted(register, 5.0, uid="first")
    assert _doubted(register, 5.0, uid="second")
    assert _doubted(register, 5.0)
