"""The exporter's composition root: creates all parts and connects them."""

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from exporter.apiserver import ACCOUNT
from exporter.dra import CDI_DIRECTORIES
from exporter.history.archive import Archive, HistoryLimits
from exporter.history.file import foreign_problem
from exporter.history.recorder import HistoryRecorder
from exporter.mapping.anomaly_tracker import AnomalyTracker
from exporter.mapping.device_ids import BUILT_IN_RULES, IdReader, read_id
from exporter.mapping.holdings import RESTORE_FOR
from exporter.mapping.snapshot import SnapshotBuilder
from exporter.mapping.state import StateStore
from exporter.mapping.unattributed import UnattributedTracker
from exporter.metrics.exporter import Metrics
from exporter.metrics.process import HistoryFamilies
from exporter.metrics.series_limit import SeriesLimit
from exporter.plugins.client import PluginAccess, PluginClient
from exporter.plugins.poller import PluginPoller
from exporter.pods.pods_api import PodsApi
from exporter.pods.source import LabelFilter
from exporter.pods.tracker import PodTracker
from exporter.refresh.cgroups import PodCgroups
from exporter.refresh.loop import Refresher
from exporter.refresh.pipeline import SnapshotPipeline, numa_of_cpus
from exporter.refresh.protocols import Preparer
from exporter.refresh.triggers import (
    RefreshTiming,
    follow_device_plugins,
    follow_pod_resources,
    follow_pods_api,
)
from exporter.settings import ExporterSettings
from exporter.web.app import build
from exporter.web.site import Site
from kubelet.paths import KubeletPaths
from kubelet.podresources import KubeletClient
from runtime import __version__
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher
from runtime.http.server import WebServer
from runtime.log import Log
from runtime.loop_lag import LagFamily
from runtime.preflight import Need, Use, log_preflight
from runtime.process import Actor, Fatal, grpc_runtime, run_actors, share_one_arena

if TYPE_CHECKING:
    from exporter.dra.tracker import DraTracker

_log = Log("exporter")


async def main(settings: ExporterSettings, stop: asyncio.Event) -> None:
    """Run the exporter until `stop` is set. Raises Fatal for settings that cannot work."""
    share_one_arena()
    paths, clock = KubeletPaths(settings.kubelet_root), Clock()
    states, watcher = StateStore(), DirectoryWatcher()
    reader = _reader(settings.id_rules)
    pods, cgroups = _pods(settings, paths), _cgroups(settings, watcher)
    dra = _dra(settings, watcher)
    plugins, cpu_numa = _plugins(settings, states, clock), numa_of_cpus()
    limit = SeriesLimit(settings.metrics_max_series)
    metrics = _metrics(settings, states, clock, limit, pods=pods, dra=dra)
    kubelet = _kubelet(settings, paths, clock)
    history = _history(settings, states, clock, watcher)
    metrics.register(HistoryFamilies(lambda: history.condition))
    web = WebServer(settings, prefix="devicelens")
    await web.start()
    metrics.register(web.families)
    metrics.register(LagFamily("devicelens"))
    preparers: list[Preparer] = [metrics]
    refresher = Refresher(
        kubelet,
        states,
        (metrics.counters, history),
        _pipeline(settings, reader, cpu_numa),
        timing=RefreshTiming(settings.poll_interval, settings.stale_after),
        clock=clock,
        pods=pods,
        plugins=plugins,
        dra=dra,
        notes=[source for source in (limit, dra) if source is not None],
        preparers=preparers,
        phases=metrics,
    )
    site = Site(
        states=states,
        node=settings.node_name,
        stale_after=settings.stale_after,
        poll_interval=settings.poll_interval,
        clock=clock.now,
        metrics=metrics,
        triggers=lambda: _triggers(watcher, settings, (pods, cgroups, dra)),
        version=__version__,
        history=history,
        reader=reader,
        cpu_nodes=cpu_numa,
        preparers=preparers,
    )
    _log_start(settings, paths)
    if settings.web_config_file is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, web.reload)
    actors: list[Actor] = [
        log_preflight(
            needs(
                paths,
                settings.pods_source,
                history=settings.history_path,
                cgroups=settings.cgroup_root,
                cdi=_cdi_directory() if settings.dra_source == "cdi" else None,
            )
        ),
        watcher.run(),
        history.run(refresher),
        refresher.run(),
        follow_device_plugins(watcher, paths, refresher.trigger),
        follow_pod_resources(watcher, paths, refresher.trigger),
        web.run(build(site), purpose="status page, API and metrics"),
        *_source_actors(refresher, pods, cgroups, plugins, dra, watcher=watcher, paths=paths),
    ]
    async with grpc_runtime(), kubelet:
        try:
            await run_actors(actors, stop)
        finally:
            metrics.close()


