"""The node dashboard: holders, devices, anomalies, and the state of the exporter and the plugin."""

from typing import Any, Final

from dashboards import links
from dashboards.board import (
    CLUSTER,
    NAMESPACE,
    NODE,
    RESOURCE,
    GrafanaDashboard,
    cluster_variable,
    datasource_variable,
    namespaces_variable,
    node_variable,
    page_variable,
    resources_variable,
)
from dashboards.links import Addresses
from dashboards.panels import (
    AGE,
    DIRECTIONS,
    GOOD_IS_ONE,
    GOOD_IS_ZERO,
    GREEN,
    HEALTH,
    HELD,
    HOLDER_HERE,
    LABELS,
    YELLOW,
    YES,
    Column,
    Query,
    allocation_rates,
    bars,
    busy,
    graph,
    health_of_holders,
    number,
    rows,
    timeline,
)

OF: Final = f"{NODE}, {RESOURCE}"
BY: Final = f"{OF}, {NAMESPACE}"


def of_node(family: str) -> str:
    """The series of a family without a label `node`, of the node's targets."""
    return f"{family} and on (cluster, job, instance) instance:devicelens_node:info{{{NODE}}}"


def node(addresses: Addresses) -> dict[str, Any]:
    """The node dashboard."""
    board = GrafanaDashboard(
        "node",
        "Node",
        "One node: holders of its devices, anomalies, free devices, and the state of the exporter and the plugin.",
        [
            datasource_variable(),
            cluster_variable(),
            node_variable(),
            resources_variable(NODE),
            namespaces_variable(NODE),
            page_variable(addresses),
        ],
        back="6h",
        page=links.PAGE,
    )
    _now(board)
    _holdings(board)
    _devices(board)
    _placement(board)
    _used(board)
    _exporter(board)
    _plugin(board)
    return board.document()


def _now(board: GrafanaDashboard) -> None:
    board.row(
        "Now",
        number(
            "Fresh",
            "Whether the mapping is fresh.",
            f"node:devicelens_up:max{{{NODE}}}",
            words=YES,
            steps=GOOD_IS_ONE,
            nothing="the exporter does not answer",
            links=[links.PAGE],
        ),
        number(
            "Age",
            "Time since the kubelet's last good answer. Beyond --stale-after the exporter exposes no "
            "holders.",
            f"time() - node:devicelens_last_refresh_success_timestamp_seconds:max{{{NODE}}}",
            unit="s",
            steps=AGE,
            nothing="never",
            decimals=0,
        ),
        number(
            "Anomalies",
            "Anomalies of this node.",
            f"count(group by (kind, {LABELS}) (devicelens_anomaly_info{{{NODE}}})) or vector(0)",
            steps=GOOD_IS_ZERO,
            links=[links.PAGE],
        ),
        number(
            "Held",
            "Devices that pods hold.",
            f"sum(node_resource:devicelens_allocated_devices:max{{{OF}}})",
        ),
        number(
            "Free",
            "Devices that are allocatable and that no pod holds.",
            f"sum(node_resource:devicelens_free_devices:sum{{{OF}}})",
        ),
        number(
            "Not healthy",
            "Devices that are not allocatable.",
            f"sum(node_resource:devicelens_unhealthy_devices:max{{{OF}}})",
            steps=GOOD_IS_ZERO,
        ),
    )


