"""Who the pods are, kept up to date beside the mapping, which never waits for it.

One source is followed; what it tells is registered, and what follows from it is asked for: a refresh where
a holder may have let go or another may have come, another look at the last answer where more is known of a
holder. A holder whose uid is not proven is proven by asking the source once more, after List.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Final

import grpc

from exporter.mapping.identity import NEVER, PodRecord, PodRegistry, PodView, Poll
from exporter.mapping.model import PodKey
from exporter.mapping.state import State
from exporter.pods.source import (
    PodEvent,
    PodGone,
    PodSeen,
    PodsListed,
    PodsUnchanged,
    PodWatcher,
    PodWatchError,
    StreamOpened,
    UnreadableEvent,
)
from exporter.refresh.protocols import Trigger
from runtime.log import Episode, Log

RELIST: Final = 30.0
"""Seconds after which a source is asked for all pods, should nothing else have been a reason. The kubelet
does not tell of labels that change, and a stream that hangs looks like a node on which nothing happens.
"""
AGAIN: Final = (0.05, 0.2, 1.0, 3.0)
"""Seconds after a pod's end at which the kubelet is asked again while it still lists the pod: the status
that tells of the end is out before the kubelet counts the pod as terminated.
"""

_ASK_SPACING: Final = 0.2
_THOROUGH_SPACING: Final = 30.0
_CATCH_UP: Final = 2.0
"""Seconds within which a stream must have told what a list showed."""
_REFUSED: Final = 1.0
"""Seconds after which a source that refused to tell, for it is asked too often, is asked again."""
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 30.0
_CALM: Final = 60.0

_log = Log("identities")


class PodTracker:
    """Follows `source`, and is the refresh loop's witness. `bind` it to the loop, then `run` it."""

    def __init__(self, source: PodWatcher, *, expected: bool, relist: float = RELIST) -> None:
        """`expected`: somebody asked for this very source, so its absence is a failure."""
        self._source = source
        self._expected = expected
        self._relist = relist
        self._register = PodRegistry()
        self._trigger: Callable[[Trigger], None] = _nothing
        self._reconsider: Callable[[], None] = _nothing
        self._generation = -1
        self._holding: Mapping[PodKey, str] = {}
        self._unproven: dict[PodKey, float] = {}
        self._look = Poll(-NEVER, -NEVER)
        self._confirmed_at = -NEVER
        self._thorough_at = -NEVER
        self._told_at = -NEVER
        self._retry = asyncio.Event()
        self._doubt = asyncio.Event()
        self._thorough = False
        self._absent: str | None = None
        self._episode = Episode(_log, "who the pods are is not told", calm=_CALM, source=source.words)
        self._unclear = Episode(_log, "something about pods was not understood", calm=_CALM)

    @property
    def name(self) -> str:
        """The source, as --pods.source has it."""
        return self._source.name

    @property
    def view(self) -> PodView:
        """What is known of the pods at this moment."""
        return self._register.view

    @property
    def words(self) -> str:
        """What it does at present, for a person."""
        if self._register.view.connected:
            return self._source.words
        return f"pods not watched: {self._absent or self._episode.reason or 'not connected yet'}"

    def bind(self, *, trigger: Callable[[Trigger], None], reconsider: Callable[[], None]) -> None:
        """Whom to ask for a refresh, and for another look at the last answer."""
        self._trigger, self._reconsider = trigger, reconsider

    def retry(self) -> None:
        """The source may be there again: do not wait any longer."""
        self._retry.set()

    def looked(self, state: State, look: Poll) -> None:
        """A state was published: prove who is not proven."""
        before = self._look
        self._look = look
        if state.generation != self._generation:
            self._generation = state.generation
            self._holding = {
                (found.holder.namespace, found.holder.pod): found.holder.pod_uid
                for found in state.snapshot.containers
            }
            self._unproven = {
                key: self._unproven.get(key, before.asked) for key, uid in self._holding.items() if not uid
            }
        for key, asked_before in self._unproven.items():
            self._prove(key, asked_before)

    def _prove(self, key: PodKey, asked_before: float) -> None:
        found = [s for s in self._register.view.of(key) if s.known < NEVER and s.over == NEVER]
        if any(s.known > self._look.asked for s in found):
            self._trigger(Trigger.PODS)
        elif found and self._confirmed_at < self._look.answered:
            # A pod gets what it holds before it runs: this one ran, and held nothing yet.
            self._thorough |= any(s.running <= asked_before for s in found)
            self._doubt.set()

    async def run(self) -> None:
        """Follow and ask until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._ask())

    async def _follow(self) -> None:
        failures = 0
        while True:
            self._retry.clear()
            try:
                async with aclosing(self._source.follow()) as stream:
                    async for told in stream:
                        failures = 0
                        self._take(told)
            except PodWatchError as error:
                failures += 1
                self._lost(error)
                ceiling = min(_LAST_RETRY, _FIRST_RETRY * 2.0 ** min(failures - 1, 10))
                pause = ceiling * random.uniform(0.5, 1.0)  # noqa: S311 -- jitter
                await self._pause(pause, error.wait)

    async def _pause(self, seconds: float, at_least: float) -> None:
        await asyncio.sleep(at_least)
        try:
            async with asyncio.timeout(seconds):
                await self._retry.wait()
        except TimeoutError:
            return

    def _lost(self, error: PodWatchError) -> None:
        if self._source.lasting:
            self._register.connect(connected=False)
        else:
            self._register.clear()
        if error.absent and not self._expected:
            if self._absent is None:
                _log.info("pods' uids, labels and owners are not known", reason=error.message)
            self._absent = error.message
            self._episode.recovered()
            return
        self._episode.failed(f"{error.code}: {error.message}")

    async def _ask(self) -> None:
        """Prove holders when there is a doubt, and look at all pods now and then."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(self._relist):
                    await self._doubt.wait()
            except TimeoutError:
                pass
            self._doubt.clear()
            thorough = self._thorough and loop.time() - self._thorough_at >= _THOROUGH_SPACING
            if thorough:
                self._thorough_at = loop.time()
            self._thorough = False
            try:
                told = await self._source.confirm(thorough=thorough)
            except PodWatchError as error:
                self._refused(error)
            else:
                if told is not None:
                    self._take(told)
            await asyncio.sleep(_ASK_SPACING)

    def _refused(self, error: PodWatchError) -> None:
        if error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.name:
            asyncio.get_running_loop().call_later(_REFUSED, self._doubt.set)
            return
        self._episode.failed(f"{error.code}: {error.message}")
        # The stream runs over the same connection, which may be as dead.
        self._source.interrupt()

    def _take(self, told: PodEvent) -> None:
        now = asyncio.get_running_loop().time()
        match told:
            case StreamOpened(anew=anew):
                self._opened(anew=anew)
            case PodSeen():
                self._told_at = now
                self._see(told, now)
            case PodGone(key=key, uid=uid):
                self._told_at = now
                self._end(key, uid, self._register.end(key, uid, now))
            case PodsListed():
                self._list(told, now)
            case PodsUnchanged(asked=asked):
                self._confirm(asked)
            case UnreadableEvent(reason=reason):
                self._unclear.failed(reason)
                self._doubt.set()

    def _opened(self, *, anew: bool) -> None:
        if anew:
            self._register.clear()
        self._register.connect()
        if self._absent is not None:
            _log.info("pods' uids, labels and owners are known from now on", source=self._source.words)
            self._absent = None
        self._episode.recovered()

    def _see(self, told: PodSeen, now: float) -> bool:
        """Take in one pod. Whether it is news that there is one."""
        identity, key = told.identity, told.identity.key
        before = self._register.see(identity, now, known=told.known)
        if told.known and not identity.static:
            self._register.hear(now)
        new = before is None or (told.known and before.known == NEVER)
        uid = self._holding.get(key)
        if identity.ended:
            if before is None or not before.identity.ended:
                self._end(key, identity.uid, before)
        elif uid is None:
            if before is None:
                # It may have been given something by now.
                self._trigger(Trigger.PODS)
        elif uid != identity.uid:
            if new:
                self._trigger(Trigger.PODS)
        elif before is not None and before.identity != identity:
            self._reconsider()
        return before is None

    def _end(self, key: PodKey, uid: str, before: PodRecord | None) -> None:
        """A pod ended: what it held is free, or will be in a moment."""
        if before is None or before.over == NEVER:
            self._again(key, uid, (0.0, *AGAIN))

    def _again(self, key: PodKey, uid: str, delays: tuple[float, ...]) -> None:
        if self._holding.get(key) not in {"", uid}:
            return
        self._trigger(Trigger.PODS)
        if len(delays) > 1:
            asyncio.get_running_loop().call_later(delays[1], self._again, key, uid, delays[1:])

    def _list(self, told: PodsListed, now: float) -> None:
        fresh = [self._see(seen, now) for seen in told.pods]
        uids = [seen.identity.uid for seen in told.pods]
        for sighting in self._register.prune(uids, told.begun):
            self._end(sighting.identity.key, sighting.identity.uid, sighting)
        self._unclear.recovered()
        if self._source.lasting:
            self._register.hear(now)
        if told.asked is None:
            return
        self._confirm(told.asked, uids)
        if any(fresh):
            asyncio.get_running_loop().call_later(_CATCH_UP, self._catch_up, told.begun)

    def _catch_up(self, begun: float) -> None:
        """A list told of pods that the stream had not: it must have told of something by now."""
        if self._told_at < begun:
            self._source.interrupt()

    def _confirm(self, asked: float, uids: Iterable[str] | None = None) -> None:
        self._register.confirm(asked, uids)
        self._confirmed_at = max(self._confirmed_at, asked)
        if self._unproven:
            self._reconsider()


def _nothing(*_: object) -> None:
    """Before `bind` nobody is there to be asked."""
