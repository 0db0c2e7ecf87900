"""The kubelet's process: it starts, dies, and starts again. One `Life` lasts from a start to an end."""

import asyncio
import fcntl
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from simulator import checkpoint
from simulator.admission import Admission
from simulator.checkpoint import CorruptCheckpointError
from simulator.devices import DeviceState
from simulator.dra_manager import DraManager
from simulator.manager import DeviceManager, registration_service
from simulator.node import Node
from simulator.pod_status import PodStatuses
from simulator.podresources import Answers, PodResources
from simulator.pods_api import ApiServerSync, PodsApi
from simulator.registry import Registry
from simulator.rpc import ServedSocket, Tasks, UnknownServices, is_served, is_socket


class Life:
    """Everything that a kubelet forgets when it ends."""

    def __init__(self, node: Node, *, sync_delay: float = 0.0) -> None:
        """`sync_delay`: seconds until it hears from the API server which pods there are."""
        settings = node.settings
        self._node = node
        self.tasks = Tasks()
        self.state = DeviceState(
            node.monotonic,
            grace_period=settings.grace_period,
            numa_nodes=settings.numa_nodes,
            active=node.active,
            violation=node.violation,
        )
        self.dra = DraManager(
            node.objects,
            settings.node_name,
            node.prepared,
            tasks=self.tasks,
            clock=node.monotonic,
            changed=self._health_changed,
            event=node.event,
            count=node.count,
            wipe_delay=settings.wipe_delay,
        )
        self.manager = DeviceManager(
            self.state,
            settings.checkpoint,
            tasks=self.tasks,
            changed=self._health_changed,
            event=node.event,
            count=node.count,
            dial_timeout=settings.dial_timeout,
        )
        self.admission = Admission(node, self.manager)
        self.api_sync = ApiServerSync(node, sync_delay)
        self.pods_api = PodsApi(node, self.api_sync)
        self.statuses = PodStatuses(node, self.state, self.dra, self.pods_api)
        self.answers = Answers(
            self.state,
            node.pinning,
            node.claims,
            node.prepared,
            node.shuffle,
            keeps_topology=settings.topology_after_restart,
        )
        unknown = UnknownServices()
        self._registration = ServedSocket(
            settings.registration_socket,
            settings.private / "r.sock",
            (registration_service(node, self.manager), unknown),
        )
        self._pod_resources = ServedSocket(
            settings.pod_resources_socket,
            settings.private / "p.sock",
            (*PodResources(node, self.state, self.answers, self.api_sync).services(), unknown),
        )
        self._pods = ServedSocket(
            settings.pods_api_socket, settings.private / "w.sock", (self.pods_api.service(), unknown)
        )
        self._faults = asyncio.Lock()

    async def begin(self) -> None:
        """Start as a kubelet does; the order of steps is that of the recorded events."""
        settings = self._node.settings
        if not self._node.gate.faults.gone:
            await self._open_renamed(self._pod_resources, settings.pod_resources_socket)
        if settings.pods_api:
            await self._open_renamed(self._pods, settings.pods_api_socket)
        self._restore()
        self._node.cgroups.restore(pod for pod in self._node.pods.values() if pod.active)
        settings.device_plugins.mkdir(mode=0o750, parents=True, exist_ok=True)
        _remove_sockets(settings.device_plugins)
        if not self._node.gate.faults.registration.gone:
            await self._registration.open(renamed=False)
        settings.plugins_registry.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.tasks.spawn(Registry(self._node, self.manager, self.dra, self.tasks).run())
        if self.api_sync.done:
            self.dra.wipe()
        else:
            self.tasks.spawn(self._hear())
        self.tasks.spawn(self.statuses.run())
        self._node.changed()

    async def end(self, *, remove: bool) -> None:
        """End. `remove`: sockets too; else they are left behind, as by a process that is gone."""
        try:
            for served in (self._registration, self._pod_resources, self._pods):
                await served.close(remove=remove)
        finally:
            try:
                await self.tasks.cancel()
            finally:
                await self.manager.close()
                await self.dra.close()

    async def apply_faults(self) -> None:
        """Open or close sockets as the present faults say."""
        async with self._faults:
            faults = self._node.gate.faults
            if faults.gone:
                await self._pod_resources.close(remove=True)
            elif not self._pod_resources.is_open:
                await self._open_renamed(self._pod_resources, self._node.settings.pod_resources_socket)
            if faults.registration.gone:
                await self._registration.close(remove=True)
            elif not self._registration.is_open:
                _make_way(self._node.settings.registration_socket)
                await self._registration.open(renamed=False)

    async def _hear(self) -> None:
        await self.api_sync.run()
        self.pods_api.synced()
        self.dra.wipe()

    def _health_changed(self) -> None:
        self._node.changed()
        self.statuses.refresh()

    def forget_expired(self) -> None:
        """What a kubelet does with each report of its node's status."""
        if self.state.expire():
            self.manager.save()

    def _restore(self) -> None:
        path = self._node.settings.checkpoint
        try:
            kept = checkpoint.read(path)
        except CorruptCheckpointError as error:
            # kubelet: it continues without; holders are not known any more.
            self._node.event("cannot read the checkpoint, starting without", path=path, reason=str(error))
            return
        if kept is not None:
            self.state.restore(kept)

    @staticmethod
    async def _open_renamed(served: ServedSocket, path: Path) -> None:
        _make_way(path)
        await served.open(renamed=True)


