"""How the node's plugin does."""

from dashboards import links
from dashboards.board import Board
from dashboards.node.selectors import of_node
from dashboards.panels import GOOD_IS_ZERO, Column, Query, graph, rows
from dashboards.parts import YES
from dashboards.variables import CLUSTER, RESOURCE


def plugin(board: Board) -> None:
    """What it serves, why not, and what it gave."""
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
