"""Keeps one resource registered with the kubelet, by either method. Serves on a socket, then registers.

Rules of the kubelet that the decisions follow:

- A restart deletes every socket in device-plugins and makes a new kubelet.sock.
- When a plugin registers while its own older stream is open and that stream then ends, the kubelet stops
  the new endpoint too. An open stream is therefore ended before registering again.
- In plugins_registry the kubelet looks for new sockets once a second. It does not open a broken stream
  again unless the socket is created anew. Of two socket names for one resource it would process the removal
  of one and the addition of the other in any order, so the name stays the same.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final

from msgspec import Struct

from kubelet.registration import PluginWatcherServicer, RegisterFailedError, register
from plugin.serving.context import Patience, PluginContext
from plugin.serving.endpoint import Endpoint
from plugin.serving.sockets import Lease, SocketIdentity, SocketNames, is_served, socket_identity
from plugin.serving.status import ResourceCounters
from runtime.clock import wait_within
from runtime.directory import Kind
from runtime.log import Episode, Log

CHECK_INTERVAL: Final = 10.0
"""Seconds between checks of the sockets, in case inotify misses a change."""
FIRST_RETRY: Final = 0.01
LAST_RETRY: Final = 1.0
"""Seconds between attempts that reach no kubelet: doubled from the first to the last."""
LAST_RETRY_REFUSED: Final = 30.0
"""The same for attempts that the kubelet answers with an error."""
MAX_RENEWAL_PAUSE: Final = 60.0
"""Seconds until a socket that the kubelet does not follow is created anew: doubled up to this."""
_QUIET_FAILURES: Final = 6
"""Attempts in a row, over 0.6 s, that are logged at debug level: a new kubelet does not accept at once."""

_log = Log("registration")


class Step(Enum):
    """What to do next."""

    WAIT = "wait"
    REGISTER = "register"
    RENEW = "renew"
    """End this endpoint with its streams, and serve on a new socket."""


class RegistrationState(Struct):
    """The state of a registration. Times are monotonic seconds.

    `own_socket`: the plugin's socket exists; `kubelet`: the kubelet's socket; `accepted_by`: the kubelet
    socket that accepted; `quiet_since`: since when no stream is open; `had_stream`: one was open since the
    registration; `refused`: by this kubelet; `retry_at`: no attempt before; `renewals`: sockets in a row
    that got no stream; `renew`: a new endpoint was requested.
    """

    own_socket: bool = False
    kubelet: SocketIdentity | None = None
    accepted_by: SocketIdentity | None = None
    streams: int = 0
    quiet_since: float = 0.0
    had_stream: bool = False
    refused: bool = False
    retry_at: float = 0.0
    renewals: int = 0
    renew: bool = False


class Decision(Struct, frozen=True):
    """A step; for WAIT with the time of the next decision, None: when something changes."""

    step: Step
    until: float | None = None


def decide(state: RegistrationState, now: float, patience: Patience) -> Decision:
    """The next step of a registration by a Register call."""
    if not state.own_socket or state.renew:
        return Decision(Step.RENEW)
    if state.kubelet is None:
        return Decision(Step.WAIT)
    if state.accepted_by != state.kubelet:
        if state.accepted_by is not None and state.streams:
            return Decision(Step.RENEW)
        return _at(Step.REGISTER, state.retry_at, now)
    if state.streams:
        return Decision(Step.WAIT)
    wait = patience.lost_stream if state.had_stream else patience.no_stream
    return _at(Step.REGISTER, max(state.quiet_since + wait, state.retry_at), now)


def decide_by_directory(state: RegistrationState, now: float, patience: Patience) -> Decision:
    """The next step of a registration by a socket in plugins_registry."""
    if not state.own_socket or state.renew:
        return Decision(Step.RENEW)
    if state.streams or state.kubelet is None:
        return Decision(Step.WAIT)
    wait = patience.lost_stream if state.had_stream else patience.no_stream
    again = min(wait * 2.0 ** min(state.renewals, 16), MAX_RENEWAL_PAUSE)
    return _at(Step.RENEW, state.retry_at if state.refused else state.quiet_since + again, now)


def _at(step: Step, time: float, now: float) -> Decision:
    return Decision(step) if now >= time else Decision(Step.WAIT, time)


def retry_delay(failures: int, *, refused: bool) -> float:
    """Seconds to wait after the given number of failed attempts in a row (1, 2, …)."""
    last = LAST_RETRY_REFUSED if refused else LAST_RETRY
    return min(FIRST_RETRY * 2.0 ** min(failures - 1, 32), last)


MakeEndpoint = Callable[[Path, Callable[[], None]], Endpoint]
"""Makes an endpoint on a path, with a callback for streams that open or end."""


class Registration(ABC):
    """One resource's registration. Run `run()`; it ends only when it is cancelled."""

    def __init__(
        self,
        resource: str,
        context: PluginContext,
        *,
        names: SocketNames,
        other_names: SocketNames | None,
        lease: Path,
        make_endpoint: MakeEndpoint,
        counters: ResourceCounters,
    ) -> None:
        """`names`: of its sockets; `other_names`: of the sockets of the other registration method."""
        self._resource = resource
        self._paths = context.paths
        self._watcher = context.watcher
        self._clock = context.clock
        self._patience = context.patience
        self._names = names
        self._other_names = other_names
        self._make_endpoint = make_endpoint
        self._counters = counters
        self._lease = Lease(lease)
        self._wake = asyncio.Event()
        self._endpoint: Endpoint | None = None
        self._state = RegistrationState()
        self._failures = 0
        self._failing = Episode(_log, "cannot register", resource=resource)
        self._blocked = Episode(_log, "waiting to register", resource=resource)
        self._unleased = Episode(_log, "cannot detect other plugin processes", resource=resource)
        self.stands_by = False
        """Whether another process on this node serves the resource."""
        self.leased = asyncio.Event()
        """Set once no other process on this node serves the resource."""
        self.doubt = asyncio.Event()
        """Set when the kubelet may have stopped the endpoint for another plugin's end: after a
        registration, and when a foreign socket vanishes."""

    @abstractmethod
    async def _keep(self, endpoint: Endpoint) -> None:
        """Keep `endpoint` registered, until a new one is needed."""

    @property
    def registered(self) -> bool:
        """Whether the present kubelet accepted the present socket."""
        return self._state.accepted_by is not None and self._state.accepted_by == self._state.kubelet

    @property
    def streams(self) -> int:
        """How many ListAndWatch streams are open."""
        return 0 if self._endpoint is None else self._endpoint.streams

    @property
    def standing(self) -> int | None:
        """The number of the registration that the kubelet follows, None where it follows none.

        Checks the sockets themselves: a process that was stopped for a while has not seen their events.
        """
        endpoint = self._endpoint
        if endpoint is None or not endpoint.streams or not endpoint.is_there:
            return None
        return self._counters.registrations if self._is_current(self._state.accepted_by) else None

    @property
    def problem(self) -> str | None:
        """Why the resource is not registered, in words."""
        return self._failing.reason or self._blocked.reason

    def renew(self) -> None:
        """Serve on a new socket and register it."""
        self._state.renew = True
        self._wake.set()

    async def run(self) -> None:
        """Keep the resource registered until cancelled, then remove the sockets."""
        async with asyncio.TaskGroup() as group:
            for directory in {self._paths.device_plugins, self._names.directory}:
                group.create_task(self._follow(directory))
            try:
                while True:
                    await self._take_lease()
                    await self._serve_once()
            finally:
                self._lease.release()

    async def _follow(self, directory: Path) -> None:
        async for change in self._watcher.follow(directory, contents=False):
            own = None if self._endpoint is None else self._endpoint.path
            if change.kind is Kind.RESCAN or directory / change.name in {
                self._paths.registration_socket,
                own,
            }:
                self._wake.set()
            elif change.kind is Kind.VANISHED and change.name.endswith(".sock"):
                self.doubt.set()

    async def _take_lease(self) -> None:
        """Wait until no other process serves the resource. Without a usable lock, serve all the same."""
        for directory in (self._paths.device_plugins, self._names.directory):
            while not directory.is_dir():
                self._blocked.failed(f"{directory} is not there", level="info")
                await self._changed(None)
        try:
            await self._lease.acquire(self._stand_by)
            self._remove_stale_sockets()
        except OSError as error:
            self._unleased.failed(error.strerror or str(error))
        else:
            self._unleased.recovered()
        self.stands_by = False
        self.leased.set()
        self._blocked.recovered()

    def _remove_stale_sockets(self) -> None:
        """Remove the sockets of a process that was killed, of both registration methods."""
        for names in (self._names, self._other_names):
            if names is not None and names.directory.is_dir():
                for path in names.remove_stale():
                    _log.info("removed a stale socket", resource=self._resource, path=path)

    def _stand_by(self) -> None:
        self.stands_by = True
        self._blocked.failed("another process on this node serves it", level="info")

    async def _serve_once(self) -> None:
        """Serve on a new socket and keep that registered, until a new one is needed."""
        endpoint = self._make_endpoint(self._names.fresh(), self._streams_changed)
        try:
            try:
                await self._open(endpoint)
            except OSError as error:
                await self._retry_later(f"cannot serve: {error}", refused=False)
                return
            self._endpoint = endpoint
            self._state.accepted_by = None
            self._state.had_stream = False
            self._state.renew = False
            self._state.quiet_since = self._clock.monotonic()
            await self._keep(endpoint)
            _log.info("serving on a new socket", resource=self._resource, instead_of=endpoint.path.name)
        finally:
            self._endpoint = None
            self._state.accepted_by = None
            await endpoint.close()

    async def _open(self, endpoint: Endpoint) -> None:
        await endpoint.open()

    def _refresh(self, endpoint: Endpoint) -> RegistrationState:
        """The state, with what the sockets and streams are now."""
        self._state.own_socket = endpoint.is_there
        self._current_kubelet()
        self._state.streams = endpoint.streams
        return self._state

    def _current_kubelet(self) -> SocketIdentity | None:
        """The kubelet's socket. A new one resets the retries."""
        kubelet = socket_identity(self._paths.registration_socket)
        if kubelet != self._state.kubelet:
            self._failures = 0
            self._state.retry_at = 0.0
            self._state.kubelet = kubelet
        if kubelet is None:
            self._blocked.failed(f"{self._paths.registration_socket} is not there: no kubelet", level="info")
        else:
            self._blocked.recovered()
        return kubelet

    def _is_current(self, kubelet: SocketIdentity | None) -> bool:
        return kubelet is not None and socket_identity(self._paths.registration_socket) == kubelet

    def _accept(self, kubelet: SocketIdentity | None) -> None:
        self._counters.registrations += 1
        self._failures = 0
        self._state.retry_at = 0.0
        self._state.accepted_by = kubelet
        self._state.quiet_since = self._clock.monotonic()
        self._failing.recovered()
        self._blocked.recovered()
        self.doubt.set()
        _log.info("registered", resource=self._resource)

    async def _retry_later(self, reason: str, *, refused: bool) -> None:
        self._failed(reason, refused=refused)
        await self._changed(self._state.retry_at)

    def _failed(self, reason: str, *, refused: bool) -> None:
        self._failures += 1
        self._state.retry_at = self._clock.monotonic() + retry_delay(self._failures, refused=refused)
        self._failing.failed(reason, level="warn" if refused or self._failures > _QUIET_FAILURES else "debug")

    def _streams_changed(self) -> None:
        if self.streams:
            self._state.had_stream = True
        else:
            self._state.quiet_since = self._clock.monotonic()
        self._wake.set()

    async def _changed(self, until: float | None) -> None:
        """Wait for a change or the time `until`, at most CHECK_INTERVAL."""
        limit = CHECK_INTERVAL if until is None else min(until - self._clock.monotonic(), CHECK_INTERVAL)
        await wait_within(self._wake, max(0.0, limit))
        self._wake.clear()


