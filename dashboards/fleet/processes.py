"""How exporters and plugins do."""

from dashboards.board import Board
from dashboards.panels import Column, Query, graph, rows
from dashboards.variables import CLUSTER


def processes(board: Board) -> None:
    """Targets, failures, versions."""
    board.row(
        "Exporters and plugins",
        rows(
            "Targets that do not answer",
            "Exporters and plugins that Prometheus knows and cannot scrape.",
            [
                Query(
                    f"instance:devicelens_exporter_up:last{{{CLUSTER}}} == 0"
                    f" or instance:devicelens_plugin_up:last{{{CLUSTER}}} == 0"
                )
            ],
            [Column("cluster"), Column("job"), Column("instance")],
            nothing="every target answers",
            width=8,
        ),
        graph(
            "Refreshes that failed",
            "The kubelet's answers that were errors, a second, by method and gRPC code.",
            [
                Query(
                    "sum by (method, code) "
                    f"(rate(devicelens_refresh_errors_total{{{CLUSTER}}}[$__rate_interval]))",
                    "{{method}} {{code}}",
                )
            ],
            unit="cps",
            width=8,
        ),
        graph(
            "Versions",
            "How many exporters of each version there are: more than one during an update.",
            [
                Query(
                    f"count by (version, api_version) (devicelens_build_info{{{CLUSTER}}})",
                    "{{version}}, PodResources {{api_version}}",
                )
            ],
            width=8,
        ),
    )
