"""The fleet: what there is, who has it, what is wrong, what is left and whether it is of use together."""

from typing import Any, Final

from dashboards import links, variables
from dashboards.board import Board
from dashboards.panels import (
    BLUE,
    GOOD_IS_ZERO,
    GREEN,
    IDLE,
    RED,
    USED,
    YELLOW,
    Column,
    Query,
    bars,
    graph,
    number,
    rows,
)
from dashboards.settings import Settings
from dashboards.variables import CLUSTER, NAMESPACE, RESOURCE

_OF: Final = f"{CLUSTER}, {RESOURCE}"
_BY: Final = f"{_OF}, {NAMESPACE}"
_RULES: Final = "no data: are the recording rules loaded?"


def _sum(what: str, by: str = "") -> str:
    return f"sum{by} (cluster_resource:devicelens_{what}:sum{{{_OF}}})"


def fleet(settings: Settings) -> dict[str, Any]:
    """The dashboard."""
    del settings
    board = Board(
        "fleet",
        "Fleet",
        "Devices of all nodes: by resource and state, by namespace, what is wrong, what is free and usable together.",
        [
            variables.datasource(),
            variables.cluster(),
            variables.resources(CLUSTER),
            variables.namespaces(CLUSTER),
        ],
        back="6h",
    )
    _now(board)
    _wrong(board)
    _resources(board)
    _namespaces(board)
    _fragments(board)
    _used(board)
    _processes(board)
    return board.document()


def _now(board: Board) -> None:
    board.row(
        "Now",
        number(
            "Nodes that are known",
            "Nodes whose exporter tells a mapping that is what the kubelet says.",
            f"sum(node:devicelens_up:max{{{CLUSTER}}})",
            steps=((None, BLUE),),
            nothing="no exporter is scraped",
        ),
        number(
            "Nodes that are not",
            "Nodes whose mapping is old, or whose exporter does not answer.",
            f"(count(node:devicelens_up:max{{{CLUSTER}}} == 0) or vector(0))"
            f" + (count(instance:devicelens_exporter_up:last{{{CLUSTER}}} == 0) or vector(0))",
            steps=GOOD_IS_ZERO,
        ),
        number("Devices", "Devices that are allocatable, held or known.", _sum("devices"), nothing=_RULES),
        number(
            "Held",
            "The share of all devices that somebody holds; a shared device counts once.",
            f"{_sum('allocated_devices')} / {_sum('devices')}",
            unit="percentunit",
            steps=USED,
            nothing=_RULES,
            decimals=0,
        ),
        number(
            "Free",
            "Devices that are allocatable and that nobody holds.",
            _sum("free_devices"),
            nothing=_RULES,
        ),
        number(
            "Not healthy",
            "Devices that are known and that the kubelet does not count as allocatable.",
            _sum("unhealthy_devices"),
            steps=((None, GREEN), (1.0, YELLOW)),
            nothing=_RULES,
        ),
    )


def _wrong(board: Board) -> None:
    labels = "cluster, node, kind, resource, device, namespace, pod, container"
    board.row(
        "What is wrong",
        rows(
            "Anomalies",
            "Everything that an exporter finds wrong at this moment. The node's page has the evidence.",
            [Query(f"group by ({labels}) (devicelens_anomaly_info{{{CLUSTER}}})")],
            [
                Column("kind", width=140),
                Column("cluster", width=110),
                Column("node", link=links.NODE),
                Column("resource"),
                Column("device", link=links.DEVICE),
                Column("namespace", link=links.NAMESPACE),
                Column("pod"),
                Column("container"),
            ],
            nothing="nothing is wrong",
            width=16,
            height=9,
        ),
        bars(
            "Anomalies by kind",
            "How many there are of each kind. The alerts' runbooks say what to do.",
            [
                Query(
                    f"count by (kind) (group by ({labels}) (devicelens_anomaly_info{{{CLUSTER}}}))",
                    "{{kind}}",
                )
            ],
            steps=((None, YELLOW), (5.0, RED)),
            nothing="nothing is wrong",
            width=8,
            height=9,
        ),
        rows(
            "Devices that are held and not healthy",
            "Pods whose device has failed under them, or whose plugin is gone.",
            [
                Query(
                    "max by (cluster, node, resource, device, namespace, pod, container) "
                    f'(devicelens_device_healthy{{{_BY}, pod!=""}}) == 0'
                )
            ],
            [
                Column("cluster", width=110),
                Column("node", link=links.NODE),
                Column("resource"),
                Column("device", link=links.DEVICE),
                Column("namespace", link=links.NAMESPACE),
                Column("pod"),
                Column("container"),
            ],
            nothing="every held device is healthy",
            width=16,
            height=8,
        ),
        rows(
            "Alerts",
            "Alerts of devicelens that fire or are about to.",
            [
                Query(
                    'count by (alertname, severity, alertstate) (ALERTS{alertname=~"Devicelens.+"})', "count"
                )
            ],
            [Column("alertname"), Column("severity"), Column("alertstate"), Column("count", width=80)],
            nothing="no alert",
            width=8,
            height=8,
        ),
    )


