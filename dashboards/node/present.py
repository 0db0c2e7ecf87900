"""How the node is at this moment."""

from dashboards import links
from dashboards.board import Board
from dashboards.node.selectors import OF
from dashboards.panels import AGE, GOOD_IS_ONE, GOOD_IS_ZERO, number
from dashboards.parts import LABELS, YES
from dashboards.variables import NODE


def now(board: Board) -> None:
    """The numbers of the moment."""
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
            f"count(group by (kind, {LABELS}) (devicelens_anomaly_info{{{NODE}}})) or vector(0)",
            steps=GOOD_IS_ZERO,
            links=[links.PAGE],
        ),
        number(
            "Held",
            "Devices that somebody holds.",
            f"sum(node_resource:devicelens_allocated_devices:max{{{OF}}})",
        ),
        number(
            "Free",
            "Devices that are allocatable and that nobody holds.",
            f"sum(node_resource:devicelens_free_devices:sum{{{OF}}})",
        ),
        number(
            "Not healthy",
            "Devices that are known and not allocatable.",
            f"sum(node_resource:devicelens_unhealthy_devices:max{{{OF}}})",
            steps=GOOD_IS_ZERO,
        ),
    )
