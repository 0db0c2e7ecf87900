"""One life of the kubelet's process: from its start to its end or its sudden death."""

import asyncio
import os
from pathlib import Path

from simulator import checkpoint
from simulator.admission import Admission
from simulator.answers import Answers
from simulator.checkpoint import CorruptCheckpointError
from simulator.devices import DeviceState
from simulator.heard import Heard
from simulator.manager import DeviceManager
from simulator.node import Node
from simulator.podresources import PodResources
from simulator.pods import PodsApi
from simulator.registration import registration_service
from simulator.registry import Registry
from simulator.rpc import UnknownServices
from simulator.sockets import ServedSocket, is_socket
from simulator.tasks import Tasks


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
            violation=node.violation,
        )
        self.manager = DeviceManager(
            self.state,
            settings.checkpoint,
            tasks=self.tasks,
            changed=node.changed,
            event=node.event,
            count=node.count,
            dial_timeout=settings.dial_timeout,
        )
        self.admission = Admission(node, self.manager)
        self.heard = Heard(node, sync_delay)
        self.pods_api = PodsApi(node, self.heard)
        self.answers = Answers(
            self.state,
            node.pinning,
            node.claims,
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
            (*PodResources(node, self.state, self.answers, self.heard).services(), unknown),
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
        settings.device_plugins.mkdir(mode=0o750, parents=True, exist_ok=True)
        _remove_sockets(settings.device_plugins)
        if not self._node.gate.faults.registration.gone:
            await self._registration.open(renamed=False)
        settings.plugins_registry.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.tasks.spawn(Registry(self._node, self.manager, self.tasks).run())
        if not self.heard.yet:
            self.tasks.spawn(self._hear())
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
        await self.heard.hear()
        self.pods_api.synced()

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
