"""One node: the page's table, the holdings over time, and how well the exporter and the plugin do."""

from typing import Any, Final

from dashboards import links, variables
from dashboards.board import Board
from dashboards.panels import (
    AGE,
    GOOD_IS_ONE,
    GOOD_IS_ZERO,
    GREEN,
    RED,
    YELLOW,
    Column,
    Query,
    bars,
    graph,
    number,
    rows,
    timeline,
)
from dashboards.settings import Settings
from dashboards.variables import CLUSTER, NAMESPACE, NODE, RESOURCE

HEALTH: Final = {"1": ("healthy", GREEN), "0": ("not healthy", RED)}
HELD: Final = {"1": ("held", GREEN), "0": ("held, not healthy", RED)}
YES: Final = {"1": ("yes", GREEN), "0": ("no", RED)}

_OF: Final = f"{NODE}, {RESOURCE}"
_BY: Final = f"{_OF}, {NAMESPACE}"
_LABELS: Final = "cluster, node, resource, device, namespace, pod, container"


def of_node(family: str) -> str:
    """A family that has no node of its own, for the node's targets."""
    return f"{family} and on (cluster, job, instance) instance:devicelens_node:info{{{NODE}}}"


def node(settings: Settings) -> dict[str, Any]:
    """The dashboard."""
    board = Board(
        "node",
        "Node",
        "One node: who holds which device since when, what is wrong, what is free, and whether all that is fresh.",
        [
            variables.datasource(),
            variables.cluster(),
            variables.node(),
            variables.resources(NODE),
            variables.namespaces(NODE),
            variables.page(settings),
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


def _now(board: Board) -> None:
    board.row(
        "Now",
        number(
            "Fresh",
            "Whether the mapping is what the kubelet says.",
            f"node:devicelens_up:max{{{NODE}}}",
            words=YES,
            steps=GOOD_IS_ONE,
            nothing="its exporter does not answer",
            links=[links.PAGE],
        ),
        number(
            "Age",
            "Since when the kubelet has not been heard, by the exporter's clock. Beyond --stale-after nothing is "
            "told.",
            f"time() - node:devicelens_last_refresh_success_timestamp_seconds:max{{{NODE}}}",
            unit="s",
            steps=AGE,
            nothing="never",
            decimals=0,
        ),
        number(
            "What is wrong",
            "Anomalies of this node.",
            f"count(group by (kind, {_LABELS}) (devicelens_anomaly_info{{{NODE}}})) or vector(0)",
            steps=GOOD_IS_ZERO,
            links=[links.PAGE],
        ),
        number(
            "Held",
            "Devices that somebody holds.",
            f"sum(node_resource:devicelens_allocated_devices:max{{{_OF}}})",
        ),
        number(
            "Free",
            "Devices that are allocatable and that nobody holds.",
            f"sum(node_resource:devicelens_free_devices:sum{{{_OF}}})",
        ),
        number(
            "Not healthy",
            "Devices that are known and not allocatable.",
            f"sum(node_resource:devicelens_unhealthy_devices:max{{{_OF}}})",
            steps=GOOD_IS_ZERO,
        ),
    )


def _holdings(board: Board) -> None:
    described = (
        "* on (cluster, node, resource, device) group_left (parent, numa_node) "
        "topk by (cluster, node, resource, device) (1, group by (cluster, node, resource, device, parent, "
        f"numa_node) (devicelens_device_info{{{_OF}}}))"
    )
    board.row(
        "Who holds what",
        rows(
            "Devices",
            "Every device with its holder, or without. A shared device has a row for each holder.",
            [
                Query(f"max by ({_LABELS}) (devicelens_device_healthy{{{_BY}}}) {described}", "health"),
                Query(
                    f"max by ({_LABELS}) (devicelens_device_held_since_timestamp_seconds{{{_BY}}}) * 1000 "
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
                Column("namespace", link=links.NAMESPACE),
                Column("pod", link=links.POD_PAGE),
                Column("container"),
                Column("held since", unit="dateTimeFromNow"),
            ],
            nothing="no device is known",
            height=12,
        ),
        timeline(
            "Holdings",
            "Who held which device when: a row for each device and holder. Red while the device was not healthy.",
            [
                Query(
                    f'max by (resource, device, namespace, pod, container) (devicelens_device_healthy{{{_BY}, pod!=""}})',
                    "{{device}} {{namespace}}/{{pod}} {{container}}",
                )
            ],
            HELD,
            nothing="nobody held anything",
            links=[links.DEVICE_OF_SERIES],
            height=12,
        ),
        rows(
            "What is wrong",
            "Anomalies of this node; its page has the evidence.",
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
                Column("namespace", link=links.NAMESPACE),
                Column("pod", link=links.POD_PAGE),
                Column("container"),
            ],
            nothing="nothing is wrong",
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
                Column("namespace", link=links.NAMESPACE),
                Column("pod", link=links.POD_PAGE),
                Column("container"),
            ],
            nothing="no claim is held",
            width=12,
            height=7,
        ),
    )


def _devices(board: Board) -> None:
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
            "All resources that are chosen, together.",
            [Query(f"sum(node_resource:devicelens_{what}{{{_OF}}})", legend) for what, legend in counts],
        ),
        timeline(
            "Health",
            "Devices that the kubelet did not count as allocatable at some moment.",
            [
                Query(
                    f"min by (resource, device) (devicelens_device_healthy{{{_OF}}})",
                    "{{resource}} {{device}}",
                )
            ],
            HEALTH,
            nothing="no device is known",
            links=[links.DEVICE_OF_SERIES],
            width=12,
            height=8,
        ),
        graph(
            "Given out and given back",
            "Allocations and releases that the exporter saw, a second.",
            [
                Query(
                    f"sum by (resource) (rate(devicelens_{what}_total{{{_OF}}}[$__rate_interval]))",
                    f"{{{{resource}}}} {legend}",
                )
                for what, legend in (("allocations", "given out"), ("releases", "given back"))
            ],
            unit="cps",
            width=24,
            height=6,
        ),
    )


