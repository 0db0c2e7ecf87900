"""Keeps one resource registered, through everything that a kubelet does.

Serve first, then be registered; begin anew on a fresh socket when the own one is removed or a kubelet
does not follow it any more. How a kubelet is told differs: `by_socket`, `by_directory`.

Registered by a call to the kubelet's socket in device-plugins: the way that every kubelet knows.

A kubelet that restarts removes the sockets there and forgets everybody: register with it again.

Registered by directory: a socket in plugins_registry, at which the kubelet asks who it is.

A kubelet that restarts finds the socket again by itself. A stream that broke it does not open again:
then the socket is made anew. Always under the same name, for of two names it would undo the one and do
the other at the same time, and who has the resource then is chance; of one it does one after the other.
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc.aio

from kubelet.paths import KubeletPaths
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from kubelet.pb.pluginregistration.v1 import api_pb2 as pb_by_directory
from kubelet.pb.pluginregistration.v1 import api_pb2_grpc as pb_grpc
from kubelet.registration import RegisterFailedError, register
from plugin.serving.endpoint import Endpoint, socket_identity
from plugin.serving.lifecycle import (
    DirectorySituation,
    Patience,
    Situation,
    SocketIdentity,
    Step,
    decide,
    decide_by_directory,
    retry_delay,
)
from plugin.serving.sockets import Lease, SocketNames
from plugin.serving.status import Tally
from runtime.clock import Clock
from runtime.directory import Change, DirectoryWatcher, Kind
from runtime.log import Episode, Log

LOOK_INTERVAL: Final = 10.0
"""Seconds between looks at the sockets that nothing calls for: the net beneath inotify."""
_USUAL_FAILURES: Final = 6
"""Attempts in a row, 0.6 s, that may fail without a word."""

_log = Log("registration")

OpenEndpoint = Callable[[Path, Callable[[], None]], Endpoint]
"""Makes an endpoint on a path, with what is to be called when a stream opens or ends."""


@dataclass(frozen=True, slots=True)
class Basics:
    """What a registration is made of.

    `names`: of the sockets that are made; `elsewhere`: of those that the other way of registering makes;
    `lease`: the lock's file.
    """

    resource: str
    paths: KubeletPaths
    watcher: DirectoryWatcher
    names: SocketNames
    elsewhere: SocketNames | None
    lease: Path
    make_endpoint: OpenEndpoint
    clock: Clock
    tally: Tally
    patience: Patience


class Registration(ABC):
    """One resource's registration. Run `run()`; it ends only when it is cancelled."""

    def __init__(self, basics: Basics) -> None:
        resource = basics.resource
        self._resource = resource
        self._paths = basics.paths
        self._watcher = basics.watcher
        self._names = basics.names
        self._elsewhere = basics.elsewhere
        self._make_endpoint = basics.make_endpoint
        self._clock = basics.clock
        self._tally = basics.tally
        self._patience = basics.patience
        self._lease = Lease(basics.lease)
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
        self.leased = asyncio.Event()
        """Set once no other process on this node serves the resource, as far as that can be known."""
        self.doubt = asyncio.Event()
        """Set when the kubelet may have taken another's leaving for ours: after a registration, and when
        somebody else's socket vanished."""

    @abstractmethod
    async def _keep(self, endpoint: Endpoint) -> None:
        """Have the kubelet follow this endpoint, until another incarnation is to begin."""

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
            for directory in {self._paths.device_plugins, self._names.directory}:
                group.create_task(self._follow(directory))
            try:
                while True:
                    await self._take_lease()
                    await self._incarnation()
            finally:
                self._lease.release()

    async def _follow(self, directory: Path) -> None:
        async for change in self._watcher.follow(directory, contents=False):
            if change.kind is Kind.RESCAN or self._matters(directory / change.name):
                self._wake.set()
            elif _is_foreign_end(change):
                self.doubt.set()

    def _matters(self, path: Path) -> bool:
        own = None if self._endpoint is None else self._endpoint.path
        return path in {self._paths.registration_socket, own}

    async def _take_lease(self) -> None:
        """Wait until no other process serves the resource. Where there can be no lease, go without."""
        for directory in (self._paths.device_plugins, self._names.directory):
            while not directory.is_dir():
                self._blocked.failed(f"{directory} is not there", level="info")
                await self._changed(None)
        try:
            await self._lease.acquire(self._standing_by)
            self._remove_stale()
        except OSError as error:
            self._unleased.failed(error.strerror or str(error))
        else:
            self._unleased.recovered()
        self.stands_by = False
        self.leased.set()
        self._blocked.recovered()

    def _remove_stale(self) -> None:
        """What a process that was killed left behind, whichever way it was registered."""
        for names in (self._names, self._elsewhere):
            if names is not None and names.directory.is_dir():
                for path in names.remove_stale():
                    _log.info("removed a stale socket", resource=self._resource, path=path)

    def _standing_by(self) -> None:
        self.stands_by = True
        self._blocked.failed("another process on this node serves it", level="info")

    async def _incarnation(self) -> None:
        """Serve on a fresh socket and keep that registered, for as long as it is there."""
        endpoint = self._make_endpoint(self._names.fresh(), self._streams_changed)
        try:
            try:
                await self._open(endpoint)
            except OSError as error:
                await self._retry_later(f"cannot serve: {error}", refused=False)
                return
            self._endpoint = endpoint
            self._accepted_by = None
            self._had_stream = False
            self._renew = False
            self._quiet_since = self._clock.monotonic()
            await self._keep(endpoint)
            _log.info("beginning anew", resource=self._resource, socket=endpoint.path.name)
        finally:
            self._endpoint = None
            self._accepted_by = None
            await endpoint.close()

    async def _open(self, endpoint: Endpoint) -> None:
        """Serve. Raises OSError."""
        await endpoint.open()

    def _look_for_kubelet(self) -> SocketIdentity | None:
        """The kubelet's socket as it is now; whatever was said of an earlier one's is void."""
        kubelet = socket_identity(self._paths.registration_socket)
        if kubelet != self._kubelet:
            self._failures = 0
            self._retry_at = 0.0
            self._kubelet = kubelet
        if kubelet is None:
            self._blocked.failed(f"{self._paths.registration_socket} is not there: no kubelet", level="info")
        else:
            self._blocked.recovered()
        return kubelet

    def _is(self, kubelet: SocketIdentity | None) -> bool:
        return kubelet is not None and socket_identity(self._paths.registration_socket) == kubelet

    def _accept(self, kubelet: SocketIdentity | None) -> None:
        self._tally.registrations += 1
        self._failures = 0
        self._retry_at = 0.0
        self._accepted_by = kubelet
        self._quiet_since = self._clock.monotonic()
        self._failing.recovered()
        self._blocked.recovered()
        self.doubt.set()
        _log.info("registered", resource=self._resource)

    async def _retry_later(self, reason: str, *, refused: bool) -> None:
        self._failed(reason, refused=refused)
        await self._changed(self._retry_at)

    def _failed(self, reason: str, *, refused: bool) -> None:
        self._failures += 1
        self._retry_at = self._clock.monotonic() + retry_delay(self._failures, refused=refused)
        # The first attempts after a kubelet's socket appeared fail while it does not accept yet.
        self._failing.failed(reason, level="warn" if refused or self._failures > _USUAL_FAILURES else "debug")

    def _streams_changed(self) -> None:
        if self.streams:
            self._had_stream = True
        else:
            self._quiet_since = self._clock.monotonic()
        self._wake.set()

    async def _changed(self, until: float | None) -> None:
        """Wait for a change that may matter, or for the steady time `until`; look again now and then."""
        limit = (
            LOOK_INTERVAL if until is None else max(0.0, min(until - self._clock.monotonic(), LOOK_INTERVAL))
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._wake.wait()
        self._wake.clear()


def _is_foreign_end(change: Change) -> bool:
    return change.kind is Kind.VANISHED and change.name.endswith(".sock")


class SocketRegistration(Registration):
    """Registers by Register."""

    def __init__(self, basics: Basics, options: pb.DevicePluginOptions) -> None:
        super().__init__(basics)
        self._options = options

    async def _keep(self, endpoint: Endpoint) -> None:
        while True:
            decision = decide(self._situation(endpoint), self._clock.monotonic(), self._patience)
            match decision.step:
                case Step.RENEW:
                    return
                case Step.REGISTER:
                    await self._attempt(endpoint)
                case Step.WAIT:
                    await self._changed(decision.until)

    def _situation(self, endpoint: Endpoint) -> Situation:
        return Situation(
            own_socket=endpoint.is_there,
            kubelet=self._look_for_kubelet(),
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
            call.cancel()
            # Not awaited itself: a cancellation that comes meanwhile is for this task, and must end it.
            await asyncio.wait({call})
            if not call.cancelled():
                call.exception()  # looked at, or it would be told as nobody's


# ruff: noqa: ARG002, N802 -- the names and parameters of the methods are the API's


TYPE: Final = "DevicePlugin"
VERSION: Final = "v1beta1"

_Context = grpc.aio.ServicerContext[Any, Any]


class DirectoryRegistration(Registration):
    """Is registered by being there. A socket is made under a hidden name, which the kubelet leaves alone."""

    def __init__(self, basics: Basics) -> None:
        super().__init__(basics)
        self._renewals = 0
        self._refused = False

    async def _open(self, endpoint: Endpoint) -> None:
        endpoint.serve(
            lambda server: pb_grpc.add_RegistrationServicer_to_server(
                Servicer(self._resource, self._notified), server
            )
        )
        await endpoint.open()
        self._refused = False
        endpoint.publish(self._names.standing)

    def _notified(self, problem: str | None) -> None:
        """The kubelet says how it went; `problem`: None where it accepted."""
        if problem is None:
            self._refused = False
            self._had_stream = self.streams > 0
            self._accept(self._look_for_kubelet())
        else:
            self._tally.registration_errors += 1
            self._refused = True
            self._failed(problem, refused=True)
            self._retry_at = max(self._retry_at, self._clock.monotonic() + self._patience.refused)
        self._wake.set()

    async def _keep(self, endpoint: Endpoint) -> None:
        while True:
            decision = decide_by_directory(self._situation(endpoint), self._clock.monotonic(), self._patience)
            if decision.step is Step.WAIT:
                await self._changed(decision.until)
            elif not endpoint.is_there or self._renew or self._refused:
                return
            elif _listens(self._paths.registration_socket):
                self._renewals += 1
                self._failing.failed("the kubelet does not follow it, its socket is made anew", level="warn")
                return
            else:
                # Not before it runs can it have taken notice.
                self._quiet_since = self._clock.monotonic()

    def _situation(self, endpoint: Endpoint) -> DirectorySituation:
        before = self._kubelet
        kubelet = self._look_for_kubelet()
        if kubelet != before:
            self._quiet_since = self._clock.monotonic()
            self._had_stream = endpoint.streams > 0
        if endpoint.streams:
            self._renewals = 0
            self._failing.recovered()
        return DirectorySituation(
            own_socket=endpoint.is_there,
            kubelet=kubelet,
            streams=endpoint.streams,
            quiet_since=self._quiet_since,
            had_stream=self._had_stream,
            refused=self._refused,
            retry_at=self._retry_at,
            renewals=self._renewals,
            renew=self._renew,
        )


class Servicer(pb_grpc.RegistrationServicer):
    """The Registration service of a plugin; every method's name and shape is the API's."""

    def __init__(self, resource: str, notified: Callable[[str | None], None]) -> None:
        self._resource = resource
        self._notified = notified

    async def GetInfo(
        self, request: pb_by_directory.InfoRequest, context: _Context
    ) -> pb_by_directory.PluginInfo:
        """Who this is. Without an endpoint: this very socket, wherever the kubelet sees it."""
        return pb_by_directory.PluginInfo(type=TYPE, name=self._resource, supported_versions=[VERSION])

    async def NotifyRegistrationStatus(
        self, request: pb_by_directory.RegistrationStatus, context: _Context
    ) -> pb_by_directory.RegistrationStatusResponse:
        """How the kubelet's registration went."""
        accepted = request.plugin_registered
        self._notified(None if accepted else request.error or "the kubelet refused it without a reason")
        return pb_by_directory.RegistrationStatusResponse()


def _listens(path: Path) -> bool:
    """Whether somebody listens on a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
