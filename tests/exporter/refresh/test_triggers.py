"""exporter.refresh.triggers: which file event is which trigger, and the pace of calls."""

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.refresh.protocols import Trigger
from exporter.refresh.triggers import (
    CallPacer,
    RefreshTiming,
    follow_device_plugins,
    follow_pod_resources,
    of_device_plugins,
    of_pod_resources,
)
from kubelet.paths import KubeletPaths
from runtime.directory import Change, DirectoryWatcher, Kind

CHECKPOINT = "kubelet_internal_checkpoint"


@pytest.mark.parametrize(
    ("kind", "name", "trigger"),
    [
        # An allocation: the temporary file is made, then renamed to the checkpoint.
        (Kind.APPEARED, ".2173202929", Trigger.ALLOCATION),
        (Kind.VANISHED, ".2173202929", None),
        (Kind.WRITTEN, ".2173202929", None),
        (Kind.APPEARED, CHECKPOINT, Trigger.ALLOCATION),
        (Kind.WRITTEN, CHECKPOINT, Trigger.ALLOCATION),
        (Kind.ATTRIBUTES, CHECKPOINT, None),
        # Plugins' sockets and the kubelet's own.
        (Kind.APPEARED, "kubelet.sock", Trigger.REGISTRATION),
        (Kind.VANISHED, "kubelet.sock", Trigger.REGISTRATION),
        (Kind.APPEARED, "held.example_foo.sock", Trigger.REGISTRATION),
        (Kind.VANISHED, "held.example_foo.sock", Trigger.REGISTRATION),
        (Kind.ATTRIBUTES, "held.example_foo.sock", None),
        (Kind.WRITTEN, "DEPRECATION", None),
        # Anything may have happened.
        (Kind.RESCAN, "", Trigger.REGISTRATION),
    ],
)
def test_a_change_in_device_plugins_means(kind: Kind, name: str, trigger: Trigger | None) -> None:
    assert of_device_plugins(Change(kind, name)) is trigger


@pytest.mark.parametrize(
    ("kind", "name", "trigger"),
    [
        (Kind.APPEARED, "kubelet.sock", Trigger.SOCKET),
        (Kind.VANISHED, "kubelet.sock", Trigger.SOCKET),
        (Kind.ATTRIBUTES, "kubelet.sock", None),
        # The socket's temporary name.
        (Kind.APPEARED, "2173202929", None),
        (Kind.VANISHED, "2173202929", None),
        (Kind.WRITTEN, "2173202929", None),
        (Kind.RESCAN, "", Trigger.SOCKET),
    ],
)
def test_a_change_in_pod_resources_means(kind: Kind, name: str, trigger: Trigger | None) -> None:
    assert of_pod_resources(Change(kind, name)) is trigger


@pytest.mark.parametrize("use_inotify", [True, False])
async def test_files_of_a_kubelet_cause_refreshes(use_inotify: bool, tmp_path: Path) -> None:
    paths = KubeletPaths(tmp_path)
    for directory in (paths.device_plugins, paths.pod_resources):
        directory.mkdir()
    requested: asyncio.Queue[Trigger] = asyncio.Queue()
    watcher = DirectoryWatcher(poll_interval=0.01, use_inotify=use_inotify)

    def allocate() -> None:
        temporary = paths.device_plugins / ".123"
        temporary.write_text(f"{time.monotonic_ns()}", encoding="ascii")
        temporary.rename(paths.checkpoint)

    def register() -> None:
        (paths.device_plugins / f"plugin-{time.monotonic_ns()}.sock").touch()

    def restart() -> None:
        paths.pod_resources_socket.unlink(missing_ok=True)
        temporary = paths.pod_resources / "2173202929"
        temporary.touch()
        temporary.rename(paths.pod_resources_socket)

    async def requests(*triggers: Trigger) -> None:
        missing = set(triggers)
        while missing:
            missing.discard(await requested.get())

    # Polling reports that something changed, not what.
    written = Trigger.ALLOCATION if use_inotify else Trigger.REGISTRATION
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(watcher.run()),
            group.create_task(follow_device_plugins(watcher, paths, requested.put_nowait)),
            group.create_task(follow_pod_resources(watcher, paths, requested.put_nowait)),
        ]
        # The first scan of each directory; polling may miss a change just after it.
        await requests(Trigger.REGISTRATION, Trigger.SOCKET)
        for act, trigger in (
            *[(allocate, written)] * 2,
            (register, Trigger.REGISTRATION),
            (restart, Trigger.SOCKET),
        ):
            arrived = asyncio.ensure_future(requests(trigger))
            while not arrived.done():
                act()
                await asyncio.wait([arrived], timeout=0.1)
        for task in tasks:
            task.cancel()


