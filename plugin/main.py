"""The plugin's composition root: makes the actors of the process and runs them."""

import asyncio
import secrets
import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from kubelet.paths import KubeletPaths
from plugin.config.load import PRESET_SOURCE, load_all
from plugin.config.plan import ResourcePlan
from plugin.discovery.host import HostRoot
from plugin.discovery.registry import fault_source
from plugin.discovery.uevents import Uevents
from plugin.presets import PRESETS
from plugin.serving.container_runtime import observe_cdi
from plugin.serving.context import PluginContext, RegistrationMethod
from plugin.serving.fleet import ResourceFleet
from plugin.serving.host_files import HostFilesCollector
from plugin.serving.kubelet_state import KubeletState
from plugin.serving.ownership import DeviceOwnership
from plugin.serving.prober import FaultEvents
from plugin.serving.reload import ConfigRefusedError, Reloader
from plugin.serving.sockets import SocketNames
from plugin.serving.web import PluginSite, build
from plugin.settings import PluginSettings
from runtime import __version__
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher
from runtime.exposition import CollectorBlocks
from runtime.http.server import WebServer
from runtime.log import Log
from runtime.loop_lag import LagFamily
from runtime.preflight import Need, Use, log_preflight
from runtime.process import Actor, Fatal, grpc_runtime, run_actors, share_one_arena

TOKEN_BYTES: Final = 4
"""Random bytes in a socket's name, as eight characters."""

_log = Log("plugin")


async def main(settings: PluginSettings, stop: asyncio.Event) -> None:
    """Run the plugin until `stop` is set. Raises Fatal where it cannot."""
    share_one_arena()
    clock = Clock()
    watcher = DirectoryWatcher()
    paths = KubeletPaths(settings.kubelet_root.absolute())
    host = HostRoot(settings.host_root)
    uevents = Uevents(first=host.here("/proc/1"))
    kubelet = KubeletState(paths, clock, settings.node_name)
    context = PluginContext(
        *(host, paths, watcher, kubelet),
        ownership=DeviceOwnership(kubelet),
        token=lambda: secrets.token_hex(TOKEN_BYTES),
        uevents=uevents,
        fault_events=FaultEvents(lambda sources: fault_source(host, sources)),
        clock=clock,
        method=settings.kubelet_registration,
    )
    fleet = ResourceFleet(context)
    own = [(str(settings.config), settings.config)] if settings.config is not None else []
    presets = [(PRESET_SOURCE + name, PRESETS[name]) for name in settings.preset]
    reloader = Reloader(
        [*own, *presets], partial(load_all, allowed=settings.allow), apply=fleet.apply, clock=clock
    )
    try:
        plans = reloader.begin()
    except ConfigRefusedError as error:
        raise Fatal(str(error)) from error
    web = WebServer(settings, prefix="devicelens_plugin")
    await web.start()
    directory = socket_directory(context)

    def reload() -> None:
        reloader.ask()
        web.reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    _log.info(
        "starting",
        version=__version__,
        node=settings.node_name,
        resources=",".join(plan.name for plan in plans),
        directory=directory,
        host_root=settings.host_root,
    )
    collector = HostFilesCollector(paths.device_plugins, host, lambda: fleet.plans, clock)
    parts = [CollectorBlocks(part) for part in (web.families, LagFamily("devicelens_plugin"))]
    site = PluginSite(fleet, lambda: reloader.status, further=parts)
    actors: list[Actor] = [
        log_preflight(
            needs(paths, host, plans, method=settings.kubelet_registration),
            observe=lambda: observe_cdi(host, plans),
        ),
        watcher.run(),
        uevents.run(),
        fleet.run(),
        reloader.run(settings.config, watcher),
        collector.run(watcher),
        web.run(build(site), purpose="metrics and devices"),
    ]
    async with grpc_runtime():
        await run_actors(actors, stop)


def socket_directory(context: PluginContext) -> Path:
    """The directory of the plugin's sockets. Raises Fatal where its path is too long for sockets in it."""
    by_directory = context.method == "registry"
    directory = context.paths.plugins_registry if by_directory else context.paths.device_plugins
    try:
        SocketNames(directory, "", context.token, hidden=by_directory)
    except ValueError as error:
        raise Fatal(f"--kubelet.root: {error}") from error
    return directory


def needs(
    paths: KubeletPaths, host: HostRoot, plans: Iterable[ResourcePlan], *, method: RegistrationMethod
) -> tuple[Need, ...]:
    """What the plugin needs of the node, for the preflight check."""
    # The leases and the records of files are in device-plugins with either method.
    written = {"device_plugins": paths.device_plugins}
    if method == "registry":
        written = {"plugins_registry": paths.plugins_registry, **written}
    made = [
        Need(name, path, Use.WRITE, f"mount the node's {path} there: the plugin creates its sockets in it")
        for name, path in written.items()
    ]
    if method == "socket":
        hint = "is the kubelet up, and does --kubelet.root name its root directory?"
        made.append(Need("registration", paths.registration_socket, Use.CONNECT, hint))
    hint = "is the kubelet up? Without it a device that has vanished stays in the list"
    made.append(Need("pod_resources", paths.pod_resources_socket, Use.CONNECT, hint))
    hint = "set --host-root, and mount the host's directories there"
    made.append(Need("host_root", host.here("/"), Use.LIST, hint))
    plans = tuple(plans)
    for place in sorted({place for plan in plans for s in plan.sources for place in s.host_directories()}):
        name = place.removeprefix("/").replace("/", "_")
        hint = f"mount the node's {place} below --host-root (deploy/components/hardware)"
        made.append(Need(name, host.here(place), Use.LIST, hint))
    directories = sorted({plan.cdi.directory for plan in plans if plan.cdi is not None})
    for number, directory in enumerate(directories, start=1):
        name = "cdi" if len(directories) == 1 else f"cdi_{number}"
        hint = f"mount the node's {directory} below --host-root, writable"
        made.append(Need(name, host.here(directory), Use.WRITE, hint, made=True))
    return tuple(made)