def _placement(board: Board) -> None:
    containers = f"{NODE}, {NAMESPACE}"
    board.row(
        "NUMA, CPUs and memory",
        bars(
            "Free devices by NUMA node",
            'What an aligned request can have. "" is where nobody tells the NUMA node.',
            [
                Query(
                    f"node_resource_numa:devicelens_free_devices:count{{{_OF}}}",
                    "{{resource}} NUMA {{numa_node}}",
                )
            ],
            nothing="nothing is free",
            width=8,
        ),
        rows(
            "Containers and NUMA nodes",
            "How many NUMA nodes each container's devices, CPUs and pinned memory span (1 is aligned), and how many "
            "CPUs are its alone.",
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
                Column("namespace", link=links.NAMESPACE),
                Column("pod", link=links.POD_PAGE),
                Column("container"),
                Column("nodes", steps=((None, GREEN), (2.0, YELLOW)), width=80),
                Column("CPUs", width=80),
            ],
            nothing="nothing is known of NUMA nodes",
            width=8,
            height=8,
        ),
        graph(
            "Pinned memory",
            "What the static memory manager keeps for containers, by type and NUMA node.",
            [
                Query(
                    "sum by (memory_type, numa_node) (max by (namespace, pod, container, memory_type, numa_node) "
                    f"(devicelens_container_pinned_memory_bytes{{{containers}}}))",
                    "{{memory_type}} on {{numa_node}}",
                )
            ],
            unit="bytes",
            nothing="no memory is pinned",
            width=8,
        ),
    )


def _used(board: Board) -> None:
    board.row(
        "Used (needs DCGM exporter, AMD's device metrics exporter or node_exporter)",
        graph(
            "How busy held devices are",
            "Of a shared device each holder is shown the whole: nobody can tell whose work it was.",
            [
                Query(
                    f"holding:devicelens_utilisation:ratio{{{_BY}}}",
                    "{{namespace}}/{{pod}} {{device}} ({{scope}})",
                )
            ],
            unit="percentunit",
            most=1,
            nothing="no exporter of utilisation is scraped",
            links=[links.DEVICE_OF_SERIES],
        ),
        graph(
            "Network of held devices",
            "What held NICs and HCAs receive and transmit, as far as node_exporter sees them.",
            [
                Query(
                    f"holding:devicelens_network_{direction}_bytes:rate5m{{{_BY}}}",
                    f"{{{{namespace}}}}/{{{{pod}}}} {{{{device}}}} {legend}",
                )
                for direction, legend in (("receive", "in"), ("transmit", "out"))
            ],
            unit="Bps",
            nothing="node_exporter does not know the devices",
        ),
    )