def _make_way(path: Path) -> None:
    """kubelet: the old socket goes, whoever made it; the directory is made where it is missing."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)


def _remove_sockets(directory: Path) -> None:
    """kubelet: on its start every socket in device-plugins goes, plugins' too; files stay."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if is_socket(Path(entry.path)):
                Path(entry.path).unlink(missing_ok=True)


T = TypeVar("T")


class RootInUseError(Exception):
    """The directory is a live kubelet's, simulated or real."""


class KubeletProcess:
    """Owns the present life, and the directory against other simulated kubelets."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.life = Life(node)
        self._up = asyncio.Event()
        self._stopped = asyncio.Event()
        self._lock: int | None = None
        self._changing = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def is_up(self) -> bool:
        """Whether it serves at present."""
        return self._up.is_set()

    async def start(self) -> None:
        """Serve. Raises RootInUseError where another kubelet does already."""
        settings = self._node.settings
        for path in settings.sockets().values():
            if is_served(path):
                raise RootInUseError(f"{settings.root}: a kubelet serves {path} already")
        self._lock = _locked(settings.private)
        try:
            await self.life.begin()
        except BaseException:
            await self.life.end(remove=True)
            self._unlock()
            raise
        self._up.set()

    async def stop(self) -> None:
        """End, and remove the sockets; the checkpoint stays. Raises what failed inside meanwhile."""
        self._stopped.set()
        async with self._changing:
            if self._lock is None:
                return
            try:
                await self.life.end(remove=True)
            finally:
                # One that was down has left sockets that no life owns.
                for path in self._node.settings.sockets().values():
                    path.unlink(missing_ok=True)
                self._unlock()
                self._up.set()
                self._node.changed()

    async def restart(self, down_for: float) -> None:
        """Die, stay away for `down_for` seconds, start again; to its end even if its caller goes."""
        await self._shielded(self._restart(down_for))

    async def apply_faults(self) -> None:
        """Let sockets come or go as the present faults say."""
        await self._shielded(self._apply_faults())

    def apply_faults_soon(self) -> None:
        """The same, without waiting."""
        self._spawn(self._apply_faults())

    async def running(self) -> Life:
        """The present life, as soon as there is one. Raises RuntimeError when there will be none."""
        await self._up.wait()
        self._check()
        return self.life

    async def in_life(self, work: Callable[[Life], Coroutine[Any, Any, T]]) -> T:
        """Do it within the kubelet's life; if that ends first, do it again in the next."""
        while True:
            life = await self.running()
            task = life.tasks.spawn(work(life), awaited=True)
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait((task,))
                raise
            if not task.cancelled():
                return task.result()

    async def _restart(self, down_for: float) -> None:
        async with self._changing:
            self._check()
            self._up.clear()
            await self.life.end(remove=False)
            self._node.event("kubelet down", seconds=down_for)
            with suppress(TimeoutError):
                async with asyncio.timeout(down_for):
                    await self._stopped.wait()
            self._check()
            self.life = Life(self._node, sync_delay=self._node.settings.sync_delay)
            await self.life.begin()
            self._up.set()
            self._node.event("kubelet up")
            self._node.changed()

    async def _apply_faults(self) -> None:
        async with self._changing:
            if self._up.is_set() and not self._stopped.is_set():
                await self.life.apply_faults()

    async def _shielded(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.shield(self._spawn(work))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _check(self) -> None:
        if self._stopped.is_set() or self._lock is None:
            raise RuntimeError("the simulated kubelet does not run")

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(directory: Path) -> int:
    """The directory, held as long as the descriptor is open. Raises RootInUseError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise RootInUseError(f"{directory.parent}: another simulated kubelet runs here") from error
    return lock