class SocketRegistration(Registration):
    """Registers by a Register call to the kubelet's socket in device-plugins."""

    async def _keep(self, endpoint: Endpoint) -> None:
        while True:
            decision = decide(self._refresh(endpoint), self._clock.monotonic(), self._patience)
            match decision.step:
                case Step.RENEW:
                    return
                case Step.REGISTER:
                    await self._register(endpoint)
                case Step.WAIT:
                    await self._changed(decision.until)

    async def _register(self, endpoint: Endpoint) -> None:
        """Call Register; cancelled when the kubelet's socket or the own one changes meanwhile."""
        kubelet = self._state.kubelet
        self._state.had_stream = endpoint.streams > 0
        call = asyncio.create_task(
            register(self._paths.registration_socket, self._resource, endpoint.path.name, endpoint.options)
        )
        try:
            while not call.done():
                wake = asyncio.create_task(self._wake.wait())
                await asyncio.wait({call, wake}, return_when=asyncio.FIRST_COMPLETED)
                wake.cancel()
                self._wake.clear()
                if not call.done() and not (self._is_current(kubelet) and endpoint.is_there):
                    return
            call.result()
        except RegisterFailedError as error:
            self._counters.registration_errors += 1
            await self._retry_later(str(error), refused=error.refused)
        else:
            self._accept(kubelet)
        finally:
            call.cancel()
            # asyncio.wait rather than await: a cancellation meanwhile is for this task, and must end it.
            await asyncio.wait({call})
            if not call.cancelled():
                call.exception()  # retrieved, or asyncio logs it as never retrieved


