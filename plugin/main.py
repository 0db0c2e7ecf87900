"""The plugin's composition root: makes the actors of the process and runs them."""

import asyncio
import secrets
import signal
from collections.abc import Iterable
from typing import Final

from kubelet.paths import KubeletPaths
from plugin.config.load import PRESET_SOURCE, load_all
from plugin.config.plan import ResourcePlan
from plugin.discovery.host import HostRoot
from plugin.discovery.registry import fault_source
from plugin.discovery.uevents import Uevents
from plugin.presets import PRESETS
from plugin.serving.context import PluginContext, RegistrationMethod
from plugin.serving.fleet import MakeResource, ResourceFleet
from plugin.serving.host_files import HostFilesCollector
from plugin.serving.kubelet_state import KubeletState
from plugin.serving.ownership import DeviceOwnership
from plugin.serving.prober import FaultEvents
from plugin.serving.reload import ConfigRefusedError, Reloader
from plugin.serving.resource import ServedResource
from plugin.serving.scan import SharedSources
from plugin.serving.web import PluginSite, build
from plugin.settings import PluginSettings
from runtime import __version__
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher
from runtime.http.server import WebServer
from runtime.log import Log
from runtime.preflight import Need, Use, log_preflight
from runtime.process import Actor, Fatal, grpc_runtime, run_actors

TOKEN_BYTES: Final = 4
"""Random bytes in a socket's name, as eight characters."""

_log = Log("plugin")


async def main(settings: PluginSettings, stop: asyncio.Event) -> None:
    """Run the plugin until `stop` is set. Raises Fatal where it cannot."""
    clock = Clock()
    watcher = DirectoryWatcher()
    paths = KubeletPaths(settings.kubelet_root.absolute())
    host = HostRoot(settings.host_root)
    uevents = Uevents(first=host.here("/proc/1"))
    kubelet = KubeletState(paths, clock)
    context = PluginContext(
        host=host,
        paths=paths,
        watcher=watcher,
        kubelet=kubelet,
        ownership=DeviceOwnership(kubelet),
        token=lambda: secrets.token_hex(TOKEN_BYTES),
        uevents=uevents,
        fault_events=FaultEvents(lambda sources: fault_source(host, sources)),
        clock=clock,
        method=settings.kubelet_registration,
    )
    fleet = ResourceFleet(context, _maker(context))
    own = [(str(settings.config), settings.config)] if settings.config is not None else []
    presets = [(PRESET_SOURCE + name, PRESETS[name]) for name in settings.preset]
    reloader = Reloader([*own, *presets], load_all, fleet=fleet, clock=clock)
    try:
        plans = reloader.begin()
    except ConfigRefusedError as error:
        raise Fatal(str(error)) from error
    web = WebServer(settings.web_listen_address, settings.web_config_file, prefix="devicelens_plugin")
    await web.start()

    def reload() -> None:
        reloader.ask()
        web.reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    by_directory = settings.kubelet_registration == "registry"
    _log.info(
        "starting",
        version=__version__,
        node=settings.node_name,
        resources=",".join(plan.name for plan in plans),
        directory=paths.plugins_registry if by_directory else paths.device_plugins,
        host_root=settings.host_root,
    )
    collector = HostFilesCollector(paths.device_plugins, host, lambda: fleet.plans, clock)
    site = PluginSite(fleet, lambda: reloader.status, web=web.families)
    actors: list[Actor] = [
        log_preflight(needs(paths, host, plans, method=settings.kubelet_registration)),
        watcher.run(),
        uevents.run(),
        fleet.run(),
        reloader.run(settings.config, watcher),
        collector.run(watcher),
        web.run(build(site), watcher, purpose="metrics and devices"),
    ]
    async with grpc_runtime():
        await run_actors(actors, stop)


def _maker(context: PluginContext) -> MakeResource:
    def make(plan: ResourcePlan, sources: SharedSources | None) -> ServedResource:
        try:
            return ServedResource(plan, context, sources)
        except ValueError as error:
            raise Fatal(f"--kubelet.root: {error}") from error

    return make


def needs(
    paths: KubeletPaths, host: HostRoot, plans: Iterable[ResourcePlan], *, method: RegistrationMethod
) -> tuple[Need, ...]:
    """What the plugin needs of the node, for the preflight check."""
    mounted = "mount the node's {0} there: the plugin's own sockets are made in it"
    if method == "socket":
        registered = [
            Need("device_plugins", paths.device_plugins, Use.WRITE, mounted.format(paths.device_plugins)),
            Need(
                "registration",
                paths.registration_socket,
                Use.CONNECT,
                "is the kubelet up, and does --kubelet.root name its root directory?",
            ),
        ]
    else:
        registered = [
            Need(
                "plugins_registry", paths.plugins_registry, Use.WRITE, mounted.format(paths.plugins_registry)
            ),
            # The leases and the records of files are there with either method.
            Need("device_plugins", paths.device_plugins, Use.WRITE, mounted.format(paths.device_plugins)),
        ]
    plans = tuple(plans)
    directories = sorted({plan.cdi.directory for plan in plans if plan.cdi is not None})
    return (
        *registered,
        Need(
            "pod_resources",
            paths.pod_resources_socket,
            Use.CONNECT,
            "is the kubelet up? Without it a device that has gone is kept for long",
        ),
        Need("host_root", host.here("/"), Use.LIST, "say --host-root, and mount there what is looked into"),
        *(
            Need(
                place.removeprefix("/").replace("/", "_"),
                host.here(place),
                Use.LIST,
                f"mount the node's {place} below --host-root (deploy/components/hardware)",
            )
            for place in sorted(
                {place for plan in plans for s in plan.sources for place in s.host_directories()}
            )
        ),
        *(
            Need(
                "cdi" if len(directories) == 1 else f"cdi_{number}",
                host.here(directory),
                Use.WRITE,
                f"mount the node's {directory} below --host-root, to be written to",
                made=True,
            )
            for number, directory in enumerate(directories, start=1)
        ),
    )
