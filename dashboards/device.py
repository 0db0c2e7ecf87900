"""The device dashboard: holders and health over time, shares of the same physical device, utilisation."""

from typing import Any, Final

from dashboards import links
from dashboards.board import (
    CLUSTER,
    DEVICE,
    NODE,
    GrafanaDashboard,
    cluster_variable,
    datasource_variable,
    device_variable,
    node_variable,
    page_variable,
    resource_variable,
)
from dashboards.links import Addresses
from dashboards.panels import (
    DIRECTIONS,
    GOOD_IS_ONE,
    GOOD_IS_ZERO,
    HEALTH,
    HELD,
    HOLDER_HERE,
    IDLE,
    LABELS,
    NEUTRAL,
    Column,
    Query,
    graph,
    health_of_holders,
    number,
    rows,
    timeline,
)

_HOLDER: Final = "namespace, pod, container"
_IT: Final = f"devicelens_device_healthy{{{DEVICE}}}"
_HELD: Final = health_of_holders(LABELS, DEVICE)
_SINCE: Final = f"devicelens_device_held_since_timestamp_seconds{{{DEVICE}}}"
# The shares and slices of the same physical device, with the device itself.
_SIBLINGS: Final = (
    "on (cluster, node, resource, parent) "
    f'group by (cluster, node, resource, parent) (devicelens_device_info{{{DEVICE}, parent!=""}})'
)


def device(addresses: Addresses) -> dict[str, Any]:
    """The device dashboard."""
    board = GrafanaDashboard(
        "device",
        "Device",
        "One device: its health and holders, now and over time, its physical device, and its utilisation.",
        [
            datasource_variable(),
            cluster_variable(),
            node_variable(),
            resource_variable(),
            device_variable(),
            page_variable(addresses),
        ],
        back="24h",
        page=links.THIS_DEVICE_PAGE,
    )
    _now(board)
    _life(board)
    _siblings(board)
    _used(board)
    return board.document()


def _now(board: GrafanaDashboard) -> None:
    board.row(
        "Now",
        number(
            "Health",
            "Whether the device is allocatable.",
            f"max({_IT})",
            words=HEALTH,
            steps=GOOD_IS_ONE,
            nothing="unknown: is the mapping fresh?",
            links=[links.THIS_DEVICE_PAGE],
        ),
        number(
            "Holders",
            "Containers that hold the device.",
            f"count(group by ({_HOLDER}) (devicelens_device_owner_info{{{DEVICE}}})) or vector(0)",
            steps=NEUTRAL,
        ),
        number(
            "Held for",
            "The hold time of its holder; the longest where there are several.",
            f"time() - min({_SINCE})",
            unit="dtdurations",
            nothing="free",
        ),
        number(
            "Anomalies",
            "Anomalies of this device.",
            f"count(group by (kind, {_HOLDER}) (devicelens_anomaly_info{{{DEVICE}}})) or vector(0)",
            steps=GOOD_IS_ZERO,
        ),
        number(
            "Utilisation",
            "Utilisation of the device; of a shared device, as a whole.",
            f"max(holding:devicelens_utilisation:ratio{{{DEVICE}}})",
            unit="percentunit",
            steps=IDLE,
            nothing="not measured",
            decimals=0,
        ),
        number(
            "Age",
            "Time since the kubelet's last good answer.",
            f"time() - node:devicelens_last_refresh_success_timestamp_seconds:max{{{NODE}}}",
            unit="s",
            steps=((None, "green"), (30.0, "yellow"), (60.0, "red")),
            nothing="never",
            decimals=0,
        ),
    )


