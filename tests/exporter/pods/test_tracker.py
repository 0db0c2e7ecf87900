"""exporter.pods.tracker: what the events of a pod watcher lead to."""

# A test may look inside.
# pyright: reportPrivateUsage=false

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from exporter.mapping.dra import PodClaim, PodDevices, ResourceHealth
from exporter.mapping.identity import PodIdentity, Poll, proven
from exporter.mapping.model import Container, Holder, Snapshot
from exporter.mapping.state import State
from exporter.pods import tracker as module
from exporter.pods.source import (
    PodEvent,
    PodGone,
    PodSeen,
    PodsListed,
    PodsUnchanged,
    PodWatchError,
    StreamOpened,
    UnreadableEvent,
)
from exporter.pods.tracker import PodTracker
from exporter.refresh.protocols import Trigger
from harness.requests import RecordedRequests
from harness.waiting import background, until_holds

P = PodIdentity("n", "p", "uid-1", "Running")
Q = PodIdentity("n", "q", "uid-3", "Running")
CLAIMED = PodDevices(
    (PodClaim("gpu", "claim"),), health=(ResourceHealth("c", "claim:gpu", "1", "Unhealthy"),)
)


@dataclass
class Scripted:
    """A source that tells what a test puts, and remembers what it is asked."""

    lasting: bool = False
    name: str = "scripted"
    words: str = "pods told by a test"
    told: asyncio.Queue[PodEvent | PodWatchError] = field(
        default_factory=asyncio.Queue[PodEvent | PodWatchError]
    )
    answer: Callable[[], PodsListed | PodsUnchanged | PodWatchError | None] = lambda: None
    asked: list[bool] = field(default_factory=list[bool])
    followed: int = 0
    interrupted: int = 0

    async def follow(self) -> AsyncGenerator[PodEvent]:
        self.followed += 1
        while True:
            told = await self.told.get()
            if isinstance(told, PodWatchError):
                raise told
            yield told

    async def confirm(self, *, thorough: bool) -> PodsListed | PodsUnchanged | None:
        self.asked.append(thorough)
        answer = self.answer()
        if isinstance(answer, PodWatchError):
            raise answer
        return answer

    def interrupt(self) -> None:
        self.interrupted += 1
        self.told.put_nowait(PodWatchError("SILENT", "interrupted"))


@dataclass(kw_only=True)
class Running(RecordedRequests):
    source: Scripted
    identities: PodTracker
    generation: int = 0
    look: Poll = field(default_factory=lambda: Poll(-1.0, -1.0))

    @property
    def connected(self) -> bool:
        return self.identities.view.connected

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def tell(self, *told: PodEvent | PodWatchError) -> None:
        """Let the source tell, and wait until that is taken in."""
        for one in told:
            self.source.told.put_nowait(one)
        while not self.source.told.empty():
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)

    def publish(self, *uids: str, name: str = "p", age: float = 0.0) -> None:
        """The refresh loop has published a List that was called `age` seconds ago: a holder for each uid."""
        now = self.now() - age
        self.generation += 1
        containers = tuple(Container(Holder("n", name, f"c{n}", uid)) for n, uid in enumerate(uids))
        self.look = Poll(now, now)
        self.identities.polled(State(self.generation, Snapshot(containers=containers)), self.look)

    def again(self) -> None:
        """The same was published once more, after a List of its own."""
        now = self.now()
        self.look = Poll(now, now)
        self.identities.polled(State(self.generation), self.look)

    def lists(self, *pods: PodIdentity) -> None:
        """Let the source answer each confirmation with a list of `pods`."""
        self.source.answer = lambda: PodsListed(tuple(map(PodSeen, pods)), self.now(), self.now())


@asynccontextmanager
async def running(
    *seen: PodIdentity,
    holding: str | None = None,
    lasting: bool = False,
    expected: bool = False,
    relist: float = 3600.0,
) -> AsyncGenerator[Running]:
    """A tracker whose source has reported the pods `seen`, of which the first holds devices with a uid."""
    source = Scripted(lasting=lasting)
    its = Running(source=source, identities=PodTracker(source, expected=expected, relist=relist))
    its.identities.bind(its)
    async with background(its.identities.run()):
        await asyncio.sleep(0)
        if seen:
            await its.tell(StreamOpened(anew=not lasting), *map(PodSeen, seen))
        if holding is not None:
            its.publish(holding)
            its.triggers.clear()
        yield its


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CONFIRM_SPACING", 0.0)
    monkeypatch.setattr(module, "_FIRST_RETRY", 0.001)
    monkeypatch.setattr(module, "_REFUSED", 0.005)
    monkeypatch.setattr(module, "AGAIN", (3600.0,))


