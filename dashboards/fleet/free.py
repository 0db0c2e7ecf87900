"""What is left, and whether it is of use together."""

from dashboards import links
from dashboards.board import Board
from dashboards.fleet.selectors import OF, RULES, total
from dashboards.panels import GREEN, YELLOW, Column, Query, bars, graph, rows


def fragments(board: Board) -> None:
    """Free devices, and those that no request can have together."""
    board.row(
        "Free, and of use together",
        rows(
            "Free devices that cannot be used together",
            "The largest aligned request: the most that are free on one NUMA node of one machine. Stranded: free "
            "devices that are not part of their machine's largest such group. Whole: physical devices of which no "
            "share is held.",
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
            "Where a large pod fits.",
            [
                Query(
                    f"topk(20, node_resource:devicelens_free_devices:sum{{{OF}}} > 0)",
                    "{{node}} {{resource}}",
                )
            ],
            nothing="nothing is free",
            links=[links.NODE_OF_SERIES],
            width=10,
        ),
        graph(
            "Stranded",
            "Free devices that no aligned request can have together with the others of their machine.",
            [Query(total("stranded_devices", " by (resource)"), "{{resource}}")],
            nothing=RULES,
        ),
        graph(
            "Free as a whole",
            "Physical devices of which every share is healthy and free.",
            [Query(total("free_parents", " by (resource)"), "{{resource}}")],
            nothing="no device is shared",
        ),
    )