def _holdings(board: GrafanaDashboard) -> None:
    described = (
        "* on (cluster, node, resource, device) group_left (parent, numa_node) "
        "topk by (cluster, node, resource, device) (1, group by (cluster, node, resource, device, parent, "
        f"numa_node) (devicelens_device_info{{{OF}}}))"
    )
    # A free device has no holder's labels, so it is in the table only where All namespaces are chosen.
    health = (
        f"{health_of_holders(LABELS, BY)} or on (cluster, node, resource, device) "
        f"max by (cluster, node, resource, device) (devicelens_device_healthy{{{BY}}})"
    )
    board.row(
        "Holders",
        rows(
            "Devices",
            "Every device with its holder, if any. A shared device has a row for each holder.",
            [
                Query(f"({health}) {described}", "health"),
                Query(
                    f"max by ({LABELS}) (devicelens_device_held_since_timestamp_seconds{{{BY}}}) * 1000 "
                    f"{described}",
                    "held since",
                ),
            ],
            [
                Column("resource"),
                Column("device", link=links.DEVICE_HERE),
                Column("parent", link=None),
                Column("numa_node", width=90),
                Column("health", texts=HEALTH, width=110),
                *HOLDER_HERE,
                Column("held since", unit="dateTimeFromNow"),
            ],
            nothing="no devices",
            height=12,
        ),
        timeline(
            "Holdings",
            "Holdings over time: a row for each device and holder. Red while the device was not healthy.",
            [
                Query(
                    health_of_holders(LABELS, BY),
                    "{{device}} {{namespace}}/{{pod}} {{container}}",
                )
            ],
            HELD,
            nothing="no devices were held",
            links=[links.DEVICE_OF_SERIES],
            height=12,
        ),
        rows(
            "Anomalies",
            "Anomalies of this node. Its status page has the evidence.",
            [
                Query(
                    "group by (kind, resource, device, namespace, pod, container) "
                    f"(devicelens_anomaly_info{{{NODE}}})"
                )
            ],
            [
                Column("kind", width=140),
                Column("resource"),
                Column("device", link=links.DEVICE_HERE),
                *HOLDER_HERE,
            ],
            nothing="no anomalies",
            width=12,
            height=7,
        ),
        rows(
            "Claims",
            "Devices that containers hold through ResourceClaims (DRA).",
            [
                Query(
                    "group by (driver, pool, device, share_id, claim_namespace, claim, namespace, pod, container) "
                    f"(devicelens_claim_device_info{{{NODE}, {NAMESPACE}}})"
                )
            ],
            [
                Column("driver"),
                Column("pool"),
                Column("device"),
                Column("share_id"),
                Column("claim"),
                *HOLDER_HERE,
            ],
            nothing="no claims",
            width=12,
            height=7,
        ),
    )


def _devices(board: GrafanaDashboard) -> None:
    counts = (
        ("devices:max", "known"),
        ("allocatable_devices:max", "allocatable"),
        ("allocated_devices:max", "held"),
        ("free_devices:sum", "free"),
        ("unhealthy_devices:max", "not healthy"),
    )
    board.row(
        "Devices",
        graph(
            "Devices by state",
            "The sum over the chosen resources.",
            [Query(f"sum(node_resource:devicelens_{what}{{{OF}}})", legend) for what, legend in counts],
        ),
        timeline(
            "Health",
            "Health of each device over time.",
            [
                Query(
                    f"min by (resource, device) (devicelens_device_healthy{{{OF}}})",
                    "{{resource}} {{device}}",
                )
            ],
            HEALTH,
            nothing="no devices",
            links=[links.DEVICE_OF_SERIES],
            width=12,
            height=8,
        ),
        graph(
            "Allocations and releases",
            "Allocations and releases per second.",
            allocation_rates(OF),
            unit="cps",
            width=24,
            height=6,
        ),
    )


