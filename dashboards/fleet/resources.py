"""Each resource's devices: by state, given out, held for how long, and by whose workloads."""

from dashboards import links
from dashboards.board import Board
from dashboards.fleet.selectors import BY, OF, RULES, total
from dashboards.panels import USED, Column, Query, graph, rows
from dashboards.parts import given_out


def resources(board: Board) -> None:
    """By resource."""
    counts = (
        ("known", "devices"),
        ("allocatable", "allocatable_devices"),
        ("held", "allocated_devices"),
        ("free", "free_devices"),
        ("not healthy", "unhealthy_devices"),
    )
    board.row(
        "By resource",
        rows(
            "Resources",
            "Every resource with its devices by state. Held and free can be less than all: what has failed is "
            "neither.",
            [
                *(Query(total(what, " by (cluster, resource)"), legend) for legend, what in counts),
                Query(
                    f"{total('allocated_devices', ' by (cluster, resource)')} / "
                    f"({total('devices', ' by (cluster, resource)')} > 0)",
                    "used",
                ),
            ],
            [
                Column("cluster", width=110),
                Column("resource", link=links.RESOURCE),
                *(Column(legend) for legend, _ in counts),
                Column("used", unit="percentunit", decimals=0, steps=USED),
            ],
            nothing=RULES,
            sort_by="used",
            height=8,
        ),
        graph(
            "Held",
            "Devices that somebody holds, by resource.",
            [Query(total("allocated_devices", " by (resource)"), "{{resource}}")],
            stacked=True,
            nothing=RULES,
        ),
        graph(
            "Free",
            "Devices that could be given out, by resource.",
            [Query(total("free_devices", " by (resource)"), "{{resource}}")],
            stacked=True,
            nothing=RULES,
        ),
        graph(
            "Not healthy",
            "Devices that are known and not allocatable, by resource.",
            [Query(total("unhealthy_devices", " by (resource)"), "{{resource}}")],
            nothing=RULES,
        ),
        graph(
            "Given out and given back",
            "Allocations and releases that exporters saw, a second. Both count each holder of a shared device.",
            given_out(OF),
            unit="cps",
        ),
        graph(
            "How long devices were held",
            "Half, and nine of ten, of the holdings that ended were shorter than this.",
            [
                Query(
                    f"histogram_quantile({part}, sum by (le, resource) "
                    f"(rate(devicelens_allocation_hold_seconds_bucket{{{OF}}}[$__rate_interval])))",
                    f"{{{{resource}}}} {legend}",
                )
                for part, legend in ((0.5, "half"), (0.9, "nine of ten"))
            ],
            unit="s",
            nothing="nothing was given back",
        ),
        graph(
            "By workload",
            "The twenty workloads that hold most, where exporters know them (--pods.source).",
            [
                Query(
                    "topk(20, count by (namespace, workload_kind, workload) "
                    f'(holding:devicelens_owner:info{{{BY}, workload!=""}}))',
                    "{{namespace}}/{{workload}} ({{workload_kind}})",
                )
            ],
            nothing="no workload is known",
            links=[links.NAMESPACE_OF_SERIES],
        ),
    )
