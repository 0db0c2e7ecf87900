"""A namespace or a workload: what my team holds, since when, is it well, and is it used."""

from typing import Any, Final

from dashboards import links, variables
from dashboards.board import Board
from dashboards.panels import GOOD_IS_ZERO, GREEN, IDLE, YELLOW, Column, Query, graph, number, rows, timeline
from dashboards.parts import DIRECTIONS, HEALTH, HELD, LABELS, UNUSED, busy
from dashboards.settings import Settings
from dashboards.variables import CLUSTER, NAMESPACE, NODES, RESOURCE, WORKLOAD

_OF: Final = f"{NODES}, {NAMESPACE}, {RESOURCE}"
_BY: Final = f"{_OF}, {WORKLOAD}"
_HELD: Final = f"holding:devicelens_owner:info{{{_BY}}}"
_POD: Final = "cluster, node, namespace, pod"


def workload(settings: Settings) -> dict[str, Any]:
    """The dashboard."""
    del settings
    board = Board(
        "workload",
        "Namespace and workload",
        "What a team's pods hold, since when, whether it is well, and whether it is used.",
        [
            variables.datasource(),
            variables.cluster(),
            variables.namespaces(CLUSTER),
            variables.workloads(),
            variables.nodes(),
            variables.resources(NODES),
        ],
        back="24h",
    )
    _now(board)
    _holdings(board)
    _used(board)
    _placement(board)
    return board.document()


def _mine(family: str, selector: str = _OF) -> str:
    """A family of devices and holders, of the chosen workloads; its name and who is hit, once."""
    return f"max by ({LABELS}) ({family}{{{selector}}}) and on ({LABELS}) {_HELD}"


def _now(board: Board) -> None:
    board.row(
        "Now",
        number(
            "Devices",
            "Devices that the pods hold; one that several of them share counts once.",
            f"count(group by (cluster, node, resource, device) ({_HELD})) or vector(0)",
        ),
        number("Pods", "Pods that hold something.", f"count(group by ({_POD}) ({_HELD})) or vector(0)"),
        number("Nodes", "Nodes that they are on.", f"count(group by (cluster, node) ({_HELD})) or vector(0)"),
        number(
            "Not healthy",
            "Devices that they hold and that are not healthy.",
            f"count(({_mine('devicelens_device_healthy')}) == 0) or vector(0)",
            steps=GOOD_IS_ZERO,
        ),
        number(
            "What is wrong",
            "Anomalies that hit these namespaces.",
            f'count(group by (kind, {LABELS}) (devicelens_anomaly_info{{{NODES}, {NAMESPACE}, namespace!=""}}))'
            " or vector(0)",
            steps=GOOD_IS_ZERO,
        ),
        number(
            "Used",
            "How busy the devices are, on average.",
            f"avg(max by (cluster, node, resource, device) (holding:devicelens_utilisation:ratio{{{_BY}}}))",
            unit="percentunit",
            steps=IDLE,
            nothing="not measured",
            decimals=0,
        ),
    )


def _holdings(board: Board) -> None:
    named = f"* on ({LABELS}) group_left (parent, workload_kind, workload) topk by ({LABELS}) (1, {_HELD})"
    board.row(
        "What is held",
        rows(
            "Holdings",
            "Every device that the pods hold.",
            [
                Query(f"max by ({LABELS}) (devicelens_device_healthy{{{_OF}}}) {named}", "health"),
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
            nothing="nothing is held",
            height=11,
        ),
        timeline(
            "Over time",
            "Which pod held which device when. Red while the device was not healthy.",
            [Query(_mine("devicelens_device_healthy"), "{{namespace}}/{{pod}} {{device}} on {{node}}")],
            HELD,
            nothing="nothing was held",
            height=11,
        ),
        graph(
            "Devices by workload",
            "How many devices each workload held; those whose workload is not known are told by namespace alone.",
            [Query(f"count by (namespace, workload) ({_HELD})", "{{namespace}}/{{workload}}")],
            stacked=True,
            nothing="nothing was held",
        ),
        graph(
            "Device hours an hour",
            "What the namespaces held in the hour before each moment, by resource. An hour of a whole device is one. "
            "Of whole namespaces and clusters, whatever workload or node is chosen.",
            [
                Query(
                    "sum by (namespace, resource) (cluster_namespace_resource:devicelens_held_device_seconds:increase1h"
                    f"{{{CLUSTER}, {NAMESPACE}, {RESOURCE}}}) / 3600",
                    "{{namespace}} {{resource}}",
                )
            ],
            nothing="nothing was held",
        ),
        rows(
            "What is wrong",
            "Anomalies that hit these namespaces.",
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
            nothing="nothing is wrong",
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
            nothing="no claim is held",
            width=12,
            height=7,
        ),
    )


def _used(board: Board) -> None:
    board.row(
        "Is it used",
        graph(
            "How busy the devices are",
            "Of a shared device each holder is shown the whole: nobody can tell whose work it was.",
            [busy(_BY)],
            unit="percentunit",
            most=1,
            nothing="no exporter of utilisation is scraped",
        ),
        graph(
            "Network of the devices",
            "What held NICs and HCAs receive and transmit, as far as the node sees them.",
            [
                Query(
                    f"sum by (namespace, pod) (holding:devicelens_network_{direction}_bytes:rate5m{{{_BY}}})",
                    f"{{{{namespace}}}}/{{{{pod}}}} {legend}",
                )
                for direction, legend in DIRECTIONS
            ],
            unit="Bps",
            nothing="node_exporter does not know the devices",
        ),
        rows(
            "Hardly used",
            "How busy each device was at most in the last half hour, the idlest first.",
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
            nothing="no exporter of utilisation is scraped",
            width=12,
            height=8,
        ),
        graph(
            "Network of the pods, by interface",
            "What the kubelet (cAdvisor) counts inside the pods that hold something: an interface that was moved into "
            "a pod is seen here alone.",
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
            nothing="the kubelets' cAdvisor is not scraped",
        ),
    )


def _placement(board: Board) -> None:
    board.row(
        "Where it is",
        rows(
            "Containers and NUMA nodes",
            "How many NUMA nodes each container's devices, CPUs and pinned memory span: 1 is aligned.",
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
            nothing="nothing is known of NUMA nodes",
            width=12,
            height=8,
        ),
        graph(
            "Devices by node",
            "Where the pods' devices are.",
            [Query(f"count by (node) (group by (cluster, node, resource, device) ({_HELD}))", "{{node}}")],
            stacked=True,
            nothing="nothing was held",
            links=[links.NODE_OF_SERIES],
        ),
    )