def _exporter(board: Board) -> None:
    board.row(
        "The exporter",
        graph(
            "How long a refresh takes",
            "From asking the kubelet to the published mapping; half of them, and 99 of 100.",
            [
                Query(
                    f"histogram_quantile({part}, sum by (le) ("
                    + of_node(
                        "rate(devicelens_refresh_duration_seconds_bucket{" + CLUSTER + "}[$__rate_interval])"
                    )
                    + "))",
                    legend,
                )
                for part, legend in ((0.5, "half"), (0.99, "99 of 100"))
            ],
            unit="s",
            width=8,
        ),
        graph(
            "Refreshes",
            "A second, by what asked for them: the kubelet's directories, its pods, the plugin, the timer.",
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
            "Refreshes that failed",
            "A second, by the kubelet's method and gRPC code.",
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
            "History is written",
            "Whether history can be written where it should be.",
            f"max({of_node('devicelens_history_up{' + CLUSTER + '}')})",
            words=YES,
            steps=GOOD_IS_ONE,
        ),
        number(
            "History goes back",
            "Since when history knows who held what.",
            f"time() - min({of_node('devicelens_history_earliest_timestamp_seconds{' + CLUSTER + '}')})",
            unit="dtdurations",
        ),
        number(
            "Size of history",
            "What history takes of its file, or of memory.",
            f"max({of_node('devicelens_history_size_bytes{' + CLUSTER + '}')})",
            unit="bytes",
        ),
        number(
            "Pods are known",
            "Whether the source of pods' uids, labels and owners tells (--pods.source).",
            f"max({of_node('devicelens_pods_source_up{' + CLUSTER + '}')})",
            words=YES,
            steps=GOOD_IS_ONE,
            nothing="not asked for",
        ),
        number(
            "Plugin tells",
            "Whether the plugin of --plugin.url tells of its devices.",
            f"min({of_node('devicelens_plugin_url_up{' + CLUSTER + '}')})",
            words=YES,
            steps=GOOD_IS_ONE,
            nothing="none is asked",
        ),
        number(
            "Series left out",
            "Series that are not told as there are more than --metrics.max-series.",
            f"max({of_node('devicelens_series_dropped{' + CLUSTER + '}')})",
            steps=GOOD_IS_ZERO,
        ),
    )


def _plugin(board: Board) -> None:
    of = f"{CLUSTER}, {RESOURCE}"
    by = "max by (resource)"
    board.row(
        "The plugin",
        rows(
            "Resources that the plugin serves",
            "Registered: the kubelet knows it. Followed: ListAndWatch streams that the kubelet has open.",
            [
                Query(f"{by} ({of_node(f'devicelens_plugin_registered{{{of}}}')})", "registered"),
                Query(f"{by} ({of_node(f'devicelens_plugin_streams{{{of}}}')})", "followed"),
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
                Column("followed"),
                Column("healthy"),
                Column("not healthy", steps=GOOD_IS_ZERO),
            ],
            nothing="no plugin of devicelens is scraped on this node",
            width=12,
            height=7,
        ),
        rows(
            "Why devices are not healthy",
            "What the plugin found, by device.",
            [Query(f"{of_node(f'devicelens_plugin_device_healthy{{{of}}} == 0')}")],
            [Column("resource"), Column("device", link=links.DEVICE_HERE), Column("reason")],
            nothing="every device is healthy",
            width=12,
            height=7,
        ),
        graph(
            "Allocations of the plugin",
            "Containers that Allocate was answered for, and calls that were refused, a second.",
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
            nothing="no plugin of devicelens is scraped on this node",
        ),
        graph(
            "Changes of health",
            "Devices that turned healthy or unhealthy, a second.",
            [
                Query(
                    "sum by (resource, to) ("
                    + of_node(f"rate(devicelens_plugin_health_transitions_total{{{of}}}[$__rate_interval])")
                    + ")",
                    "{{resource}} {{to}}",
                )
            ],
            unit="cps",
            nothing="no plugin of devicelens is scraped on this node",
        ),
    )