def _life(board: GrafanaDashboard) -> None:
    board.row(
        "Holders and health",
        rows(
            "Current holders",
            "Holders of the device, and since when.",
            [
                Query(f"max by (node, {_HOLDER}) ({_SINCE}) * 1000", "held since"),
                Query(f"max by (node, {_HOLDER}) ({_HELD})", "health"),
            ],
            [
                *HOLDER_HERE,
                Column("held since", unit="dateTimeFromNow"),
                Column("health", texts=HEALTH),
            ],
            nothing="free",
            width=14,
            height=6,
        ),
        rows(
            "Device",
            "The physical device behind a share or slice, and the NUMA node.",
            [Query(f"group by (device, parent, numa_node) (devicelens_device_info{{{DEVICE}}})")],
            [Column("device"), Column("parent"), Column("numa_node", width=100)],
            nothing="unknown now",
            width=10,
            height=6,
        ),
        timeline(
            "Holders",
            "Holders over time. Red while the device was not healthy.",
            [
                Query(
                    f"max by ({_HOLDER}) ({_HELD})",
                    "{{namespace}}/{{pod}} {{container}}",
                )
            ],
            HELD,
            nothing="free all the time",
            height=8,
        ),
        timeline(
            "Health",
            "Health by the kubelet, and by the plugin with its reason.",
            [
                Query(f"max({_IT})", "by the kubelet"),
                Query(
                    "max by (reason) (devicelens_plugin_device_healthy"
                    f'{{{CLUSTER}, resource="$resource", device="$device"}} '
                    f"and on (cluster, job, instance) instance:devicelens_node:info{{{NODE}}})",
                    "by its plugin {{reason}}",
                ),
            ],
            HEALTH,
            nothing="unknown",
            height=6,
        ),
    )


def _siblings(board: GrafanaDashboard) -> None:
    labels = "cluster, node, resource, device, parent"
    of = f'{NODE}, resource="$resource"'
    board.row(
        "Shares and slices of the same device",
        rows(
            "Holders of the other shares",
            "Every share or slice of the same physical device, with its holder.",
            [
                Query(
                    f"max by (device, {_HOLDER}) ((({health_of_holders(LABELS, of)}) "
                    "or on (cluster, node, resource, device) "
                    f"max by (cluster, node, resource, device) (devicelens_device_healthy{{{of}}})) "
                    "* on (cluster, node, resource, device) group_left (parent) "
                    f"(group by ({labels}) (devicelens_device_info{{{of}}}) and {_SIBLINGS}))",
                    "health",
                )
            ],
            [
                Column("device"),
                *HOLDER_HERE,
                Column("health", texts=HEALTH),
            ],
            nothing="not a share or slice",
            width=12,
            height=8,
        ),
        graph(
            "Held shares",
            "Held shares and all shares of the same physical device.",
            [
                Query(
                    f"count(group by ({labels}) (devicelens_device_owner_info{{{of}}}) and {_SIBLINGS})",
                    "held",
                ),
                Query(
                    f"count(group by ({labels}) (devicelens_device_info{{{of}}}) and {_SIBLINGS})",
                    "all",
                ),
            ],
            nothing="not a share or slice",
        ),
    )


def _used(board: GrafanaDashboard) -> None:
    board.row(
        "Utilisation (needs DCGM exporter, AMD's device metrics exporter or node_exporter)",
        graph(
            "Utilisation",
            "Scope is what the figure covers: the device, a partition, the whole of a shared device, or all devices of "
            "the container. No data while the device is free.",
            [Query(f"holding:devicelens_utilisation:ratio{{{DEVICE}}}", "{{namespace}}/{{pod}} ({{scope}})")],
            unit="percentunit",
            most=1,
            nothing="not measured",
        ),
        graph(
            "Network",
            "Bytes per second of a NIC or HCA, from node_exporter.",
            [
                Query(
                    f"holding:devicelens_network_{direction}_bytes:rate5m{{{DEVICE}}}",
                    f"{{{{namespace}}}}/{{{{pod}}}} {legend}",
                )
                for direction, legend in DIRECTIONS
            ],
            unit="Bps",
            nothing="not measured",
        ),
    )