def _pipeline(settings: ExporterSettings, reader: IdReader, cpu_numa: Mapping[int, int]) -> SnapshotPipeline:
    return SnapshotPipeline(
        SnapshotBuilder(cpu_numa, reader),
        AnomalyTracker(reader, UnattributedTracker()),
        keep_allocatable=settings.stale_after,
        forget_after=settings.forget_after,
        node=settings.node_name,
    )


def _source_actors(
    refresher: Refresher,
    pods: PodTracker | None,
    cgroups: PodCgroups | None,
    plugins: PluginPoller | None,
    dra: "DraTracker | None",
    *,
    watcher: DirectoryWatcher,
    paths: KubeletPaths,
) -> list[Actor]:
    """The actors of the sources, bound to the refresh loop."""
    actors: list[Actor] = []
    if pods is not None:
        pods.bind(refresher)
        actors += [pods.run(), follow_pods_api(watcher, paths, pods.retry)]
    if cgroups is not None:
        actors.append(cgroups.follow(refresher.trigger))
    if plugins is not None:
        plugins.bind(refresher)
        actors.append(plugins.run())
    if dra is not None:
        dra.bind(refresher)
        actors.append(dra.run())
    return actors


def _log_start(settings: ExporterSettings, paths: KubeletPaths) -> None:
    _log.info(
        "starting",
        version=__version__,
        node=settings.node_name,
        socket=paths.pod_resources_socket,
        poll_interval_seconds=settings.poll_interval,
        pods_source=settings.pods_source,
    )


def _metrics(
    settings: ExporterSettings,
    states: StateStore,
    clock: Clock,
    limit: SeriesLimit,
    *,
    pods: PodTracker | None,
    dra: "DraTracker | None",
) -> Metrics:
    return Metrics(
        states,
        node=settings.node_name,
        version=__version__,
        stale_after=settings.stale_after,
        clock=clock.now,
        pods=pods,
        dra=dra,
        limit=limit,
    )


def _kubelet(settings: ExporterSettings, paths: KubeletPaths, clock: Clock) -> KubeletClient:
    """The PodResources client. Raises Fatal for a path that is too long."""
    try:
        return KubeletClient(paths.pod_resources_socket, timeout=settings.poll_timeout, wall=clock.wall)
    except ValueError as error:
        raise Fatal(f"--kubelet.root {settings.kubelet_root}: {error}") from error


def _pods(settings: ExporterSettings, paths: KubeletPaths) -> PodTracker | None:
    """The pod source of --pods.source, None for none. Raises Fatal."""
    allowed = LabelFilter(settings.pod_labels)
    match settings.pods_source:
        case "none":
            return None
        case "apiserver":
            # Few nodes use the API server.
            from exporter.apiserver import kubeconfig  # noqa: PLC0415
            from exporter.pods import api_server  # noqa: PLC0415

            try:
                access = kubeconfig.api_server_access(settings.kubeconfig, os.environ)
            except kubeconfig.ApiServerAccessError as error:
                raise Fatal(f"--pods.source apiserver: {error}") from error
            return PodTracker(api_server.ApiServer(access, settings.node_name, allowed), expected=True)
        case source:
            try:
                pods_api = PodsApi(paths, allowed, timeout=settings.poll_timeout)
            except ValueError as error:
                raise Fatal(f"--kubelet.root {settings.kubelet_root}: {error}") from error
            return PodTracker(pods_api, expected=source == "pods-api")


def _dra(settings: ExporterSettings, watcher: DirectoryWatcher) -> "DraTracker | None":
    """The source of --dra.source, None for none. Raises Fatal."""
    chosen, expected = settings.dra_source, settings.dra_source != "auto"
    if not expected:
        chosen = _found_dra(settings)
    if chosen == "none":
        return None
    # Few nodes have DRA.
    from exporter.dra.tracker import DraTracker  # noqa: PLC0415

    if chosen == "cdi":
        from exporter.dra.cdi import CdiSpecifications  # noqa: PLC0415

        return DraTracker(cdi=CdiSpecifications(watcher), expected=expected)
    from exporter.apiserver import kubeconfig  # noqa: PLC0415
    from exporter.dra.claims import ClaimReader  # noqa: PLC0415
    from exporter.dra.slices import SliceWatch  # noqa: PLC0415

    try:
        access = kubeconfig.api_server_access(settings.kubeconfig, os.environ)
    except kubeconfig.ApiServerAccessError as error:
        if expected:
            raise Fatal(f"--dra.source slices: {error}") from error
        _log.warn("what claimed devices are is not known", reason=str(error))
        return None
    slices = SliceWatch(access, settings.node_name, expected=expected)
    return DraTracker(slices, ClaimReader(access), expected=expected)


def _found_dra(settings: ExporterSettings) -> str:
    """The source that --dra.source auto uses."""
    if settings.kubeconfig is not None or (ACCOUNT / "token").exists():
        return "slices"
    return "cdi" if _cdi_directory().is_dir() else "none"


