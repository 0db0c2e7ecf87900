"""Who holds what on the node, and what is wrong with it."""

from dashboards import links
from dashboards.board import Board
from dashboards.node.selectors import BY, OF
from dashboards.panels import Column, Query, rows, timeline
from dashboards.parts import HEALTH, HELD, HOLDER_HERE, LABELS
from dashboards.variables import NAMESPACE, NODE


def holdings(board: Board) -> None:
    """Devices and claims with their holders, now and over time."""
    described = (
        "* on (cluster, node, resource, device) group_left (parent, numa_node) "
        "topk by (cluster, node, resource, device) (1, group by (cluster, node, resource, device, parent, "
        f"numa_node) (devicelens_device_info{{{OF}}}))"
    )
    board.row(
        "Who holds what",
        rows(
            "Devices",
            "Every device with its holder, or without. A shared device has a row for each holder.",
            [
                Query(f"max by ({LABELS}) (devicelens_device_healthy{{{BY}}}) {described}", "health"),
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
            nothing="no device is known",
            height=12,
        ),
        timeline(
            "Holdings",
            "Who held which device when: a row for each device and holder. Red while the device was not healthy.",
            [
                Query(
                    f'max by (resource, device, namespace, pod, container) (devicelens_device_healthy{{{BY}, pod!=""}})',
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
                *HOLDER_HERE,
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
                *HOLDER_HERE,
            ],
            nothing="no claim is held",
            width=12,
            height=7,
        ),
    )