def _resources(board: Board) -> None:
    counts = (
        ("known", "devices"),
        ("allocatable", "allocatable_devices"),
        ("held", "allocated_devices"),
        ("free", "free_devices"),
        ("not healthy", "unhealthy_devices"),
    )
    board.row(
        "By resource",
        rows(
            "Resources",
            "Every resource with its devices by state. Held and free can be less than all: what has failed is "
            "neither.",
            [
                *(Query(_sum(what, " by (cluster, resource)"), legend) for legend, what in counts),
                Query(
                    f"{_sum('allocated_devices', ' by (cluster, resource)')} / "
                    f"({_sum('devices', ' by (cluster, resource)')} > 0)",
                    "used",
                ),
            ],
            [
                Column("cluster", width=110),
                Column("resource", link=links.RESOURCE),
                *(Column(legend) for legend, _ in counts),
                Column("used", unit="percentunit", decimals=0, steps=USED),
            ],
            nothing=_RULES,
            sort_by="used",
            height=8,
        ),
        graph(
            "Held",
            "Devices that somebody holds, by resource.",
            [Query(_sum("allocated_devices", " by (resource)"), "{{resource}}")],
            stacked=True,
            nothing=_RULES,
        ),
        graph(
            "Free",
            "Devices that could be given out, by resource.",
            [Query(_sum("free_devices", " by (resource)"), "{{resource}}")],
            stacked=True,
            nothing=_RULES,
        ),
        graph(
            "Not healthy",
            "Devices that are known and not allocatable, by resource.",
            [Query(_sum("unhealthy_devices", " by (resource)"), "{{resource}}")],
            nothing=_RULES,
        ),
        graph(
            "Given out and given back",
            "Allocations and releases that exporters saw, a second. Both count each holder of a shared device.",
            [
                Query(
                    f"sum by (resource) (rate(devicelens_allocations_total{{{_OF}}}[$__rate_interval]))",
                    "{{resource}} given out",
                ),
                Query(
                    f"sum by (resource) (rate(devicelens_releases_total{{{_OF}}}[$__rate_interval]))",
                    "{{resource}} given back",
                ),
            ],
            unit="cps",
        ),
        graph(
            "How long devices were held",
            "Half, and nine of ten, of the holdings that ended were shorter than this.",
            [
                Query(
                    f"histogram_quantile({part}, sum by (le, resource) "
                    f"(rate(devicelens_allocation_hold_seconds_bucket{{{_OF}}}[$__rate_interval])))",
                    f"{{{{resource}}}} {legend}",
                )
                for part, legend in ((0.5, "half"), (0.9, "nine of ten"))
            ],
            unit="s",
            nothing="nothing was given back",
        ),
        graph(
            "By workload",
            "The twenty workloads that hold most, where exporters know them (--pods.source).",
            [
                Query(
                    "topk(20, count by (namespace, workload_kind, workload) "
                    f'(holding:devicelens_owner:info{{{_BY}, workload!=""}}))',
                    "{{namespace}}/{{workload}} ({{workload_kind}})",
                )
            ],
            nothing="no workload is known",
            links=[links.NAMESPACE_OF_SERIES],
        ),
    )


