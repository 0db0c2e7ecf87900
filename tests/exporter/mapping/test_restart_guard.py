"""exporter.mapping.restart_guard: for how long a pod that List leaves out is not believed gone."""

import pytest
from msgspec.structs import replace

from exporter.mapping.identity import API_SYNC, PodIdentity, PodRegistry
from exporter.mapping.model import Container, Doubt, Holder, Snapshot
from exporter.mapping.restart_guard import (
    DISTRUST,
    DISTRUST_EMPTY_START,
    DISTRUST_UNSYNCED,
    QUIET,
    YOUNG_SOCKET,
    Restart,
    at_start,
    doubted,
    restarted,
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


def _restart(
    before: Pods = (KEY,), held: Pods = (KEY,), node: str = "", last: Restart | None = None
) -> Restart:
    return restarted(RETURNED, 5000.0, before=before, held=held, node=node, last=last)


def _doubt(
    register: PodRegistry, after: float, *, restart: Restart | None = None, uid: str = ""
) -> Doubt | None:
    found = doubted({KEY: uid}, register.view, restart or _restart(), RETURNED + after)
    assert found.keys() <= {KEY}
    return found.get(KEY)


EXAMPLE_NODE = "Node-1.example"
SCHEDULER = ("kube-system", "scheduler-node-1.example")
LISTED_AFTER = 0.9
"""Seconds from the restart to the List that names pods."""


@pytest.mark.parametrize(
    ("listed", "before", "node", "gone_after"),
    [
        # The only pods of the API server may be gone.
        ((), (KEY,), "", DISTRUST),
        ((STATIC,), (KEY, STATIC), EXAMPLE_NODE, DISTRUST),
        ((), (KEY, STATIC), EXAMPLE_NODE, DISTRUST),
        # It has synced, and lists no further pod.
        ((AGENT,), (KEY, AGENT), EXAMPLE_NODE, LISTED_AFTER + QUIET),
        ((AGENT,), (KEY,), EXAMPLE_NODE, LISTED_AFTER + QUIET),
        ((AGENT, STATIC), (KEY, AGENT, STATIC), EXAMPLE_NODE, LISTED_AFTER + QUIET),
        # While the API server is away, a kubelet lists static pods alone.
        ((), (KEY, AGENT), EXAMPLE_NODE, DISTRUST_UNSYNCED),
        ((STATIC,), (KEY, AGENT, STATIC), EXAMPLE_NODE, DISTRUST_UNSYNCED),
        ((STATIC, SCHEDULER), (KEY, AGENT, STATIC, SCHEDULER), EXAMPLE_NODE, DISTRUST_UNSYNCED),
        # Without the node's name every pod may be the API server's.
        ((STATIC,), (KEY, AGENT, STATIC), "", LISTED_AFTER + QUIET),
        ((), (KEY, AGENT, STATIC), "", DISTRUST_UNSYNCED),
    ],
)
def test_doubt_without_a_source(listed: Pods, before: Pods, node: str, gone_after: float) -> None:
    restart = _restart(before, node=node)
    restart = restart.listed(frozenset(), node=node, now=RETURNED)
    restart = restart.listed(frozenset(listed), node=node, now=RETURNED + LISTED_AFTER)
    for after in (LISTED_AFTER, gone_after - 0.1):
        doubt = _doubt(PodRegistry(), after, restart=restart)
        assert doubt is not None
        # It says for how long it lasts at most.
        assert 5000.0 + gone_after <= doubt.until <= 5000.0 + max(LISTED_AFTER + DISTRUST, gone_after)
        assert doubt.since == 5000.0
    assert _doubt(PodRegistry(), gone_after, restart=restart) is None
    assert doubted({}, PodRegistry().view, restart, RETURNED) == {}


def test_each_further_pod_prolongs_the_doubt_to_its_limit() -> None:
    restart, names = _restart(), frozenset[tuple[str, str]]()
    for number in range(1, 10):
        names |= {("n", f"p-{number}")}
        restart = restart.listed(names, node="", now=RETURNED + number)
        # A pod that is listed again, or no longer, is no further one.
        restart = restart.listed(frozenset(), node="", now=RETURNED + number + 0.5)
        restart = restart.listed(names, node="", now=RETURNED + number + 0.6)
        assert _doubt(PodRegistry(), number + QUIET - 0.1, restart=restart)
        assert _doubt(PodRegistry(), number + QUIET, restart=restart) is None
    # 10 s after the first of them.
    restart = restart.listed(names | {AGENT}, node="", now=RETURNED + 10.0)
    assert _doubt(PodRegistry(), 1 + DISTRUST - 0.1, restart=restart)
    assert _doubt(PodRegistry(), 1 + DISTRUST, restart=restart) is None


def test_kubelet_that_has_synced_once_lists_what_there_is() -> None:
    """All pods that hold nothing end later: that is not a kubelet that has not synced."""
    restart = _restart((KEY, AGENT)).listed(frozenset({AGENT}), node="", now=RETURNED + 1)
    restart = restart.listed(frozenset(), node="", now=RETURNED + 2)
    assert _doubt(PodRegistry(), 1 + QUIET, restart=restart) is None


def test_second_restart_remembers_what_was_listed_before_the_first() -> None:
    first = _restart((KEY, AGENT))
    assert _doubt(PodRegistry(), DISTRUST_UNSYNCED - 1, restart=_restart((), last=first))
    assert not _doubt(PodRegistry(), DISTRUST, restart=_restart(()))


def test_kubelet_that_has_not_synced_is_doubted_for_an_hour() -> None:
    register = _register()
    register.see(replace(POD, pod="static", static=True), RETURNED)
    assert _doubt(register, DISTRUST_UNSYNCED - 1)
    assert not _doubt(register, DISTRUST_UNSYNCED)
    # List may show it before the source does.
    restart = _restart().listed(frozenset({AGENT}), node="", now=RETURNED + 1)
    assert _doubt(register, 1 + QUIET - 0.1, restart=restart)
    assert not _doubt(register, 1 + QUIET, restart=restart)


def test_after_the_sync_only_pods_that_the_source_has_are_waited_for() -> None:
    register = _register(synced_at=RETURNED + 1)
    assert _doubt(register, 1 + API_SYNC / 2)
    assert not _doubt(register, 1 + API_SYNC)
    register.see(POD, RETURNED + 1)
    doubt = _doubt(register, 60)
    assert doubt is not None
    assert doubt.until == 5000.0 + DISTRUST_UNSYNCED
    register.see(replace(POD, phase="Succeeded"), RETURNED + 2)
    assert not _doubt(register, 60)


def test_reports_of_a_source_that_is_silent_now_count() -> None:
    register = _register(synced_at=50.0)
    register.see(POD, 50.0)
    register.connect(connected=False)
    assert _doubt(register, DISTRUST + 50)
    register.end(KEY, "uid-1", RETURNED)
    assert not _doubt(register, DISTRUST + 50)
    # The end of this very pod is known: there is nothing to wait for.
    assert not _doubt(register, 0.0, uid="uid-1")
    assert _doubt(register, 0.0)


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
    assert not _doubt(register, 5.0, uid="first")
    assert _doubt(register, 5.0, uid="second")
    assert _doubt(register, 5.0)