class DirectoryRegistration(Registration):
    """Registers by a socket in plugins_registry. A hidden name keeps the kubelet away until it serves."""

    async def _open(self, endpoint: Endpoint) -> None:
        endpoint.add_service(PluginWatcherServicer(self._resource, self._notified).add_to)
        await endpoint.open()
        self._state.refused = False
        endpoint.rename(self._names.standing)

    def _notified(self, refusal: str | None) -> None:
        if refusal is None:
            self._state.refused = False
            self._state.had_stream = self.streams > 0
            self._accept(self._current_kubelet())
        else:
            self._counters.registration_errors += 1
            self._state.refused = True
            self._failed(refusal, refused=True)
            self._state.retry_at = max(self._state.retry_at, self._clock.monotonic() + self._patience.refused)
        self._wake.set()

    async def _keep(self, endpoint: Endpoint) -> None:
        while True:
            decision = decide_by_directory(self._refresh(endpoint), self._clock.monotonic(), self._patience)
            if decision.step is Step.WAIT:
                await self._changed(decision.until)
            elif not endpoint.is_there or self._state.renew or self._state.refused:
                return
            elif is_served(self._paths.registration_socket):
                self._state.renewals += 1
                self._failing.failed("the kubelet opens no stream: serving on a new socket", level="warn")
                return
            else:
                # A kubelet that does not run cannot have noticed the socket: start counting again.
                self._state.quiet_since = self._clock.monotonic()

    def _refresh(self, endpoint: Endpoint) -> RegistrationState:
        before = self._state.kubelet
        if self._current_kubelet() != before:
            self._state.quiet_since = self._clock.monotonic()
            self._state.had_stream = endpoint.streams > 0
        if endpoint.streams:
            self._state.renewals = 0
            self._failing.recovered()
        return super()._refresh(endpoint)