def _namespaces(board: Board) -> None:
    held = f"cluster_namespace_resource:devicelens_held_devices:sum{{{_BY}}}"
    share = f"cluster_namespace_resource:devicelens_held_devices:ratio{{{_BY}}}"
    hours = f"cluster_namespace_resource:devicelens_held_device_seconds:increase1h{{{_BY}}}"
    by = "by (cluster, namespace, resource)"
    board.row(
        "By namespace",
        graph(
            "Held by namespace",
            "Devices that each namespace holds. A device that two namespaces share counts for each.",
            [Query(f"sum by (namespace) ({held})", "{{namespace}}")],
            stacked=True,
            nothing="nobody holds anything",
            links=[links.NAMESPACE_OF_SERIES],
        ),
        rows(
            "Who holds how much",
            "Each namespace's devices, their share of all of the resource, and the device hours of the last hour.",
            [
                Query(f"sum {by} ({held})", "held"),
                Query(f"max {by} ({share})", "share"),
                Query(f"sum {by} ({hours}) / 3600", "hours"),
            ],
            [
                Column("cluster", width=110),
                Column("namespace", link=links.NAMESPACE),
                Column("resource", link=links.RESOURCE),
                Column("held", width=80),
                Column("share", unit="percentunit", decimals=1, steps=((None, GREEN), (0.5, YELLOW))),
                Column("hours", decimals=2),
            ],
            nothing="nobody holds anything",
            width=12,
            height=8,
            sort_by="held",
        ),
        graph(
            "Device hours an hour",
            "What each namespace held in the hour before each moment: of use for accounts. An hour of a whole "
            "device is one.",
            [Query(f"sum by (namespace) ({hours}) / 3600", "{{namespace}}")],
            stacked=True,
            nothing="nobody held anything",
        ),
        rows(
            "Held longest",
            "The fifty holdings that have lasted longest, as far as the exporters know when they began.",
            [
                Query(
                    "topk(50, time() - max by (cluster, node, resource, device, namespace, pod, container) "
                    f"(devicelens_device_held_since_timestamp_seconds{{{_BY}}}))",
                    "held for",
                )
            ],
            [
                Column("namespace", link=links.NAMESPACE),
                Column("pod"),
                Column("container"),
                Column("resource"),
                Column("device", link=links.DEVICE),
                Column("node", link=links.NODE),
                Column("held for", unit="dtdurations"),
            ],
            nothing="nobody holds anything",
            width=12,
            height=8,
            sort_by="held for",
        ),
    )


def _fragments(board: Board) -> None:
    board.row(
        "Free, and of use together",
        rows(
            "Free devices that cannot be used together",
            "The largest aligned request: the most that are free on one NUMA node of one machine. Stranded: free "
            "devices that are not part of their machine's largest such group. Whole: physical devices of which no "
            "share is held.",
            [
                Query(_sum("free_devices", " by (cluster, resource)"), "free"),
                Query(
                    f"max by (cluster, resource) (cluster_resource:devicelens_largest_free_group:max{{{_OF}}})",
                    "largest aligned request",
                ),
                Query(_sum("stranded_devices", " by (cluster, resource)"), "stranded"),
                Query(_sum("parents", " by (cluster, resource)"), "shared devices"),
                Query(_sum("free_parents", " by (cluster, resource)"), "whole"),
            ],
            [
                Column("cluster", width=110),
                Column("resource", link=links.RESOURCE),
                Column("free"),
                Column("largest aligned request"),
                Column("stranded", steps=((None, GREEN), (1.0, YELLOW))),
                Column("shared devices"),
                Column("whole"),
            ],
            nothing=_RULES,
            width=14,
            height=8,
        ),
        bars(
            "Nodes with most free devices",
            "Where a large pod fits.",
            [
                Query(
                    f"topk(20, node_resource:devicelens_free_devices:sum{{{_OF}}} > 0)",
                    "{{node}} {{resource}}",
                )
            ],
            nothing="nothing is free",
            links=[links.NODE_OF_SERIES],
            width=10,
        ),
        graph(
            "Stranded",
            "Free devices that no aligned request can have together with the others of their machine.",
            [Query(_sum("stranded_devices", " by (resource)"), "{{resource}}")],
            nothing=_RULES,
        ),
        graph(
            "Free as a whole",
            "Physical devices of which every share is healthy and free.",
            [Query(_sum("free_parents", " by (resource)"), "{{resource}}")],
            nothing="no device is shared",
        ),
    )