def _cdi_directory() -> Path:
    """The directory of CDI specifications that can be listed, the last by precedence without any."""
    usable = [path for path in CDI_DIRECTORIES if os.access(path, os.R_OK | os.X_OK)]
    return usable[0] if usable else CDI_DIRECTORIES[-1]


def _cgroups(settings: ExporterSettings, watcher: DirectoryWatcher) -> PodCgroups | None:
    """The watch of pods' cgroups, None without --cgroup.root."""
    return None if settings.cgroup_root is None else PodCgroups(settings.cgroup_root, watcher)


def _plugins(settings: ExporterSettings, states: StateStore, clock: Clock) -> PluginPoller | None:
    """The poller of --plugin.url, None without any."""
    if not settings.plugin_url:
        return None
    access = PluginAccess(
        settings.plugin_ca_file,
        settings.plugin_cert_file,
        settings.plugin_key_file,
        settings.plugin_password_file,
    )
    clients = [PluginClient(address, access) for address in settings.plugin_url]
    return PluginPoller(clients, states, clock=clock.now)


def _reader(path: Path | None) -> IdReader:
    """The reader of device ids. Raises Fatal for invalid rules."""
    if path is None:
        return read_id
    # Without a file there is no need of YAML, which takes 3 MiB.
    from exporter.mapping.id_rules import load_rules  # noqa: PLC0415
    from runtime.config_file import MAX_BYTES, ConfigError  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            return IdReader([*load_rules(file.read(MAX_BYTES + 1), str(path)), *BUILT_IN_RULES])
    except OSError as error:
        raise Fatal(f"--id-rules {path}: {error.strerror or error}") from error
    except ConfigError as error:
        raise Fatal(f"--id-rules: {error}") from error


def _history(
    settings: ExporterSettings, states: StateStore, clock: Clock, watcher: DirectoryWatcher
) -> HistoryRecorder:
    """The history of --history.path. Raises Fatal for a file that is none."""
    foreign = "" if settings.history_path is None else foreign_problem(settings.history_path)
    if foreign:
        raise Fatal(f"--history.path {settings.history_path}: {foreign}: name a history, or a new file")
    archive = Archive(
        settings.history_path,
        HistoryLimits(settings.history_retention, settings.history_max_bytes),
        doubt=RESTORE_FOR,
        clock=clock,
    )
    return HistoryRecorder(
        archive,
        states,
        node=settings.node_name,
        clock=clock,
        # The longest time between two polls by the timer, if both take as long as their timeouts allow.
        patience=2 * (settings.poll_interval + 2 * settings.poll_timeout),
        inotify=lambda: watcher.polling_because is None,
    )


def _triggers(
    watcher: DirectoryWatcher,
    settings: ExporterSettings,
    sources: "Iterable[PodTracker | PodCgroups | DraTracker | None]",
) -> tuple[str, ...]:
    timer = f"timer every {settings.poll_interval:g} s"
    watched = tuple(source.words for source in sources if source is not None)
    reason = watcher.polling_because
    if reason is None:
        return (timer, "inotify on device-plugins", "inotify on pod-resources", *watched)
    return (timer, f"device-plugins and pod-resources are polled every second: {reason}", *watched)


def needs(
    paths: KubeletPaths,
    pods_source: str,
    *,
    history: Path | None,
    cgroups: Path | None,
    cdi: Path | None = None,
) -> tuple[Need, ...]:
    """What the exporter needs of the node, for the preflight check."""
    found = [
        Need(
            "pod_resources",
            paths.pod_resources_socket,
            Use.CONNECT,
            "is the kubelet up, and does --kubelet.root name its root directory?",
        ),
        Need(
            "device_plugins",
            paths.device_plugins,
            Use.LIST,
            f"mount the node's {paths.device_plugins}: without it an allocation shows at the next poll only",
        ),
    ]
    if pods_source in {"auto", "pods-api"}:
        found.append(
            Need(
                "pods_api",
                paths.pods_api_socket,
                Use.CONNECT,
                "enable the kubelet's feature gate PodsAPI (1.36 or later), or set --pods.source apiserver",
                optional=pods_source == "auto",
            )
        )
    cgroups_component = f"mount the node's cgroups at {cgroups}, read-only (deploy/components/cgroups)"
    cdi_component = "mount the node's /etc/cdi and /var/run/cdi, read-only (deploy/components/cdi)"
    for name, path, advice in (("cgroups", cgroups, cgroups_component), ("cdi", cdi, cdi_component)):
        if path is not None:
            found.append(Need(name, path, Use.LIST, advice))
    if history is not None:
        found.append(
            Need(
                "history",
                history.absolute().parent,
                Use.WRITE,
                "mount a directory that can be written to (deploy/components/history)",
                made=True,
            )
        )
    return tuple(found)
