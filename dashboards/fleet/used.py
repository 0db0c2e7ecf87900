"""Whether what is held is used."""

from dashboards import links
from dashboards.board import Board
from dashboards.fleet.selectors import BY, OF
from dashboards.panels import IDLE, Column, Query, bars, graph, rows
from dashboards.parts import DIRECTIONS, HOLDER, UNUSED


def used(board: Board) -> None:
    """Utilisation and network, by resource, namespace and holding."""
    ratio = f"holding:devicelens_utilisation:ratio{{{BY}}}"
    board.row(
        "Used (needs DCGM exporter, AMD's device metrics exporter or node_exporter)",
        bars(
            "How busy held devices are",
            "The mean of held devices. A device that is shared counts once, by the whole of it.",
            [
                Query(
                    f"avg by (resource) (cluster_resource:devicelens_utilisation:avg{{{OF}}})",
                    "{{resource}}",
                )
            ],
            unit="percentunit",
            steps=IDLE,
            nothing="no exporter of utilisation is scraped",
            width=8,
            most=1,
        ),
        graph(
            "How busy each namespace's devices are",
            "The mean of what each namespace holds.",
            [
                Query(
                    f"avg by (namespace) (cluster_namespace_resource:devicelens_utilisation:avg{{{BY}}})",
                    "{{namespace}}",
                )
            ],
            unit="percentunit",
            most=1,
            nothing="no exporter of utilisation is scraped",
            links=[links.NAMESPACE_OF_SERIES],
            width=8,
        ),
        graph(
            "Network of held devices",
            "What held NICs and HCAs receive and transmit, by namespace.",
            [
                Query(
                    f"sum by (namespace) (holding:devicelens_network_{direction}_bytes:rate5m{{{BY}}})",
                    f"{{{{namespace}}}} {legend}",
                )
                for direction, legend in DIRECTIONS
            ],
            unit="Bps",
            nothing="node_exporter does not know the devices",
            width=8,
        ),
        rows(
            "Held and hardly used",
            "The fifty holdings that were least busy in the last half hour, by their busiest moment. Scope says what "
            "was measured: the device, a partition, all of a shared device, or all of the container's together.",
            [
                Query(
                    "bottomk(50, max by (cluster, node, resource, device, namespace, pod, container, scope) "
                    f"(max_over_time({ratio}[30m])))",
                    "busiest",
                )
            ],
            [
                *HOLDER,
                Column("resource"),
                Column("device", link=links.DEVICE),
                Column("node", link=links.NODE),
                *UNUSED,
            ],
            nothing="no exporter of utilisation is scraped",
            height=9,
        ),
    )