@pytest.mark.parametrize(
    ("event", "triggers", "reconsidered"),
    [
        pytest.param(PodSeen(P), 0, 0, id="nothing new"),
        pytest.param(PodSeen(replace(P, labels=(("team", "ml"),))), 0, 1, id="a label of the holder"),
        pytest.param(PodSeen(replace(P, uid="uid-2")), 1, 0, id="a successor"),
        pytest.param(PodSeen(replace(P, phase="Succeeded")), 1, 0, id="the holder has ended"),
        pytest.param(PodGone(P.key, "uid-1"), 1, 0, id="the holder is gone"),
        pytest.param(PodGone(P.key, "uid-0"), 0, 0, id="its predecessor is gone"),
        pytest.param(PodSeen(replace(P, uid="uid-0", phase="Failed")), 0, 0, id="its predecessor has ended"),
        pytest.param(PodSeen(replace(P, pod="r", uid="uid-2")), 1, 0, id="another pod"),
        pytest.param(PodSeen(replace(Q, phase="Pending")), 0, 0, id="a pod without devices changes"),
        pytest.param(PodSeen(replace(P, devices=CLAIMED)), 0, 1, id="the health of the holder's device"),
        pytest.param(PodSeen(replace(Q, devices=CLAIMED)), 0, 1, id="a claim that is not held yet"),
        pytest.param(PodSeen(replace(Q, phase="Succeeded")), 0, 0, id="a pod without devices has ended"),
        pytest.param(PodGone(Q.key, "uid-3"), 0, 0, id="a pod without devices is gone"),
    ],
)
async def test_events_that_may_change_the_mapping_cause_a_refresh(
    event: PodEvent, triggers: int, reconsidered: int
) -> None:
    async with running(P, Q, holding="uid-1") as its:
        # What is repeated changes nothing.
        await its.tell(event, event)
        assert (its.triggers, its.reconsidered) == ([Trigger.PODS] * triggers, reconsidered)


async def test_pod_missing_in_a_list_has_ended() -> None:
    async with running(P, holding="uid-1") as its:
        await until_holds(lambda: its.now() > its.look.asked)
        await its.tell(PodsListed((), its.now(), its.now()))
        assert its.triggers == [Trigger.PODS]
        assert its.identities.view.of(P.key) == ()


async def test_list_older_than_the_pod_is_called_again() -> None:
    async with running(P) as its:
        for age, triggers in ((0.0, []), (60.0, [Trigger.PODS])):
            its.triggers.clear()
            its.publish("", age=age)
            assert its.triggers == triggers


async def test_list_from_a_cache_has_all_pods_and_proves_none() -> None:
    async with running(lasting=True) as its:
        await its.tell(PodsListed((), its.now(), None), StreamOpened(anew=False))
        assert its.identities.view.complete(its.now() + 60)
        await its.tell(PodSeen(P))
        its.publish("")
        for asked, found in ((None, None), (its.now(), P)):
            await its.tell(PodsListed((PodSeen(P),), its.now(), asked))
            assert proven(its.identities.view.of(P.key), its.look) == found


async def test_ended_holder_causes_refreshes_until_it_is_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "AGAIN", (0.01, 0.02, 0.03))
    async with running(P, holding="uid-1") as its:
        await its.tell(PodSeen(replace(P, phase="Succeeded")))
        await until_holds(lambda: len(its.triggers) >= 3)
        its.publish()
        count = len(its.triggers)
        await asyncio.sleep(0.06)
        await its.tell(PodGone(P.key, "uid-1"))
        assert len(its.triggers) == count


@pytest.mark.parametrize("unchanged", [False, True])
async def test_holder_is_proven_by_a_later_answer_of_the_source(unchanged: bool) -> None:
    async with running() as its:
        its.lists(P)
        if unchanged:
            its.source.answer = lambda: PodsUnchanged(its.now())
        its.publish("")
        assert its.source.asked == []
        await its.tell(StreamOpened(anew=True), PodSeen(P))
        # The kubelet's List was older than the pod's first word: it must be asked again.
        assert its.triggers == [Trigger.PODS]
        its.again()
        await until_holds(lambda: its.reconsidered)
        assert its.source.asked == [False]
        (sighting,) = its.identities.view.of(P.key)
        assert sighting.known <= its.look.asked
        assert sighting.present >= its.look.answered
        # It does not become so by asking again and again.
        its.again()
        its.publish("uid-1")
        await until_holds(lambda: its.source.asked == [False, False])
        its.again()
        await asyncio.sleep(0.02)
        assert its.source.asked == [False, False]


async def test_pod_running_before_it_held_causes_a_thorough_confirm_once() -> None:
    async with running(P) as its:
        its.publish()
        await asyncio.sleep(0.002)
        for _ in range(3):
            await asyncio.sleep(0.002)
            its.publish("")
            await until_holds(lambda: not its.identities._doubt.is_set())
            await asyncio.sleep(0.002)
        await until_holds(lambda: its.source.asked)
        assert its.source.asked[0] is True
        assert its.source.asked.count(True) == 1


