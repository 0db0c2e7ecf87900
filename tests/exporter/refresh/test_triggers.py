"""exporter.refresh.triggers: which file event is which trigger, and the pace of calls."""

import asyncio
import shutil
import tempfile
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
async def test_what_a_kubelet_does_in_its_directories_asks_for_what_it_should(use_inotify: bool) -> None:
    root = Path(tempfile.mkdtemp(prefix="dl", dir="/tmp"))
    paths = KubeletPaths(root)
    for directory in (paths.device_plugins, paths.pod_resources):
        directory.mkdir()
    asked: asyncio.Queue[Trigger] = asyncio.Queue()
    watcher = DirectoryWatcher(poll_interval=0.01, use_inotify=use_inotify)

    async def wait_for(trigger: Trigger) -> None:
        async with asyncio.timeout(20):
            while await asked.get() is not trigger:
                pass

    async def quiet() -> None:
        """Until nothing has been asked for a while."""
        while True:
            try:
                async with asyncio.timeout(0.05):
                    await asked.get()
            except TimeoutError:
                return

    # Polling reports that something changed, not what.
    written = Trigger.ALLOCATION if use_inotify else Trigger.REGISTRATION
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(watcher.run()),
            group.create_task(follow_device_plugins(watcher, paths, asked.put_nowait)),
            group.create_task(follow_pod_resources(watcher, paths, asked.put_nowait)),
        ]
        await quiet()
        temporary = paths.device_plugins / ".123"
        temporary.write_text("{}", encoding="ascii")
        temporary.rename(paths.checkpoint)
        await wait_for(written)
        await quiet()
        temporary.write_text('{"more": 1}', encoding="ascii")
        temporary.rename(paths.checkpoint)
        await wait_for(written)
        await quiet()
        (paths.device_plugins / "plugin.sock").touch()
        await wait_for(Trigger.REGISTRATION)
        await quiet()
        other_name = paths.pod_resources / "2173202929"
        other_name.touch()
        other_name.rename(paths.pod_resources_socket)
        await wait_for(Trigger.SOCKET)
        for task in tasks:
            task.cancel()
    shutil.rmtree(root)


TIMING = RefreshTiming(interval=5.0, stale_after=60.0)


@given(st.lists(st.floats(0, 0.4), min_size=1, max_size=200))
def test_no_sequence_of_reasons_makes_more_than_twenty_calls_a_second(pauses: list[float]) -> None:
    pace, now, calls = CallPacer(TIMING), 100.0, list[float]()
    for pause in pauses:
        now += pause
        now += pace.wait(now)
        pace.listed(now)
        calls.append(now)
    for begin in calls:
        # A burst of four may come on top of what is spaced.
        assert sum(begin <= call < begin + 1.0 for call in calls) <= 20 + 4
    assert all(later - earlier >= 0.0049 for earlier, later in pairwise(calls))


def test_a_call_after_silence_waits_for_nothing() -> None:
    pace = CallPacer(TIMING)
    assert pace.wait(100.0) == 0.0
    pace.listed(100.0)
    assert pace.wait(101.0) == 0.0


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
def test_retries_come_soon_then_seldom_never_seldomer_than_the_timer(
    luck: float, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_what_is_not_believed_yet_is_asked_again_soon_and_after_a_while_seldom(failures_before: int) -> None:
    """However long the kubelet was away before."""
    pace, pauses = CallPacer(TIMING), list[float]()
    for _ in range(failures_before):
        pace.failed(0.0)
    for _ in range(100):
        pace.failed(0.0, unsettled=True)
        pauses.append(pace.due(0.0, 0.0)[0])
    assert pauses == [0.2] * 49 + [2.0] * 51


def test_without_failures_the_timer_is_due() -> None:
    assert CallPacer(TIMING).due(103.0, 100.0) == (105.0, Trigger.TIMER)


def test_where_only_allocatable_fails_it_is_asked_again_before_the_timer() -> None:
    pace = CallPacer(TIMING)
    pace.allocatable_failed(100.0)
    due, cause = pace.due(100.0, 100.0)
    assert (100.05 <= due <= 100.1, cause) == (True, Trigger.RETRY)
    assert pace.held_off(100.0) == 0.0
    pace.allocatable_succeeded(100.0)
    assert pace.due(103.0, 100.0) == (105.0, Trigger.TIMER)


def test_at_the_rate_limit_no_reason_is_good_enough_for_a_while() -> None:
    pace = CallPacer(TIMING)
    assert pace.held_off(100.0) == 0.0
    for _ in range(3):
        pace.failed(100.0, limited=True)
    assert 0.2 <= pace.held_off(100.0) <= 0.4
    assert pace.held_off(101.0) == 0.0


@pytest.mark.parametrize("unsettled", [False, True])
def test_one_refusal_at_the_rate_limit_after_a_kubelet_that_was_away_holds_up_little(unsettled: bool) -> None:
    """All clients of a kubelet that comes back ask at once, so refusals are likely just then."""
    pace = CallPacer(TIMING)
    for _ in range(50):
        pace.failed(100.0, unsettled=unsettled)
    pace.failed(100.0, limited=True)
    assert 0.05 <= pace.held_off(100.0) <= 0.1


def test_refusals_are_counted_from_the_last_answer_on() -> None:
    pace = CallPacer(TIMING)
    for _ in range(9):
        pace.failed(100.0, limited=True)
    pace.failed(100.0, unsettled=True)
    pace.failed(200.0, limited=True)
    assert 0.05 <= pace.held_off(200.0) <= 0.1


def test_refusals_of_allocatable_alone_are_counted_while_list_is_answered() -> None:
    pace = CallPacer(TIMING)
    for _ in range(3):
        pace.succeeded()
        pace.allocatable_failed(100.0, limited=True)
    assert 0.2 <= pace.held_off(100.0) <= 0.4
