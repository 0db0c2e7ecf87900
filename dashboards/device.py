"""One device's life: who holds it, who held it, is it well, what is it a part of, is it used."""

from typing import Any, Final

from dashboards import links, variables
from dashboards.board import Board
from dashboards.panels import (
    GOOD_IS_ONE,
    GOOD_IS_ZERO,
    IDLE,
    NEUTRAL,
    Column,
    Query,
    graph,
    number,
    rows,
    timeline,
)
from dashboards.parts import DIRECTIONS, HEALTH, HELD, HOLDER_HERE
from dashboards.settings import Settings
from dashboards.variables import CLUSTER, DEVICE, NODE

_HOLDER: Final = "namespace, pod, container"
_IT: Final = f"devicelens_device_healthy{{{DEVICE}}}"
_SINCE: Final = f"devicelens_device_held_since_timestamp_seconds{{{DEVICE}}}"
# Shares and slices of the same device, and the device itself where it is one of them.
_KIN: Final = (
    "on (cluster, node, resource, parent) "
    f'group by (cluster, node, resource, parent) (devicelens_device_info{{{DEVICE}, parent!=""}})'
)


def device(settings: Settings) -> dict[str, Any]:
    """The dashboard."""
    board = Board(
        "device",
        "Device",
        "One device: its health and its holders, now and over time, what it is a part of, and how busy it is.",
        [
            variables.datasource(),
            variables.cluster(),
            variables.node(),
            variables.resource(),
            variables.device(),
            variables.page(settings),
        ],
        back="24h",
        page=links.THIS_DEVICE_PAGE,
    )
    _now(board)
    _life(board)
    _kin(board)
    _used(board)
    return board.document()


def _now(board: Board) -> None:
    board.row(
        "Now",
        number(
            "Health",
            "Whether the kubelet counts it as allocatable.",
            f"max({_IT})",
            words=HEALTH,
            steps=GOOD_IS_ONE,
            nothing="not known: is the mapping fresh?",
            links=[links.THIS_DEVICE_PAGE],
        ),
        number(
            "Holders",
            "Containers that hold it; a shared device may have several.",
            f"count(group by ({_HOLDER}) (devicelens_device_owner_info{{{DEVICE}}})) or vector(0)",
            steps=NEUTRAL,
        ),
        number(
            "Held for",
            "How long its present holder has had it; of several, the one who has had it longest.",
            f"time() - min({_SINCE})",
            unit="dtdurations",
            nothing="free",
        ),
        number(
            "What is wrong",
            "Anomalies of this device.",
            f"count(group by (kind, {_HOLDER}) (devicelens_anomaly_info{{{DEVICE}}})) or vector(0)",
            steps=GOOD_IS_ZERO,
        ),
        number(
            "Used",
            "How busy it is; of a shared device, the whole of it.",
            f"max(holding:devicelens_utilisation:ratio{{{DEVICE}}})",
            unit="percentunit",
            steps=IDLE,
            nothing="not measured",
            decimals=0,
        ),
        number(
            "Age of this",
            "Since when the node's kubelet has not been heard.",
            f"time() - node:devicelens_last_refresh_success_timestamp_seconds:max{{{NODE}}}",
            unit="s",
            steps=((None, "green"), (30.0, "yellow"), (60.0, "red")),
            nothing="never",
            decimals=0,
        ),
    )


def _life(board: Board) -> None:
    board.row(
        "Its life",
        rows(
            "Who holds it",
            "Its holders now, since when.",
            [
                Query(f"max by (node, {_HOLDER}) ({_SINCE}) * 1000", "held since"),
                Query(f"max by (node, {_HOLDER}) ({_IT})", "health"),
            ],
            [
                *HOLDER_HERE,
                Column("held since", unit="dateTimeFromNow"),
                Column("health", texts=HEALTH),
            ],
            nothing="it is free",
            width=14,
            height=6,
        ),
        rows(
            "What it is",
            "The device behind it, where it is a share or a slice, and its NUMA node.",
            [Query(f"group by (device, parent, numa_node) (devicelens_device_info{{{DEVICE}}})")],
            [Column("device"), Column("parent"), Column("numa_node", width=100)],
            nothing="it is not known now",
            width=10,
            height=6,
        ),
        timeline(
            "Holders",
            "Who held it when. Red while it was not healthy.",
            [
                Query(
                    f'max by ({_HOLDER}) (devicelens_device_healthy{{{DEVICE}, pod!=""}})',
                    "{{namespace}}/{{pod}} {{container}}",
                )
            ],
            HELD,
            nothing="nobody held it",
            height=8,
        ),
        timeline(
            "Health",
            "What the kubelet said, and what its plugin said and why.",
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
            nothing="it was not known",
            height=6,
        ),
    )


def _kin(board: Board) -> None:
    labels = "cluster, node, resource, device, parent"
    board.row(
        "Shares and slices of the same device",
        rows(
            "Who holds the others",
            "Every share or slice of the device behind this one, with its holder.",
            [
                Query(
                    f'max by (device, {_HOLDER}) (devicelens_device_healthy{{{NODE}, resource="$resource"}} '
                    "* on (cluster, node, resource, device) group_left (parent) "
                    f'(group by ({labels}) (devicelens_device_info{{{NODE}, resource="$resource"}}) and {_KIN}))',
                    "health",
                )
            ],
            [
                Column("device"),
                *HOLDER_HERE,
                Column("health", texts=HEALTH),
            ],
            nothing="it is a device by itself",
            width=12,
            height=8,
        ),
        graph(
            "Shares that are held",
            "Of the device behind this one.",
            [
                Query(
                    f'count(group by ({labels}) (devicelens_device_owner_info{{{NODE}, resource="$resource"}}) '
                    f"and {_KIN})",
                    "held",
                ),
                Query(
                    f'count(group by ({labels}) (devicelens_device_info{{{NODE}, resource="$resource"}}) '
                    f"and {_KIN})",
                    "all",
                ),
            ],
            nothing="it is a device by itself",
        ),
    )


def _used(board: Board) -> None:
    board.row(
        "Used (needs DCGM exporter, AMD's device metrics exporter or node_exporter)",
        graph(
            "How busy it is",
            "Scope says what was measured: the device itself, a partition of it, all of a device that is shared, or "
            "all of the container's devices together. Nothing while nobody holds it.",
            [Query(f"holding:devicelens_utilisation:ratio{{{DEVICE}}}", "{{namespace}}/{{pod}} ({{scope}})")],
            unit="percentunit",
            most=1,
            nothing="not measured",
        ),
        graph(
            "Network",
            "What it receives and transmits, where it is a NIC or an HCA that node_exporter knows.",
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