def _placement(board: GrafanaDashboard) -> None:
    containers = f"{NODE}, {NAMESPACE}"
    board.row(
        "NUMA, CPUs and memory",
        bars(
            "Free devices by NUMA node",
            'What an aligned request can get. "": the NUMA node is unknown.',
            [
                Query(
                    f"node_resource_numa:devicelens_free_devices:count{{{OF}}}",
                    "{{resource}} NUMA {{numa_node}}",
                )
            ],
            nothing="no free devices",
            width=8,
        ),
        rows(
            "Containers and NUMA nodes",
            "The number of NUMA nodes that a container's devices, CPUs and pinned memory span (1 is aligned), and its "
            "exclusive CPUs.",
            [
                Query(
                    f"max by (namespace, pod, container) (devicelens_container_numa_nodes{{{containers}}})",
                    "nodes",
                ),
                Query(
                    f"max by (namespace, pod, container) (devicelens_container_exclusive_cpus{{{containers}}})",
                    "CPUs",
                ),
            ],
            [
                *HOLDER_HERE,
                Column("nodes", steps=((None, GREEN), (2.0, YELLOW)), width=80),
                Column("CPUs", width=80),
            ],
            nothing="no NUMA data",
            width=8,
            height=8,
        ),
        graph(
            "Pinned memory",
            "Memory that the static memory manager pins for containers, by type and NUMA node.",
            [
                Query(
                    "sum by (memory_type, numa_node) (max by (namespace, pod, container, memory_type, numa_node) "
                    f"(devicelens_container_pinned_memory_bytes{{{containers}}}))",
                    "{{memory_type}} on {{numa_node}}",
                )
            ],
            unit="bytes",
            nothing="no pinned memory",
            width=8,
        ),
    )


def _used(board: GrafanaDashboard) -> None:
    board.row(
        "Utilisation (needs DCGM exporter, AMD's device metrics exporter or node_exporter)",
        graph(
            "Utilisation of held devices",
            "Each holder of a shared device has the figure of the whole device.",
            [busy(BY)],
            unit="percentunit",
            most=1,
            nothing="no utilisation metrics are scraped",
            links=[links.DEVICE_OF_SERIES],
        ),
        graph(
            "Network of held devices",
            "Bytes per second that held NICs and HCAs receive and transmit, from node_exporter.",
            [
                Query(
                    f"holding:devicelens_network_{direction}_bytes:rate5m{{{BY}}}",
                    f"{{{{namespace}}}}/{{{{pod}}}} {{{{device}}}} {legend}",
                )
                for direction, legend in DIRECTIONS
            ],
            unit="Bps",
            nothing="no matching node_exporter metrics",
        ),
    )


def _exporter(board: GrafanaDashboard) -> None:
    board.row(
        "The exporter",
        graph(
            "Refresh duration",
            "99th percentile of each phase: waiting for the kubelet's answers, making the mapping, rendering "
            "metrics and API, publishing. The mean is of the whole refresh.",
            [
                Query(
                    "histogram_quantile(0.99, sum by (le, phase) ("
                    + of_node(
                        "rate(devicelens_refresh_duration_seconds_bucket{" + CLUSTER + "}[$__rate_interval])"
                    )
                    + "))",
                    "{{phase}}",
                ),
                Query(
                    "sum("
                    + of_node(
                        "rate(devicelens_refresh_duration_seconds_sum{" + CLUSTER + "}[$__rate_interval])"
                    )
                    + ") / sum("
                    + of_node(
                        "rate(devicelens_refresh_duration_seconds_count{"
                        f'phase="kubelet", {CLUSTER}'
                        "}[$__rate_interval])"
                    )
                    + ")",
                    "mean, all phases",
                ),
            ],
            unit="s",
            width=8,
        ),
        graph(
            "Refreshes",
            "Refreshes per second by trigger: the kubelet's directories, its pods, the plugin, the timer.",
            [
                Query(
                    "sum by (trigger) ("
                    + of_node(f"rate(devicelens_refreshes_total{{{CLUSTER}}}[$__rate_interval])")
                    + ")",
                    "{{trigger}}",
                )
            ],
            unit="cps",
            width=8,
        ),
        graph(
            "Failed refreshes",
            "Failed calls to the kubelet per second, by method and gRPC code.",
            [
                Query(
                    "sum by (method, code) ("
                    + of_node(f"rate(devicelens_refresh_errors_total{{{CLUSTER}}}[$__rate_interval])")
                    + ")",
                    "{{method}} {{code}}",
                )
            ],
            unit="cps",
            width=8,
        ),
        number(
            "History written",
            "Whether the exporter can write its history file.",
            f"max({of_node('devicelens_history_up{' + CLUSTER + '}')})",
            words=YES,
            steps=GOOD_IS_ONE,
        ),
        number(
            "History age",
            "The age of the oldest record.",
            f"time() - min({of_node('devicelens_history_earliest_timestamp_seconds{' + CLUSTER + '}')})",
            unit="dtdurations",
        ),
        number(
            "History size",
            "The size of the history file, or of the records in memory.",
            f"max({of_node('devicelens_history_size_bytes{' + CLUSTER + '}')})",
            unit="bytes",
        ),
        number(
            "Pod source",
            "Whether the source of pod UIDs, labels and owners answers (--pods.source).",
            f"max({of_node('devicelens_pods_source_up{' + CLUSTER + '}')})",
            words=YES,
            steps=GOOD_IS_ONE,
            nothing="not configured",
        ),
        number(
            "Plugin answers",
            "Whether the plugin of --plugin.url answers the exporter.",
            f"min({of_node('devicelens_plugin_url_up{' + CLUSTER + '}')})",
            words=YES,
            steps=GOOD_IS_ONE,
            nothing="not configured",
        ),
        number(
            "Dropped series",
            "Series that the exporter drops because there are more than --metrics.max-series.",
            f"max({of_node('devicelens_series_dropped{' + CLUSTER + '}')})",
            steps=GOOD_IS_ZERO,
        ),
    )