def _used(board: Board) -> None:
    ratio = f"holding:devicelens_utilisation:ratio{{{_BY}}}"
    board.row(
        "Used (needs DCGM exporter, AMD's device metrics exporter or node_exporter)",
        bars(
            "How busy held devices are",
            "The mean of held devices. A device that is shared counts once, by the whole of it.",
            [
                Query(
                    f"avg by (resource) (cluster_resource:devicelens_utilisation:avg{{{_OF}}})",
                    "{{resource}}",
                )
            ],
            unit="percentunit",
            steps=IDLE,
            nothing="no exporter of utilisation is scraped",
            width=8,
            most=1,
        ),
        graph(
            "How busy each namespace's devices are",
            "The mean of what each namespace holds.",
            [
                Query(
                    f"avg by (namespace) (cluster_namespace_resource:devicelens_utilisation:avg{{{_BY}}})",
                    "{{namespace}}",
                )
            ],
            unit="percentunit",
            most=1,
            nothing="no exporter of utilisation is scraped",
            links=[links.NAMESPACE_OF_SERIES],
            width=8,
        ),
        graph(
            "Network of held devices",
            "What held NICs and HCAs receive and transmit, by namespace.",
            [
                Query(
                    f"sum by (namespace) (holding:devicelens_network_{direction}_bytes:rate5m{{{_BY}}})",
                    f"{{{{namespace}}}} {legend}",
                )
                for direction, legend in (("receive", "in"), ("transmit", "out"))
            ],
            unit="Bps",
            nothing="node_exporter does not know the devices",
            width=8,
        ),
        rows(
            "Held and hardly used",
            "The fifty holdings that were least busy in the last half hour, by their busiest moment. Scope says what "
            "was measured: the device, a partition, all of a shared device, or all of the container's together.",
            [
                Query(
                    "bottomk(50, max by (cluster, node, resource, device, namespace, pod, container, scope) "
                    f"(max_over_time({ratio}[30m])))",
                    "busiest",
                )
            ],
            [
                Column("namespace", link=links.NAMESPACE),
                Column("pod"),
                Column("container"),
                Column("resource"),
                Column("device", link=links.DEVICE),
                Column("node", link=links.NODE),
                Column("scope", width=90),
                Column("busiest", unit="percentunit", decimals=1, steps=IDLE),
            ],
            nothing="no exporter of utilisation is scraped",
            height=9,
        ),
    )


def _processes(board: Board) -> None:
    board.row(
        "Exporters and plugins",
        rows(
            "Targets that do not answer",
            "Exporters and plugins that Prometheus knows and cannot scrape.",
            [
                Query(
                    f"instance:devicelens_exporter_up:last{{{CLUSTER}}} == 0"
                    f" or instance:devicelens_plugin_up:last{{{CLUSTER}}} == 0"
                )
            ],
            [Column("cluster"), Column("job"), Column("instance")],
            nothing="every target answers",
            width=8,
        ),
        graph(
            "Refreshes that failed",
            "The kubelet's answers that were errors, a second, by method and gRPC code.",
            [
                Query(
                    "sum by (method, code) "
                    f"(rate(devicelens_refresh_errors_total{{{CLUSTER}}}[$__rate_interval]))",
                    "{{method}} {{code}}",
                )
            ],
            unit="cps",
            width=8,
        ),
        graph(
            "Versions",
            "How many exporters of each version there are: more than one during an update.",
            [
                Query(
                    f"count by (version, api_version) (devicelens_build_info{{{CLUSTER}}})",
                    "{{version}}, PodResources {{api_version}}",
                )
            ],
            width=8,
        ),
    )
