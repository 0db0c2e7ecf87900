"""The fleet dashboard: devices of all nodes by resource and namespace, anomalies, free devices, utilisation."""

from typing import Any, Final

from dashboards import links
from dashboards.board import (
    CLUSTER,
    NAMESPACE,
    RESOURCE,
    GrafanaDashboard,
    cluster_variable,
    datasource_variable,
    namespaces_variable,
    resources_variable,
)
from dashboards.links import Addresses
from dashboards.panels import (
    BLUE,
    DIRECTIONS,
    GOOD_IS_ZERO,
    GREEN,
    HOLDER,
    IDLE,
    LABELS,
    RED,
    UNUSED,
    USED,
    YELLOW,
    Column,
    Query,
    allocation_rates,
    bars,
    graph,
    health_of_holders,
    number,
    rows,
)

OF: Final = f"{CLUSTER}, {RESOURCE}"
BY: Final = f"{OF}, {NAMESPACE}"
RULES: Final = "no data: are the recording rules loaded?"


def total(what: str, by: str = "") -> str:
    """A recorded count over the chosen clusters."""
    return f"sum{by} (cluster_resource:devicelens_{what}:sum{{{OF}}})"


def fleet(addresses: Addresses) -> dict[str, Any]:
    """The fleet dashboard."""
    del addresses
    board = GrafanaDashboard(
        "fleet",
        "Fleet",
        "Devices of all nodes: by resource and state, by namespace, anomalies, free devices, utilisation.",
        [
            datasource_variable(),
            cluster_variable(),
            resources_variable(CLUSTER),
            namespaces_variable(CLUSTER),
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


def _now(board: GrafanaDashboard) -> None:
    board.row(
        "Now",
        number(
            "Fresh nodes",
            "Nodes whose exporter has a fresh mapping.",
            f"sum(node:devicelens_up:max{{{CLUSTER}}})",
            steps=((None, BLUE),),
            nothing="no exporter is scraped",
        ),
        number(
            "Stale nodes",
            "Nodes whose mapping is stale, or whose exporter does not answer.",
            f"(count(node:devicelens_up:max{{{CLUSTER}}} == 0) or vector(0))"
            f" + (count(instance:devicelens_exporter_up:last{{{CLUSTER}}} == 0) or vector(0))",
            steps=GOOD_IS_ZERO,
        ),
        number(
            "Devices",
            "Devices that are allocatable, held, or reported by their plugin.",
            total("devices"),
            nothing=RULES,
        ),
        number(
            "Held",
            "The share of all devices that pods hold; a shared device counts once.",
            f"{total('allocated_devices')} / {total('devices')}",
            unit="percentunit",
            steps=USED,
            nothing=RULES,
            decimals=0,
        ),
        number(
            "Free",
            "Devices that are allocatable and that no pod holds.",
            total("free_devices"),
            nothing=RULES,
        ),
        number(
            "Not healthy",
            "Devices that are not allocatable.",
            total("unhealthy_devices"),
            steps=((None, GREEN), (1.0, YELLOW)),
            nothing=RULES,
        ),
    )


def _wrong(board: GrafanaDashboard) -> None:
    labels = "cluster, node, kind, resource, device, namespace, pod, container"
    board.row(
        "Anomalies",
        rows(
            "Anomalies",
            "All anomalies now. The node's status page has the evidence.",
            [Query(f"group by ({labels}) (devicelens_anomaly_info{{{CLUSTER}}})")],
            [
                Column("kind", width=140),
                Column("cluster", width=110),
                Column("node", link=links.NODE),
                Column("resource"),
                Column("device", link=links.DEVICE),
                *HOLDER,
            ],
            nothing="no anomalies",
            width=16,
            height=9,
        ),
        bars(
            "Anomalies by kind",
            "The number of anomalies of each kind.",
            [
                Query(
                    f"count by (kind) (group by ({labels}) (devicelens_anomaly_info{{{CLUSTER}}}))",
                    "{{kind}}",
                )
            ],
            steps=((None, YELLOW), (5.0, RED)),
            nothing="no anomalies",
            width=8,
            height=9,
        ),
        rows(
            "Unhealthy devices that are held",
            "Pods whose device failed, or whose plugin is gone.",
            [Query(f"{health_of_holders(LABELS, BY)} == 0")],
            [
                Column("cluster", width=110),
                Column("node", link=links.NODE),
                Column("resource"),
                Column("device", link=links.DEVICE),
                *HOLDER,
            ],
            nothing="every held device is healthy",
            width=16,
            height=8,
        ),
        rows(
            "Alerts",
            "Alerts of devicelens that are firing or pending.",
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


def _resources(board: GrafanaDashboard) -> None:
    counts = (
        ("all", "devices"),
        ("allocatable", "allocatable_devices"),
        ("held", "allocated_devices"),
        ("free", "free_devices"),
        ("not healthy", "unhealthy_devices"),
    )
    board.row(
        "By resource",
        rows(
            "Resources",
            "Every resource with its devices by state. An unhealthy free device is neither held nor free, so held and free "
            "can be less than all.",
            [
                *(Query(total(what, " by (cluster, resource)"), legend) for legend, what in counts),
                Query(
                    f"{total('allocated_devices', ' by (cluster, resource)')} / "
                    f"({total('devices', ' by (cluster, resource)')} > 0)",
                    "used",
                ),
            ],
            [
                Column("cluster", width=110),
                Column("resource", link=links.RESOURCE),
                *(Column(legend) for legend, _ in counts),
                Column("used", unit="percentunit", decimals=0, steps=USED),
            ],
            nothing=RULES,
            sort_by="used",
            height=8,
        ),
        graph(
            "Held",
            "Devices that pods hold, by resource.",
            [Query(total("allocated_devices", " by (resource)"), "{{resource}}")],
            stacked=True,
            nothing=RULES,
        ),
        graph(
            "Free",
            "Devices that are allocatable and free, by resource.",
            [Query(total("free_devices", " by (resource)"), "{{resource}}")],
            stacked=True,
            nothing=RULES,
        ),
        graph(
            "Not healthy",
            "Devices that are known and not allocatable, by resource.",
            [Query(total("unhealthy_devices", " by (resource)"), "{{resource}}")],
            nothing=RULES,
        ),
        graph(
            "Allocations and releases",
            "Allocations and releases per second. Both count each holder of a shared device.",
            allocation_rates(OF),
            unit="cps",
        ),
        graph(
            "Hold time",
            "Median and 90th percentile of the holdings that ended.",
            [
                Query(
                    f"histogram_quantile({part}, sum by (le, resource) "
                    f"(rate(devicelens_allocation_hold_seconds_bucket{{{OF}}}[$__rate_interval])))",
                    f"{{{{resource}}}} {legend}",
                )
                for part, legend in ((0.5, "median"), (0.9, "90th percentile"))
            ],
            unit="s",
            nothing="no releases",
        ),
        graph(
            "By workload",
            "The 20 workloads that hold most, where the exporter has a pod source (--pods.source).",
            [
                Query(
                    "topk(20, count by (namespace, workload_kind, workload) "
                    f'(holding:devicelens_owner:info{{{BY}, workload!=""}}))',
                    "{{namespace}}/{{workload}} ({{workload_kind}})",
                )
            ],
            nothing="no workloads: is --pods.source set?",
            links=[links.NAMESPACE_OF_SERIES],
        ),
    )


def _namespaces(board: GrafanaDashboard) -> None:
    held = f"cluster_namespace_resource:devicelens_held_devices:sum{{{BY}}}"
    share = f"cluster_namespace_resource:devicelens_held_devices:ratio{{{BY}}}"
    hours = f"cluster_namespace_resource:devicelens_held_device_seconds:increase1h{{{BY}}}"
    by = "by (cluster, namespace, resource)"
    board.row(
        "By namespace",
        graph(
            "Held by namespace",
            "Devices that each namespace holds. A device that two namespaces share counts for each.",
            [Query(f"sum by (namespace) ({held})", "{{namespace}}")],
            stacked=True,
            nothing="no devices are held",
            links=[links.NAMESPACE_OF_SERIES],
        ),
        rows(
            "Namespaces",
            "Devices of each namespace, their share of the resource, and the device-hours of the last hour.",
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
            nothing="no devices are held",
            width=12,
            height=8,
            sort_by="held",
        ),
        graph(
            "Device-hours per hour",
            "Device-hours that each namespace held in the last hour, for accounting. One hour of one whole "
            "device is 1.",
            [Query(f"sum by (namespace) ({hours}) / 3600", "{{namespace}}")],
            stacked=True,
            nothing="no devices were held",
        ),
        rows(
            "Longest holdings",
            "The 50 longest holdings whose start is known.",
            [
                Query(
                    "topk(50, time() - max by (cluster, node, resource, device, namespace, pod, container) "
                    f"(devicelens_device_held_since_timestamp_seconds{{{BY}}}))",
                    "held for",
                )
            ],
            [
                *HOLDER,
                Column("resource"),
                Column("device", link=links.DEVICE),
                Column("node", link=links.NODE),
                Column("held for", unit="dtdurations"),
            ],
            nothing="no devices are held",
            width=12,
            height=8,
            sort_by="held for",
        ),
    )


def _fragments(board: GrafanaDashboard) -> None:
    board.row(
        "Free devices and NUMA",
        rows(
            "Free devices by resource",
            "Largest aligned request: the most free devices on one NUMA node of one node. Stranded: free devices outside "
            "the largest such group of their node. Whole: physical devices without any held or unhealthy "
            "share.",
            [
                Query(total("free_devices", " by (cluster, resource)"), "free"),
                Query(
                    f"max by (cluster, resource) (cluster_resource:devicelens_largest_free_group:max{{{OF}}})",
                    "largest aligned request",
                ),
                Query(total("stranded_devices", " by (cluster, resource)"), "stranded"),
                Query(total("parents", " by (cluster, resource)"), "shared devices"),
                Query(total("free_parents", " by (cluster, resource)"), "whole"),
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
            nothing=RULES,
            width=14,
            height=8,
        ),
        bars(
            "Nodes with most free devices",
            "The 20 nodes with most free devices of a resource.",
            [
                Query(
                    f"topk(20, node_resource:devicelens_free_devices:sum{{{OF}}} > 0)",
                    "{{node}} {{resource}}",
                )
            ],
            nothing="no free devices",
            links=[links.NODE_OF_SERIES],
            width=10,
        ),
        graph(
            "Stranded",
            "Free devices outside the largest group of free devices on one NUMA node of their node.",
            [Query(total("stranded_devices", " by (resource)"), "{{resource}}")],
            nothing=RULES,
        ),
        graph(
            "Whole free devices",
            "Physical devices of which every share is healthy and free.",
            [Query(total("free_parents", " by (resource)"), "{{resource}}")],
            nothing="no shared devices",
        ),
    )


def _used(board: GrafanaDashboard) -> None:
    ratio = f"holding:devicelens_utilisation:ratio{{{BY}}}"
    board.row(
        "Utilisation (needs DCGM exporter, AMD's device metrics exporter or node_exporter)",
        bars(
            "Utilisation of held devices",
            "The mean over held devices. A shared device counts once, as a whole.",
            [
                Query(
                    f"avg by (resource) (cluster_resource:devicelens_utilisation:avg{{{OF}}})",
                    "{{resource}}",
                )
            ],
            unit="percentunit",
            steps=IDLE,
            nothing="no utilisation metrics are scraped",
            width=8,
            most=1,
        ),
        graph(
            "Utilisation by namespace",
            "The mean over the devices of each namespace.",
            [
                Query(
                    f"avg by (namespace) (cluster_namespace_resource:devicelens_utilisation:avg{{{BY}}})",
                    "{{namespace}}",
                )
            ],
            unit="percentunit",
            most=1,
            nothing="no utilisation metrics are scraped",
            links=[links.NAMESPACE_OF_SERIES],
            width=8,
        ),
        graph(
            "Network of held devices",
            "Bytes per second that held NICs and HCAs receive and transmit, by namespace.",
            [
                Query(
                    f"sum by (namespace) (holding:devicelens_network_{direction}_bytes:rate5m{{{BY}}})",
                    f"{{{{namespace}}}} {legend}",
                )
                for direction, legend in DIRECTIONS
            ],
            unit="Bps",
            nothing="no matching node_exporter metrics",
            width=8,
        ),
        rows(
            "Idle holdings",
            "The 50 holdings with the lowest maximum utilisation in the last 30 minutes. Scope is what the figure covers: "
            "the device, a partition, the whole of a shared device, or all devices of the container.",
            [
                Query(
                    "bottomk(50, max by (cluster, node, resource, device, namespace, pod, container, scope) "
                    f"(max_over_time({ratio}[30m])))",
                    "busiest",
                )
            ],
            [
                *HOLDER,
                Column("resource"),
                Column("device", link=links.DEVICE),
                Column("node", link=links.NODE),
                *UNUSED,
            ],
            nothing="no utilisation metrics are scraped",
            height=9,
        ),
    )


def _processes(board: GrafanaDashboard) -> None:
    board.row(
        "Exporters and plugins",
        rows(
            "Targets that do not answer",
            "Exporters and plugins that Prometheus cannot scrape.",
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
            "Failed refreshes",
            "Failed calls to the kubelet per second, by method and gRPC code.",
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
            "Exporters by version. A rolling update has more than one.",
            [
                Query(
                    f"count by (version, api_version) (devicelens_build_info{{{CLUSTER}}})",
                    "{{version}}, PodResources {{api_version}}",
                )
            ],
            width=8,
        ),
    )
