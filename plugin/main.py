"""The plugin's composition root: the one place that makes its parts and puts them together."""

import asyncio
import secrets
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from daemon.directory import DirectoryWatcher
from daemon.engine import engine_kept
from daemon.flags import ListenAddress
from daemon.http import Traffic, WebFamilies, serve
from daemon.log import Log
from daemon.paths import KubeletPaths
from daemon.probe import tell_reach
from daemon.process import Actor, Fatal, run_actors
from daemon.protection import protection_by
from plugin.core.config import PRESET_SOURCE, load_all
from plugin.core.errors import ConfigError
from plugin.core.plan import ResourcePlan
from plugin.core.yaml_document import MAX_BYTES
from plugin.discovery.host import HostRoot
from plugin.discovery.sources import fault_source
from plugin.discovery.survey import Sources, os_problem
from plugin.discovery.uevents import Uevents
from plugin.presets import preset_path
from plugin.services.clock import Clock
from plugin.services.family import Make
from plugin.services.fleet import Fleet
from plugin.services.leftovers import Leftovers
from plugin.services.listening import Listening
from plugin.services.needs import needs
from plugin.services.pod_resources import PodResources
from plugin.services.predecessors import Predecessors
from plugin.services.reload import ConfigRefusedError, Content, Reloader
from plugin.services.resource import Resource
from plugin.services.surroundings import Surroundings, Way
from plugin.services.web import Site, build

if TYPE_CHECKING:
    from daemon.protection.reload import Protection

TOKEN_BYTES: Final = 4
"""Eight characters in a socket's name: four thousand million incarnations of a resource."""

_log = Log("plugin")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the flags say."""

    version: str
    listen_address: ListenAddress
    web_config: Path | None
    kubelet_root: Path
    node: str
    config: Path | None
    presets: Sequence[str]
    host_root: Path
    way: Way = "socket"


async def main(settings: Settings, stop: asyncio.Event) -> None:
    """Run the plugin until `stop` is set. Raises Fatal where it cannot."""
    clock = Clock()
    watcher = DirectoryWatcher()
    paths = KubeletPaths(settings.kubelet_root.absolute())
    host = HostRoot(settings.host_root)
    uevents = Uevents(first=host.here("/proc/1"))
    surroundings = Surroundings(
        host=host,
        paths=paths,
        watcher=watcher,
        pod_resources=PodResources(paths, clock),
        token=lambda: secrets.token_hex(TOKEN_BYTES),
        uevents=uevents,
        listening=Listening(lambda sources: fault_source(host, sources)),
        clock=clock,
        way=settings.way,
    )
    fleet = Fleet(surroundings, _maker(surroundings))
    files = _files(settings)
    reloader = Reloader(lambda: read(files), parse, fleet=fleet, clock=clock)
    try:
        plans = reloader.begin()
    except ConfigRefusedError as error:
        raise Fatal(str(error)) from error
    protection = await protection_by(settings.web_config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _ask, reloader, protection)
    _log.info(
        "starting",
        version=settings.version,
        node=settings.node,
        resources=",".join(plan.name for plan in plans),
        directory=paths.device_plugins if settings.way == "socket" else paths.plugins_registry,
        host_root=settings.host_root,
    )
    predecessors = Predecessors(paths.device_plugins, surroundings.ownership)
    predecessors.recall()
    leftovers = Leftovers(paths.device_plugins, surroundings.host, lambda: fleet.plans, clock)
    traffic = Traffic()
    site = Site(fleet, lambda: reloader.status, web=WebFamilies("devicelens_plugin", traffic, protection))
    actors: list[Actor] = [
        tell_reach(needs(paths, host, plans, way=settings.way)),
        watcher.run(),
        uevents.run(),
        fleet.run(),
        reloader.run(settings.config, watcher),
        leftovers.run(watcher),
        predecessors.run(watcher),
        serve(
            build(site),
            settings.listen_address,
            purpose="metrics and devices",
            protection=protection,
            traffic=traffic,
        ),
    ]
    if protection is not None:
        actors.append(protection.run(watcher))
    try:
        async with engine_kept():
            await run_actors(actors, stop)
    finally:
        predecessors.end()


def _ask(reloader: Reloader, protection: "Protection | None") -> None:
    reloader.ask()
    if protection is not None:
        protection.ask()


def _files(settings: Settings) -> tuple[tuple[str, Path], ...]:
    """(what messages call it, path) of the configuration file and of each preset."""
    own = [(str(settings.config), settings.config)] if settings.config is not None else []
    return (*own, *((PRESET_SOURCE + name, preset_path(name)) for name in settings.presets))


def read(files: Sequence[tuple[str, Path]]) -> Content:
    """The files' bytes, bounded. Raises ConfigRefusedError."""
    contents: list[tuple[str, bytes]] = []
    for source, path in files:
        try:
            with path.open("rb") as file:
                contents.append((source, file.read(MAX_BYTES + 1)))
        except OSError as error:
            raise ConfigRefusedError(f"cannot read the configuration: {os_problem(error)}") from error
    return tuple(contents)


def parse(content: Content) -> tuple[ResourcePlan, ...]:
    """The resources of all files together. Raises ConfigRefusedError."""
    try:
        return load_all(content)
    except ConfigError as error:
        raise ConfigRefusedError(str(error)) from error


def _maker(surroundings: Surroundings) -> Make:
    def make(plan: ResourcePlan, sources: Sources | None) -> Resource:
        try:
            return Resource(plan, surroundings, sources)
        except ValueError as error:
            raise Fatal(f"--kubelet.root: {error}") from error

    return make