def _plugin(board: GrafanaDashboard) -> None:
    of = f"{CLUSTER}, {RESOURCE}"
    by = "max by (resource)"
    board.row(
        "The plugin",
        rows(
            "Resources of the plugin",
            "Registered: the kubelet accepted the registration. Streams: open ListAndWatch streams.",
            [
                Query(f"{by} ({of_node(f'devicelens_plugin_registered{{{of}}}')})", "registered"),
                Query(f"{by} ({of_node(f'devicelens_plugin_streams{{{of}}}')})", "streams"),
                *(
                    Query(
                        "sum by (resource) ("
                        + of_node(f'devicelens_plugin_devices{{{of}, health="{health}"}}')
                        + ")",
                        legend,
                    )
                    for health, legend in (("Healthy", "healthy"), ("Unhealthy", "not healthy"))
                ),
            ],
            [
                Column("resource"),
                Column("registered", texts=YES),
                Column("streams"),
                Column("healthy"),
                Column("not healthy", steps=GOOD_IS_ZERO),
            ],
            nothing="no devicelens plugin is scraped on this node",
            width=12,
            height=7,
        ),
        rows(
            "Unhealthy devices",
            "The plugin's reason for each unhealthy device.",
            [Query(f"{of_node(f'devicelens_plugin_device_healthy{{{of}}} == 0')}")],
            [Column("resource"), Column("device", link=links.DEVICE_HERE), Column("reason")],
            nothing="every device is healthy",
            width=12,
            height=7,
        ),
        graph(
            "Allocate calls",
            "Allocations that the plugin answered and calls that it refused, per second.",
            [
                Query(
                    "sum by (resource) ("
                    + of_node(f"rate(devicelens_plugin_{what}_total{{{of}}}[$__rate_interval])")
                    + ")",
                    f"{{{{resource}}}} {legend}",
                )
                for what, legend in (("allocations", "answered"), ("allocation_errors", "refused"))
            ],
            unit="cps",
            nothing="no devicelens plugin is scraped on this node",
        ),
        graph(
            "Health changes",
            "Devices that became healthy or unhealthy, per second.",
            [
                Query(
                    "sum by (resource, to) ("
                    + of_node(f"rate(devicelens_plugin_health_transitions_total{{{of}}}[$__rate_interval])")
                    + ")",
                    "{{resource}} {{to}}",
                )
            ],
            unit="cps",
            nothing="no devicelens plugin is scraped on this node",
        ),
    )