TIMING = RefreshTiming(interval=5.0, stale_after=60.0)


@given(st.lists(st.floats(0, 0.4), min_size=1, max_size=200))
def test_no_sequence_of_triggers_makes_more_than_twenty_calls_a_second(pauses: list[float]) -> None:
    pace, now, calls = CallPacer(TIMING), 100.0, list[float]()
    for pause in pauses:
        now += pause
        now += pace.wait(now)
        pace.listed(now)
        calls.append(now)
    assert calls[0] == 100.0 + pauses[0], "a call after a pause does not wait"
    for begin in calls:
        # A burst of four may precede spaced calls.
        assert sum(begin <= call < begin + 1.0 for call in calls) <= 20 + 4
    assert all(later - earlier >= 0.0049 for earlier, later in pairwise(calls))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=200))
def test_a_failure_is_followed_by_another_try_within_the_interval(kinds: list[tuple[bool, bool]]) -> None:
    pace = CallPacer(TIMING)
    for limited, unsettled in kinds:
        pace.failed(100.0, limited=limited, unsettled=unsettled)
    due, cause = pace.due(100.0, 0.0)
    assert cause is Trigger.RETRY
    assert 100.0 < due <= 100.0 + TIMING.interval
    assert pace.held_off(100.0) <= TIMING.interval


@pytest.mark.parametrize("luck", [0.5, 1.0])
def test_pauses_of_retries_double_up_to_the_interval(luck: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(low: float, high: float) -> float:
        assert (low, high) == (0.5, 1.0)
        return luck

    monkeypatch.setattr("random.uniform", choose)
    pace, pauses = CallPacer(TIMING), list[float]()
    for _ in range(1, 2000):
        pace.failed(0.0)
        pauses.append(pace.due(0.0, 0.0)[0])
    assert pauses[:6] == pytest.approx([luck * seconds for seconds in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)])
    assert set(pauses[6:]) == {5.0 * luck}


@pytest.mark.parametrize("failures_before", [0, 1, 1000])
def test_unsettled_kubelet_is_called_soon_and_later_seldom(failures_before: int) -> None:
    pace, pauses = CallPacer(TIMING), list[float]()
    assert pace.due(103.0, 100.0) == (105.0, Trigger.TIMER)
    for _ in range(failures_before):
        pace.failed(0.0)
    for _ in range(100):
        pace.failed(0.0, unsettled=True)
        pauses.append(pace.due(0.0, 0.0)[0])
    assert pauses == [0.2] * 49 + [2.0] * 51


def test_failed_allocatable_alone_is_called_again_before_the_timer() -> None:
    pace = CallPacer(TIMING)
    pace.allocatable_failed(100.0)
    due, cause = pace.due(100.0, 100.0)
    assert (100.05 <= due <= 100.1, cause) == (True, Trigger.RETRY)
    assert pace.held_off(100.0) == 0.0
    pace.allocatable_succeeded(100.0)
    assert pace.due(103.0, 100.0) == (105.0, Trigger.TIMER)


_LIMITED, _UNSETTLED, _FAILED = {"limited": True}, {"unsettled": True}, dict[str, bool]()


@pytest.mark.parametrize(
    ("failures", "least", "most"),
    [
        ([], 0.0, 0.0),
        ([_LIMITED] * 3, 0.2, 0.4),
        # All clients of a kubelet that comes back call it at once: a refusal is likely just then.
        ([_FAILED] * 50 + [_LIMITED], 0.05, 0.1),
        ([_UNSETTLED] * 50 + [_LIMITED], 0.05, 0.1),
        # An answer ends a series of refusals.
        ([_LIMITED] * 9 + [_UNSETTLED, _LIMITED], 0.05, 0.1),
    ],
)
def test_refusal_at_the_rate_limit_holds_off_all_calls(
    failures: list[dict[str, bool]], least: float, most: float
) -> None:
    pace = CallPacer(TIMING)
    for at, failure in enumerate(failures):
        pace.failed(100.0 + 10.0 * at, **failure)
    last = 100.0 + 10.0 * max(0, len(failures) - 1)
    assert least <= pace.held_off(last) <= most
    assert pace.held_off(last + 1.0) == 0.0


def test_refusals_of_allocatable_alone_are_counted_while_list_is_answered() -> None:
    pace = CallPacer(TIMING)
    for _ in range(3):
        pace.succeeded()
        pace.allocatable_failed(100.0, limited=True)
    assert 0.2 <= pace.held_off(100.0) <= 0.4