async def test_unreadable_event_causes_a_list(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    async with running() as its:
        its.lists(P)
        await its.tell(StreamOpened(anew=True), UnreadableEvent("odd"), UnreadableEvent("odd"))
        await until_holds(lambda: its.identities.view.of(P.key))
    told = [record.message for record in caplog.records if "decode" in record.message]
    assert told == [
        "an event of the pod source does not decode",
        "an event of the pod source does not decode: over",
    ]


async def test_stream_that_misses_listed_pods_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_CATCH_UP", 0.02)
    async with running(P, relist=0.03) as its:
        its.lists(P)
        await until_holds(lambda: len(its.source.asked) >= 3)
        # A node on which nothing happens.
        assert its.source.interrupted == 0
        its.lists(P, Q)
        await until_holds(lambda: its.source.interrupted)
        await until_holds(lambda: its.source.followed >= 2)


async def test_rate_limited_source_is_listed_later_and_a_failing_one_is_interrupted() -> None:
    async with running(P) as its:
        await asyncio.sleep(0.002)
        its.source.answer = lambda: PodWatchError("RESOURCE_EXHAUSTED", "rejected by rate limit")
        its.publish("")
        await until_holds(lambda: len(its.source.asked) >= 3)
        assert its.source.interrupted == 0
        its.source.answer = lambda: PodWatchError("DEADLINE_EXCEEDED", "no answer")
        await until_holds(lambda: its.source.interrupted)


@pytest.mark.parametrize("lasting", [True, False])
async def test_failed_source_is_followed_again(lasting: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    async with running(P, holding="uid-1", lasting=lasting) as its:
        await its.tell(PodWatchError("UNAVAILABLE", "it ended"))
        await until_holds(lambda: not its.connected)
        assert its.identities.words == "pods not watched: UNAVAILABLE: it ended"
        # The kubelet's word was of its life; the API server's holds.
        assert bool(its.identities.view.of(P.key)) is lasting
        await until_holds(lambda: its.source.followed == 2)
        await its.tell(StreamOpened(anew=not lasting))
        await until_holds(lambda: its.connected)
        assert its.identities.words == "pods told by a test"
    told = [record.message for record in caplog.records]
    assert told == ["the pod source fails", "the pod source fails: over"]


@pytest.mark.parametrize("expected", [True, False])
async def test_absent_source_is_logged_once_and_fails_if_expected(
    expected: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    monkeypatch.setattr(module, "_LAST_RETRY", 0.001)
    async with running(expected=expected) as its:
        for code in ("UNAVAILABLE", "UNIMPLEMENTED", "UNAVAILABLE", "UNIMPLEMENTED", "UNIMPLEMENTED"):
            await its.tell(PodWatchError(code, "there is no socket", absent=True))
            await until_holds(its.source.told.empty)
        assert "there is no socket" in its.identities.words
        await until_holds(lambda: its.source.followed >= 3)
        await its.tell(StreamOpened(anew=True))
    levels = [(record.levelname, record.message) for record in caplog.records]
    known = "pods' uids, labels and owners are"
    assert levels == (
        [("WARNING", "the pod source fails"), ("INFO", "the pod source fails: over")]
        if expected
        else [("INFO", f"{known} not known"), ("INFO", f"{known} known from now on")]
    )


@pytest.mark.parametrize("usual", [60.0, 0.0])
async def test_starting_source_is_logged_only_if_that_lasts(
    usual: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    monkeypatch.setattr(module, "_STARTING", usual)
    monkeypatch.setattr(module, "_STARTING_RETRY", 0.001)
    monkeypatch.setattr(module, "_FIRST_RETRY", 3600.0)
    async with running() as its:
        for _ in range(5):
            await its.tell(PodWatchError("FAILED_PRECONDITION", "not synced yet", starting=True))
            await until_holds(its.source.told.empty)
        await until_holds(lambda: its.source.followed == 6)
        assert its.identities.words == "pods not watched: not synced yet"
        await its.tell(StreamOpened(anew=True))
        assert its.connected
    told = [record.message for record in caplog.records]
    assert told == ([] if usual else ["the pod source fails", "the pod source fails: over"])


async def test_wait_after_a_failure_ends_by_retry_but_not_before_the_server_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FIRST_RETRY", 60.0)
    async with running() as its:
        await its.tell(PodWatchError("UNAVAILABLE", "it ended"))
        await asyncio.sleep(0.02)
        assert its.source.followed == 1
        its.identities.retry()
        await until_holds(lambda: its.source.followed == 2)
        began = its.now()
        await its.tell(PodWatchError("429", "too many", wait=0.1))
        its.identities.retry()
        await until_holds(lambda: its.source.followed == 3)
        assert its.now() - began >= 0.095


async def test_static_pods_alone_do_not_count_as_synced() -> None:
    async with running(replace(P, static=True)) as its:
        assert not its.identities.view.complete(its.now() + 60)
        await its.tell(PodSeen(replace(P, pod="q", uid="uid-2")))
        assert its.identities.view.complete(its.now() + 60)
