"""exporter.mapping.restart_guard: when a List is not believed."""

from dataclasses import replace

import pytest

from exporter.mapping.identity import API_SYNC, PodIdentity, PodRegistry
from exporter.mapping.model import Container, Holder, Snapshot
from exporter.mapping.restart_guard import (
    DISTRUST,
    DISTRUST_EMPTY_START,
    DISTRUST_UNSYNCED,
    YOUNG_SOCKET,
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


EXAMPLE_NODE = "Node-1.example"
SCHEDULER = ("kube-system", "scheduler-node-1.example")


@pytest.mark.parametrize(
    ("listed", "before", "node", "believed_after"),
    [
        # The only pods of the API server may be gone.
        ((), (KEY,), "", DISTRUST),
        ((STATIC,), (KEY, STATIC), EXAMPLE_NODE, DISTRUST),
        ((), (KEY, STATIC), EXAMPLE_NODE, DISTRUST),
        ((AGENT,), (KEY, AGENT), EXAMPLE_NODE, DISTRUST),
        ((AGENT, STATIC), (KEY, AGENT, STATIC), EXAMPLE_NODE, DISTRUST),
        # While the API server is away, a kubelet lists static pods alone.
        ((), (KEY, AGENT), EXAMPLE_NODE, DISTRUST_UNSYNCED),
        ((STATIC,), (KEY, AGENT, STATIC), EXAMPLE_NODE, DISTRUST_UNSYNCED),
        ((STATIC, SCHEDULER), (KEY, AGENT, STATIC, SCHEDULER), EXAMPLE_NODE, DISTRUST_UNSYNCED),
        # Without the node's name every pod may be the API server's.
        ((STATIC,), (KEY, AGENT, STATIC), "", DISTRUST),
        ((), (KEY, AGENT, STATIC), "", DISTRUST_UNSYNCED),
    ],
)
def test_distrust_without_a_source(listed: Pods, before: Pods, node: str, believed_after: float) -> None:
    for after in (0.0, believed_after - 0.1):
        assert _doubted(PodRegistry(), after, listed=listed, before=before, node=node)
    assert not _doubted(PodRegistry(), believed_after, listed=listed, before=before, node=node)
    arguments = {"listed": listed, "before": before, "node": node, "now": RETURNED, "restarted_at": RETURNED}
    assert after_restart({}, PodRegistry().view, **arguments) is None  # type: ignore[arg-type] # a dict of them


def test_kubelet_that_has_not_synced_is_not_believed_for_an_hour() -> None:
    register = _register()
    register.see(replace(POD, pod="static", static=True), RETURNED)
    assert _doubted(register, DISTRUST_UNSYNCED - 1)
    assert not _doubted(register, DISTRUST_UNSYNCED)


def test_after_the_sync_only_pods_that_the_source_has_are_waited_for() -> None:
    register = _register(synced_at=RETURNED + 1)
    assert _doubted(register, 1 + API_SYNC / 2)
    assert not _doubted(register, 1 + API_SYNC)
    register.see(POD, RETURNED + 1)
    assert _doubted(register, 60)
    register.see(replace(POD, phase="Succeeded"), RETURNED + 2)
    assert not _doubted(register, 60)


def test_reports_of_a_source_that_is_silent_now_count() -> None:
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
    assert _at_start(nobody, _register(), YOUNG_SOCKET - 0.1)
    assert not _at_start(nobody, _register(), YOUNG_SOCKET)
    synced_at = _register(synced_at=RETURNED - API_SYNC)
    assert not _at_start(nobody, synced_at, 0.1)
    synced_at.see(POD, RETURNED)
    assert _at_start(nobody, synced_at, YOUNG_SOCKET - 0.1)
    assert not _at_start(nobody, synced_at, 0.1, listed=("p",))


def test_successor_of_the_same_name_is_not_the_missing_pod() -> None:
    register = _register(synced_at=RETURNED - 10.0)
    register.see(PodIdentity(*KEY, "second"), RETURNED + 1.0)
    assert not _doubted(register, 5.0, uid="first")
    assert _doubted(register, 5.0, uid="second")
    assert _doubted(register, 5.0)
