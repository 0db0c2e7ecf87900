"""Registration by directory: plugins_registry, read once a second as the kubelet's reconciler does."""

import asyncio
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from kubelet.pb.pluginregistration.v1 import api_pb2, api_pb2_grpc
from simulator.dra_manager import DraManager
from simulator.endpoint import CHANNEL_OPTIONS
from simulator.manager import VERSION, DeviceManager, RefusedError
from simulator.node import Node
from simulator.rpc import RpcError, Tasks, call, target

GET_INFO_TIMEOUT: Final = 1.0
NOTIFY_TIMEOUT: Final = 5.0
FIRST_RETRY: Final = 0.5
LAST_RETRY: Final = 122.0
"""The kubelet's exponential back-off for a socket that cannot be asked: 500 ms to 2 min 2 s."""

DEVICE_PLUGIN: Final = "DevicePlugin"
DRA_PLUGIN: Final = "DRAPlugin"

_Identity = tuple[int, int, int]


@dataclass(slots=True)
class _Known:
    """A socket that is in the directory. `info`: what it was registered as, if it was."""

    identity: _Identity
    task: asyncio.Task[None]
    info: api_pb2.PluginInfo | None = None


class Registry:
    """Follows the directory. A socket is registered once; made anew, once more."""

    def __init__(self, node: Node, manager: DeviceManager, dra: DraManager, tasks: Tasks) -> None:
        self._node = node
        self._manager = manager
        self._dra = dra
        self._tasks = tasks
        self._known: dict[str, _Known] = {}

    async def run(self) -> None:
        """Look at the directory until cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(self._node.settings.registry_interval)

    async def _look(self) -> None:
        found = _sockets(self._node.settings.plugins_registry)
        for path, known in tuple(self._known.items()):
            if found.get(path) != known.identity:
                del self._known[path]
                known.task.cancel()
                if known.info is not None:
                    await self._deregister(path, known.info)
        for path, identity in found.items():
            if path not in self._known:
                self._known[path] = _Known(identity, self._tasks.spawn(self._register(path)))

    async def _register(self, path: str) -> None:
        wait = FIRST_RETRY
        while True:
            try:
                done = await self._try(path)
            except (RpcError, TimeoutError) as error:
                self._node.event(
                    "plugin cannot be asked", socket=path, reason=str(error) or "deadline exceeded"
                )
                done = False
            if done:
                return
            await asyncio.sleep(wait)
            wait = min(2 * wait, LAST_RETRY)

    async def _try(self, path: str) -> bool:
        """Ask a socket who it is and register it; whether that is settled, for better or worse."""
        async with grpc.aio.insecure_channel(target(path), options=CHANNEL_OPTIONS) as channel:
            async with asyncio.timeout(self._node.settings.dial_timeout):
                await channel.channel_ready()
            stub: api_pb2_grpc.RegistrationAsyncStub = api_pb2_grpc.RegistrationStub(channel)
            self._node.count("GetInfo")
            info = await call(stub.GetInfo(api_pb2.InfoRequest(), timeout=GET_INFO_TIMEOUT))
            refusal = self._refusal(path, info)
            if refusal is None:
                self._known[path].info = info
                try:
                    await self._take(path, info)
                except RefusedError as error:
                    # kubelet: it counts as registered from here on, so it is not tried again.
                    await self._notify(stub, f"plugin registration failed with err: {error}")
                else:
                    await self._notify(stub, "")
                return True
            await self._notify(stub, refusal)
            return False

    async def _take(self, path: str, info: api_pb2.PluginInfo) -> None:
        """Raises RefusedError."""
        if info.type == DRA_PLUGIN:
            self._dra.register(info.name, info.endpoint or path)
        else:
            await self._manager.register(info.name, info.endpoint or path)

    async def _deregister(self, path: str, info: api_pb2.PluginInfo) -> None:
        if info.type == DRA_PLUGIN:
            await self._dra.deregister(info.name, info.endpoint or path)
        else:
            await self._manager.deregister(info.name)

    def _refusal(self, path: str, info: api_pb2.PluginInfo) -> str | None:
        if info.type == DRA_PLUGIN:
            try:
                self._dra.validate(info.name, info.endpoint or path, info.supported_versions)
            except RefusedError as error:
                return f"plugin validation failed with err: {error}"
            return None
        if info.type != DEVICE_PLUGIN:
            return f"no handler registered for plugin type: {info.type} at socket {path}"
        if VERSION not in info.supported_versions:
            versions = " ".join(info.supported_versions)
            return (
                f"plugin validation failed with err: manager version, {VERSION}, "
                f"is not among plugin supported versions [{versions}]"
            )
        try:
            self._manager.validate(info.name, (VERSION,))
        except RefusedError as error:
            return f"plugin validation failed with err: invalid name of device plugin socket: {error}"
        return None

    async def _notify(self, stub: "api_pb2_grpc.RegistrationAsyncStub", failure: str) -> None:
        self._node.count("NotifyRegistrationStatus")
        error = f"RegisterPlugin error -- {failure}" if failure else ""
        if error:
            self._node.event("registration refused", reason=error)
        status = api_pb2.RegistrationStatus(plugin_registered=not error, error=error)
        try:
            await call(stub.NotifyRegistrationStatus(status, timeout=NOTIFY_TIMEOUT))
        except RpcError as refused:
            self._node.event("plugin did not take its registration status", reason=str(refused))


def _sockets(directory: Path) -> dict[str, _Identity]:
    """Sockets below `directory`, at any depth, but not behind a name that starts with a dot."""
    found: dict[str, _Identity] = {}
    try:
        paths = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except OSError:
        return found
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode):
            found |= _sockets(path)
        elif stat.S_ISSOCK(status.st_mode):
            # Not the time of its last change: a plugin that sets its socket's mode did not make it anew.
            found[str(path)] = (status.st_dev, status.st_ino, status.st_mtime_ns)
    return found
