"""What each namespace holds, and held."""

from dashboards import links
from dashboards.board import Board
from dashboards.fleet.selectors import BY
from dashboards.panels import GREEN, YELLOW, Column, Query, graph, rows
from dashboards.parts import HOLDER


def namespaces(board: Board) -> None:
    """By namespace."""
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
            nothing="nobody holds anything",
            width=12,
            height=8,
            sort_by="held for",
        ),
    )
