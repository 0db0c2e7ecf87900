"""The workload dashboard: holdings of a namespace or workload, their health, utilisation and placement."""

from typing import Any, Final

from dashboards import links
from dashboards.board import (
    CLUSTER,
    NAMESPACE,
    NODES,
    RESOURCE,
    WORKLOAD,
    GrafanaDashboard,
    cluster_variable,
    datasource_variable,
    namespaces_variable,
    nodes_variable,
    resources_variable,
    workloads_variable,
)
from dashboards.links import Addresses
from dashboards.panels import (
    DIRECTIONS,
    GOOD_IS_ZERO,
    GREEN,
    HEALTH,
    HELD,
    IDLE,
    LABELS,
    UNUSED,
    YELLOW,
    Column,
    Query,
    busy,
    graph,
    health_of_holders,
    number,
    rows,
    timeline,
)

_OF: Final = f"{NODES}, {NAMESPACE}, {RESOURCE}"
_BY: Final = f"{_OF}, {WORKLOAD}"
_HELD: Final = f"holding:devicelens_owner:info{{{_BY}}}"
_HEALTH: Final = f"({health_of_holders(LABELS, _OF)}) and on ({LABELS}) {_HELD}"
"""The health of the devices that the chosen workloads hold, one series for each holder."""
_POD: Final = "cluster, node, namespace, pod"


def workload(addresses: Addresses) -> dict[str, Any]:
    """The workload dashboard."""
    del addresses
    board = GrafanaDashboard(
        "workload",
        "Namespace and workload",
        "What the pods of a namespace or workload hold, since when, its health and its utilisation.",
        [
            datasource_variable(),
            cluster_variable(),
            namespaces_variable(CLUSTER),
            workloads_variable(),
            nodes_variable(),
            resources_variable(NODES),
        ],
        back="24h",
    )
    _now(board)
    _holdings(board)
    _used(board)
    _placement(board)
    return board.document()


def _now(board: GrafanaDashboard) -> None:
    board.row(
        "Now",
        number(
            "Devices",
            "Devices that the pods hold; a device that several of them share counts once.",
            f"count(group by (cluster, node, resource, device) ({_HELD})) or vector(0)",
        ),
        number("Pods", "Pods that hold a device.", f"count(group by ({_POD}) ({_HELD})) or vector(0)"),
        number("Nodes", "Nodes of these pods.", f"count(group by (cluster, node) ({_HELD})) or vector(0)"),
        number(
            "Not healthy",
            "Unhealthy devices that the pods hold.",
            f"count(({_HEALTH}) == 0) or vector(0)",
            steps=GOOD_IS_ZERO,
        ),
        number(
            "Anomalies",
            "Anomalies of these namespaces.",
            f'count(group by (kind, {LABELS}) (devicelens_anomaly_info{{{NODES}, {NAMESPACE}, namespace!=""}}))'
            " or vector(0)",
            steps=GOOD_IS_ZERO,
        ),
        number(
            "Utilisation",
            "Mean utilisation of the devices.",
            f"avg(max by (cluster, node, resource, device) (holding:devicelens_utilisation:ratio{{{_BY}}}))",
            unit="percentunit",
            steps=IDLE,
            nothing="not measured",
            decimals=0,
        ),
    )


