"""Tracks the pods of the node beside the mapping, which never waits for it.

Follows one pod watcher and records its events. Where they may change the mapping, requests a refresh (a
holder may have ended or come) or another reading of the last answer (more is known of a holder). A holder
without a proven uid is proven by one more list of the watcher, after the kubelet's List.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Final

import grpc

from exporter.mapping.identity import NEVER, PodIdentity, PodRecord, PodRegistry, PodView, Poll
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
from exporter.refresh.protocols import NoRequests, RefreshRequests, Trigger
from runtime.clock import wait_within
from runtime.log import Episode, Log

RELIST: Final = 30.0
"""Seconds after which all pods are listed without another reason. The kubelet sends no event for a changed
label, and a hanging stream is indistinguishable from an idle node.
"""
AGAIN: Final = (0.05, 0.2, 1.0, 3.0)
"""Seconds after a pod's end at which List is called again while it still has the pod: the kubelet reports the
status before it counts the pod as terminated.
"""

_CONFIRM_SPACING: Final = 0.2
_THOROUGH_SPACING: Final = 30.0
_CATCH_UP: Final = 2.0
"""Seconds within which the stream must report what a list showed."""
_REFUSED: Final = 1.0
"""Seconds after which a rate-limited list is requested again."""
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 30.0
_CALM: Final = 60.0
_STARTING: Final = 60.0
"""Seconds for which a source may be starting before that is logged. A kubelet that restarts beside its API
server takes one second.
"""
_STARTING_RETRY: Final = 1.0
"""Seconds after which a starting source is followed again, at most."""

_log = Log("identities")


class PodTracker:
    """The refresh loop's PodSource. `bind` it to the loop, then `run` it as an actor."""

    def __init__(self, watcher: PodWatcher, *, expected: bool, relist: float = RELIST) -> None:
        """`expected`: this watcher was configured explicitly, so its absence is a failure."""
        self._watcher = watcher
        self._expected = expected
        self._relist = relist
        self._registry = PodRegistry()
        self._requests: RefreshRequests = NoRequests()
        self._generation = -1
        self._holding: Mapping[PodKey, str] = {}
        self._unproven: dict[PodKey, float] = {}
        self._poll = Poll(-NEVER, -NEVER)
        self._confirmed_at = -NEVER
        self._thorough_at = -NEVER
        self._event_at = -NEVER
        self._retry = asyncio.Event()
        self._doubt = asyncio.Event()
        self._thorough = False
        self._absent: str | None = None
        self._starting_since = NEVER
        self._absence_logged = False
        self._failing = Episode(_log, "the pod source fails", calm=_CALM, source=watcher.words)
        self._unreadable = Episode(_log, "an event of the pod source does not decode", calm=_CALM)

    @property
    def name(self) -> str:
        """The watcher, as --pods.source has it."""
        return self._watcher.name

    @property
    def view(self) -> PodView:
        """The present view."""
        return self._registry.view

    @property
    def words(self) -> str:
        """Its present condition, for a person."""
        if self._registry.view.connected:
            return self._watcher.words
        return f"pods not watched: {self._absent or self._failing.reason or 'not connected yet'}"

    def bind(self, requests: RefreshRequests) -> None:
        """Set the refresh loop."""
        self._requests = requests

    def retry(self) -> None:
        """Connect now: the watcher's server may be back."""
        self._retry.set()

    def polled(self, state: State, poll: Poll) -> None:
        """Prove the holders of a published state whose uid is not proven."""
        before, self._poll = self._poll, poll
        if state.generation != self._generation:
            self._generation = state.generation
            self._holding = {
                (found.holder.namespace, found.holder.pod): found.holder.pod_uid
                for found in state.snapshot.containers
            }
            self._unproven = {
                key: self._unproven.get(key, before.asked)
                for key, uid in self._holding.items()
                # List is the proof, and names no pod that is unconfirmed.
                if not uid and key not in state.snapshot.unconfirmed
            }
        for key, asked_before in self._unproven.items():
            self._prove(key, asked_before)

    def _prove(self, key: PodKey, asked_before: float) -> None:
        found = [record for record in self.view.of(key) if record.known < NEVER and record.over == NEVER]
        if any(record.known > self._poll.asked for record in found):
            self._requests.trigger(Trigger.PODS)
        elif found and self._confirmed_at < self._poll.answered:
            # A pod gets devices before it runs: this one was running, and held nothing yet.
            self._thorough |= any(record.running <= asked_before for record in found)
            self._doubt.set()

    async def run(self) -> None:
        """Watch and confirm until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._confirm_loop())

    async def _follow(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            self._retry.clear()
            try:
                async with aclosing(self._watcher.follow()) as stream:
                    async for event in stream:
                        failures = 0
                        self._take(event)
            except PodWatchError as error:
                failures += 1
                self._disconnected(error, loop.time())
                last = _STARTING_RETRY if error.starting else _LAST_RETRY
                ceiling = min(last, _FIRST_RETRY * 2.0 ** min(failures - 1, 10))
                pause = ceiling * random.uniform(0.5, 1.0)  # noqa: S311 -- jitter
                await asyncio.sleep(error.wait)
                await wait_within(self._retry, pause)

    def _disconnected(self, error: PodWatchError, now: float) -> None:
        if self._watcher.lasting:
            self._registry.connect(connected=False)
        else:
            self._registry.clear()
        if error.absent and not self._expected:
            # A kubelet that is down may serve the source later; the refresh loop logs that it is down.
            if error.code != grpc.StatusCode.UNAVAILABLE.name and not self._absence_logged:
                self._absence_logged = True
                _log.info("pods' uids, labels and owners are not known", reason=error.message)
            self._absent = error.message
            self._failing.recovered()
            return
        self._absent = None
        if not error.starting:
            self._starting_since = NEVER
            self._failing.failed(f"{error.code}: {error.message}")
            return
        self._starting_since = min(self._starting_since, now)
        usual = now - self._starting_since < _STARTING
        self._failing.failed(error.message, level="debug" if usual else "warn")

    async def _confirm_loop(self) -> None:
        """List the pods when a holder is not proven, and every `relist` seconds."""
        loop = asyncio.get_running_loop()
        while True:
            await wait_within(self._doubt, self._relist)
            self._doubt.clear()
            thorough = self._thorough and loop.time() - self._thorough_at >= _THOROUGH_SPACING
            if thorough:
                self._thorough_at = loop.time()
            self._thorough = False
            try:
                answer = await self._watcher.confirm(thorough=thorough)
            except PodWatchError as error:
                if error.starting or error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.name:
                    loop.call_later(_REFUSED, self._doubt.set)
                else:
                    self._failing.failed(f"{error.code}: {error.message}")
                    # The stream uses the same connection, which may be dead.
                    self._watcher.interrupt()
            else:
                if answer is not None:
                    self._take(answer)
            await asyncio.sleep(_CONFIRM_SPACING)

    def _take(self, event: PodEvent) -> None:
        now = asyncio.get_running_loop().time()
        match event:
            case StreamOpened(anew=anew):
                self._opened(anew=anew)
            case PodSeen():
                self._event_at = now
                self._see(event, now)
            case PodGone(key=key, uid=uid):
                self._event_at = now
                self._end(key, uid, self._registry.end(key, uid, now))
            case PodsListed():
                self._list(event, now)
            case PodsUnchanged(asked=asked):
                self._confirm(asked)
            case UnreadableEvent(reason=reason):
                self._unreadable.failed(reason)
                self._doubt.set()

    def _opened(self, *, anew: bool) -> None:
        if anew:
            self._registry.clear()
        self._registry.connect()
        self._absent, self._starting_since = None, NEVER
        if self._absence_logged:
            _log.info("pods' uids, labels and owners are known from now on", source=self._watcher.words)
            self._absence_logged = False
        self._failing.recovered()

    def _see(self, event: PodSeen, now: float) -> bool:
        """Record one pod and request what follows from it. Returns whether it is new."""
        key = event.identity.key
        before = self._registry.see(event.identity, now, known=event.known)
        identity = event.identity if before is None else before.identity.succeeded_by(event.identity)
        if event.known and not identity.static:
            self._registry.sync(now)
        newly_known = before is None or (event.known and before.known == NEVER)
        uid = self._holding.get(key)
        if identity.ended:
            if before is None or not before.identity.ended:
                self._end(key, identity.uid, before)
        elif before is None if uid is None else uid != identity.uid and newly_known:
            # It may have devices by now.
            self._requests.trigger(Trigger.PODS)
        elif before is not None and _changed(before.identity, identity, holds=uid == identity.uid):
            self._requests.reconsider()
        return before is None

    def _end(self, key: PodKey, uid: str, before: PodRecord | None) -> None:
        """A pod ended: its devices are free, or will be in a moment."""
        if before is None or before.over == NEVER:
            self._refresh_until_released(key, uid, (0.0, *AGAIN))

    def _refresh_until_released(self, key: PodKey, uid: str, delays: tuple[float, ...]) -> None:
        if self._holding.get(key) not in {"", uid}:
            return
        self._requests.trigger(Trigger.PODS)
        if len(delays) > 1:
            loop = asyncio.get_running_loop()
            loop.call_later(delays[1], self._refresh_until_released, key, uid, delays[1:])

    def _list(self, event: PodsListed, now: float) -> None:
        new = [self._see(seen, now) for seen in event.pods]
        uids = [seen.identity.uid for seen in event.pods]
        for record in self._registry.prune(uids, event.begun):
            self._end(record.identity.key, record.identity.uid, record)
        self._unreadable.recovered()
        if self._watcher.lasting:
            self._registry.sync(now)
        if event.asked is None:
            return
        self._confirm(event.asked, uids)
        if any(new):
            asyncio.get_running_loop().call_later(_CATCH_UP, self._check_stream, event.begun)

    def _check_stream(self, begun: float) -> None:
        """A list had pods that the stream had not reported: it must have reported something by now."""
        if self._event_at < begun:
            self._watcher.interrupt()

    def _confirm(self, asked: float, uids: Iterable[str] | None = None) -> None:
        self._registry.confirm(asked, uids)
        self._confirmed_at = max(self._confirmed_at, asked)
        if self._unproven:
            self._requests.reconsider()


def _changed(before: PodIdentity, after: PodIdentity, *, holds: bool) -> bool:
    """Whether the mapping depends on a change of a pod: on any of a holder's, else on its devices, which may
    be claimed and not yet held, or held for administration.
    """
    return before != after if holds else before.devices != after.devices
