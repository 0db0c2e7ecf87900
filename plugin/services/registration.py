"""Keeps one resource registered, through everything that a kubelet does.

Serve first, then register; begin anew on a fresh socket when the own one is removed (a kubelet that
restarts does that) or when the kubelet's is another; register again when no stream is open.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from daemon.directory import DirectoryWatcher, Kind
from daemon.log import Episode, Log
from daemon.paths import KubeletPaths
from plugin.core.lifecycle import Patience, Situation, SocketIdentity, Step, decide, retry_delay
from plugin.pb.deviceplugin.v1beta1 import api_pb2 as pb
from plugin.services.clock import Clock
from plugin.services.endpoint import Endpoint, socket_identity
from plugin.services.lease import Lease
from plugin.services.registrar import RegisterFailedError, register
from plugin.services.sockets import SocketNames
from plugin.services.tally import Tally

LOOK_INTERVAL: Final = 10.0
"""Seconds between looks at the sockets that nothing calls for: the net beneath inotify."""

_log = Log("registration")

OpenEndpoint = Callable[[Path, Callable[[], None]], Endpoint]
"""Makes an endpoint on a path, with what is to be called when a stream opens or ends."""


class Registration:
    """One resource's registration. Run `run()`; it ends only when it is cancelled."""

    def __init__(
        self,
        resource: str,
        *,
        paths: KubeletPaths,
        watcher: DirectoryWatcher,
        names: SocketNames,
        make_endpoint: OpenEndpoint,
        options: pb.DevicePluginOptions,
        clock: Clock,
        tally: Tally,
        patience: Patience,
    ) -> None:
        self._resource = resource
        self._paths = paths
        self._watcher = watcher
        self._names = names
        self._make_endpoint = make_endpoint
        self._options = options
        self._clock = clock
        self._tally = tally
        self._patience = patience
        self._lease = Lease(names.lease)
        self._wake = asyncio.Event()
        self._endpoint: Endpoint | None = None
        self._accepted_by: SocketIdentity | None = None
        self._kubelet: SocketIdentity | None = None
        self._quiet_since = 0.0
        self._had_stream = False
        self._failures = 0
        self._retry_at = 0.0
        self._renew = False
        self._failing = Episode(_log, "cannot register", resource=resource)
        self._blocked = Episode(_log, "waiting to register", resource=resource)
        self._unleased = Episode(_log, "cannot tell other plugin processes apart", resource=resource)
        self.stands_by = False
        """Whether another process on this node serves the resource."""
        self.doubt = asyncio.Event()
        """Set when the kubelet may have taken another's leaving for ours: after a registration, and when
        somebody else's socket vanished."""

    @property
    def registered(self) -> bool:
        """Whether the kubelet that is there now accepted the registration of the socket that is there now."""
        return self._accepted_by is not None and self._accepted_by == self._kubelet

    @property
    def streams(self) -> int:
        """How many ListAndWatch streams are open."""
        return 0 if self._endpoint is None else self._endpoint.streams

    @property
    def standing(self) -> int | None:
        """Which registration stands and is followed, by number; None where none does.

        Looked at anew: after a process was stopped for a while, what it remembers of the sockets is old.
        """
        endpoint = self._endpoint
        if endpoint is None or not endpoint.streams or not endpoint.is_there:
            return None
        return self._tally.registrations if self._is(self._accepted_by) else None

    @property
    def reason(self) -> str | None:
        """Why it is not registered, in words; None where that needs none."""
        return self._failing.reason or self._blocked.reason

    def renew(self) -> None:
        """Begin a new incarnation, whatever the present one looks like."""
        self._renew = True
        self._wake.set()

    async def run(self) -> None:
        """Keep it registered until cancelled, then leave nothing behind."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            try:
                while True:
                    await self._take_lease()
                    await self._incarnation()
            finally:
                self._lease.release()

    async def _follow(self) -> None:
        kubelet = self._paths.registration_socket.name
        async for change in self._watcher.follow(self._paths.device_plugins, contents=False):
            own = self._endpoint.path.name if self._endpoint is not None else None
            if change.kind is Kind.RESCAN or change.name in {kubelet, own}:
                self._wake.set()
            elif change.kind is Kind.VANISHED and change.name.endswith(".sock"):
                self.doubt.set()

    async def _take_lease(self) -> None:
        """Wait until no other process serves the resource. Where there can be no lease, go without."""
        while not self._paths.device_plugins.is_dir():
            self._blocked.failed(f"{self._paths.device_plugins} is not there", level="info")
            await self._changed(None)
        try:
            await self._lease.acquire(self._standing_by)
            for path in self._names.remove_stale():
                _log.info("removed a stale socket", resource=self._resource, path=path)
        except OSError as error:
            self._unleased.failed(error.strerror or str(error))
        else:
            self._unleased.recovered()
        self.stands_by = False
        self._blocked.recovered()

    def _standing_by(self) -> None:
        self.stands_by = True
        self._blocked.failed("another process on this node serves it", level="info")

    async def _incarnation(self) -> None:
        """Serve on a fresh socket and keep that registered, for as long as it is there."""
        endpoint = self._make_endpoint(self._names.fresh(), self._streams_changed)
        try:
            try:
                await endpoint.open()
            except OSError as error:
                await self._retry_later(f"cannot serve: {error}", refused=False)
                return
            self._endpoint = endpoint
            self._accepted_by = None
            self._had_stream = False
            self._renew = False
            while True:
                decision = decide(self._situation(endpoint), self._clock.steady(), self._patience)
                match decision.step:
                    case Step.RENEW:
                        _log.info("beginning anew", resource=self._resource, socket=endpoint.path.name)
                        return
                    case Step.REGISTER:
                        await self._attempt(endpoint)
                    case Step.WAIT:
                        await self._changed(decision.until)
        finally:
            self._endpoint = None
            self._accepted_by = None
            await endpoint.close()

    def _situation(self, endpoint: Endpoint) -> Situation:
        kubelet = socket_identity(self._paths.registration_socket)
        if kubelet != self._kubelet:
            # A kubelet that has just come: whatever the last one said about the next attempt is void.
            self._failures = 0
            self._retry_at = 0.0
            self._kubelet = kubelet
        if kubelet is None:
            self._blocked.failed(f"{self._paths.registration_socket} is not there: no kubelet", level="info")
        else:
            self._blocked.recovered()
        return Situation(
            own_socket=endpoint.is_there,
            kubelet=kubelet,
            accepted_by=self._accepted_by,
            streams=endpoint.streams,
            quiet_since=self._quiet_since,
            had_stream=self._had_stream,
            retry_at=self._retry_at,
            renew=self._renew,
        )

    async def _attempt(self, endpoint: Endpoint) -> None:
        """Register once; given up when the kubelet's socket or the own one changes meanwhile."""
        asked = self._kubelet
        self._had_stream = endpoint.streams > 0
        call = asyncio.create_task(
            register(self._paths.registration_socket, self._resource, endpoint.path.name, self._options)
        )
        try:
            while not call.done():
                wake = asyncio.create_task(self._wake.wait())
                await asyncio.wait({call, wake}, return_when=asyncio.FIRST_COMPLETED)
                wake.cancel()
                self._wake.clear()
                if not call.done() and not (self._is(asked) and endpoint.is_there):
                    return
            call.result()
        except RegisterFailedError as error:
            self._tally.registration_errors += 1
            await self._retry_later(str(error), refused=error.refused)
        else:
            self._accept(asked)
        finally:
            if not call.done():
                call.cancel()
                with suppress(asyncio.CancelledError, RegisterFailedError):
                    await call

    def _is(self, kubelet: SocketIdentity | None) -> bool:
        return kubelet is not None and socket_identity(self._paths.registration_socket) == kubelet

    def _accept(self, kubelet: SocketIdentity | None) -> None:
        self._tally.registrations += 1
        self._failures = 0
        self._retry_at = 0.0
        self._accepted_by = kubelet
        self._quiet_since = self._clock.steady()
        self._failing.recovered()
        self._blocked.recovered()
        self.doubt.set()
        _log.info("registered", resource=self._resource)

    async def _retry_later(self, reason: str, *, refused: bool) -> None:
        self._failures += 1
        self._retry_at = self._clock.steady() + retry_delay(self._failures, refused=refused)
        # The first attempts after a kubelet's socket appeared fail while it does not accept yet.
        self._failing.failed(reason, level="warn" if refused or self._failures > 6 else "info")
        await self._changed(self._retry_at)

    def _streams_changed(self) -> None:
        if self.streams:
            self._had_stream = True
        else:
            self._quiet_since = self._clock.steady()
        self._wake.set()

    async def _changed(self, until: float | None) -> None:
        """Wait for a change that may matter, or for the steady time `until`; look again now and then."""
        limit = LOOK_INTERVAL if until is None else max(0.0, min(until - self._clock.steady(), LOOK_INTERVAL))
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._wake.wait()
        self._wake.clear()