def _holdings(board: GrafanaDashboard) -> None:
    named = f"* on ({LABELS}) group_left (parent, workload_kind, workload) topk by ({LABELS}) (1, {_HELD})"
    board.row(
        "Holdings",
        rows(
            "Holdings",
            "Every device that the pods hold.",
            [
                Query(f"({health_of_holders(LABELS, _OF)}) {named}", "health"),
                Query(
                    f"max by ({LABELS}) (devicelens_device_held_since_timestamp_seconds{{{_OF}}}) * 1000 {named}",
                    "held since",
                ),
            ],
            [
                Column("namespace", link=links.NAMESPACE),
                Column("workload", link=links.WORKLOAD),
                Column("workload_kind"),
                Column("pod"),
                Column("container"),
                Column("resource"),
                Column("device", link=links.DEVICE),
                Column("parent"),
                Column("node", link=links.NODE),
                Column("health", texts=HEALTH, width=110),
                Column("held since", unit="dateTimeFromNow"),
            ],
            nothing="no devices are held",
            height=11,
        ),
        timeline(
            "Over time",
            "Holdings over time. Red while the device was not healthy.",
            [Query(_HEALTH, "{{namespace}}/{{pod}} {{device}} on {{node}}")],
            HELD,
            nothing="no devices were held",
            height=11,
        ),
        graph(
            "Devices by workload",
            "Devices of each workload; of the namespace alone where the workload is unknown.",
            [Query(f"count by (namespace, workload) ({_HELD})", "{{namespace}}/{{workload}}")],
            stacked=True,
            nothing="no devices were held",
        ),
        graph(
            "Device-hours per hour",
            "Device-hours that the namespaces held in the last hour, by resource. One hour of one whole device is 1. "
            "For whole namespaces and clusters, whatever workload or node is chosen.",
            [
                Query(
                    "sum by (namespace, resource) (cluster_namespace_resource:devicelens_held_device_seconds:increase1h"
                    f"{{{CLUSTER}, {NAMESPACE}, {RESOURCE}}}) / 3600",
                    "{{namespace}} {{resource}}",
                )
            ],
            nothing="no devices were held",
        ),
        rows(
            "Anomalies",
            "Anomalies of these namespaces.",
            [
                Query(
                    f"group by (kind, {LABELS}) "
                    f'(devicelens_anomaly_info{{{NODES}, {NAMESPACE}, namespace!=""}})'
                )
            ],
            [
                Column("kind", width=140),
                Column("namespace"),
                Column("pod"),
                Column("container"),
                Column("resource"),
                Column("device", link=links.DEVICE),
                Column("node", link=links.NODE),
            ],
            nothing="no anomalies",
            width=12,
            height=7,
        ),
        rows(
            "Claims",
            "Devices that the namespaces' pods hold through ResourceClaims (DRA).",
            [
                Query(
                    "group by (cluster, node, driver, pool, device, share_id, claim, namespace, pod, container) "
                    f"(devicelens_claim_device_info{{{NODES}, {NAMESPACE}}})"
                )
            ],
            [
                Column("namespace"),
                Column("pod"),
                Column("container"),
                Column("claim"),
                Column("driver"),
                Column("pool"),
                Column("device"),
                Column("node", link=links.NODE),
            ],
            nothing="no claims",
            width=12,
            height=7,
        ),
    )


def _used(board: GrafanaDashboard) -> None:
    board.row(
        "Utilisation",
        graph(
            "Utilisation of the devices",
            "Each holder of a shared device has the figure of the whole device.",
            [busy(_BY)],
            unit="percentunit",
            most=1,
            nothing="no utilisation metrics are scraped",
        ),
        graph(
            "Network of the devices",
            "Bytes per second that held NICs and HCAs receive and transmit, from node_exporter.",
            [
                Query(
                    f"sum by (namespace, pod) (holding:devicelens_network_{direction}_bytes:rate5m{{{_BY}}})",
                    f"{{{{namespace}}}}/{{{{pod}}}} {legend}",
                )
                for direction, legend in DIRECTIONS
            ],
            unit="Bps",
            nothing="no matching node_exporter metrics",
        ),
        rows(
            "Idle holdings",
            "Maximum utilisation of each holding in the last 30 minutes, the lowest first.",
            [
                Query(
                    f"sort(max by ({LABELS}, scope) "
                    f"(max_over_time(holding:devicelens_utilisation:ratio{{{_BY}}}[30m])))",
                    "busiest",
                )
            ],
            [
                Column("namespace"),
                Column("pod"),
                Column("container"),
                Column("resource"),
                Column("device", link=links.DEVICE),
                Column("node", link=links.NODE),
                *UNUSED,
            ],
            nothing="no utilisation metrics are scraped",
            width=12,
            height=8,
        ),
        graph(
            "Network of the pods, by interface",
            "Bytes per second inside the pods that hold devices, from cAdvisor. An interface that was moved into a pod is "
            "visible here alone.",
            [
                Query(
                    "sum by (namespace, pod, interface) "
                    f"(rate(container_network_{direction}_bytes_total{{{CLUSTER}, {NAMESPACE}}}[$__rate_interval])) "
                    f"and on (namespace, pod) {_HELD}",
                    f"{{{{namespace}}}}/{{{{pod}}}} {{{{interface}}}} {legend}",
                )
                for direction, legend in DIRECTIONS
            ],
            unit="Bps",
            nothing="no cAdvisor metrics are scraped",
        ),
    )


def _placement(board: GrafanaDashboard) -> None:
    board.row(
        "Placement",
        rows(
            "Containers and NUMA nodes",
            "The number of NUMA nodes that a container's devices, CPUs and pinned memory span: 1 is aligned.",
            [
                Query(
                    f"max by ({_POD}, container) (devicelens_container_numa_nodes{{{NODES}, {NAMESPACE}}}) "
                    f"and on ({_POD}) {_HELD}",
                    "nodes",
                )
            ],
            [
                Column("namespace"),
                Column("pod"),
                Column("container"),
                Column("node", link=links.NODE),
                Column("nodes", steps=((None, GREEN), (2.0, YELLOW)), width=80),
            ],
            nothing="no NUMA data",
            width=12,
            height=8,
        ),
        graph(
            "Devices by node",
            "Devices of the pods by node.",
            [Query(f"count by (node) (group by (cluster, node, resource, device) ({_HELD}))", "{{node}}")],
            stacked=True,
            nothing="no devices were held",
            links=[links.NODE_OF_SERIES],
        ),
    )
