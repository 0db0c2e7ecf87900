"""How the node's exporter does."""

from dashboards.board import Board
from dashboards.node.selectors import of_node
from dashboards.panels import GOOD_IS_ONE, GOOD_IS_ZERO, Query, graph, number
from dashboards.parts import YES
from dashboards.variables import CLUSTER


def exporter(board: Board) -> None:
    """Refreshes, history, sources."""
    board.row(
        "The exporter",
        graph(
            "How long a refresh takes",
            "From asking the kubelet to the published mapping; half of them, and 99 of 100.",
            [
                Query(
                    f"histogram_quantile({part}, sum by (le) ("
                    + of_node(
                        "rate(devicelens_refresh_duration_seconds_bucket{" + CLUSTER + "}[$__rate_interval])"
                    )
                    + "))",
                    legend,
                )
                for part, legend in ((0.5, "half"), (0.99, "99 of 100"))
            ],
            unit="s",
            width=8,
        ),
        graph(
            "Refreshes",
            "A second, by what asked for them: the kubelet's directories, its pods, the plugin, the timer.",
            [
                Query(
                    "sum by (trigger) ("
                    + of_node(f"rate(devicelens_refreshes_total{{{CLUSTER}}}[$__rate_interval])")
                    + ")",
                    "{{trigger}}",
                )
            ],
            unit="cps",
            width=8,
        ),
        graph(
            "Refreshes that failed",
            "A second, by the kubelet's method and gRPC code.",
            [
                Query(
                    "sum by (method, code) ("
                    + of_node(f"rate(devicelens_refresh_errors_total{{{CLUSTER}}}[$__rate_interval])")
                    + ")",
                    "{{method}} {{code}}",
                )
            ],
            unit="cps",
            width=8,
        ),
        number(
            "History is written",
            "Whether history can be written where it should be.",
            f"max({of_node('devicelens_history_up{' + CLUSTER + '}')})",
            words=YES,
            steps=GOOD_IS_ONE,
        ),
        number(
            "History goes back",
            "Since when history knows who held what.",
            f"time() - min({of_node('devicelens_history_earliest_timestamp_seconds{' + CLUSTER + '}')})",
            unit="dtdurations",
        ),
        number(
            "Size of history",
            "What history takes of its file, or of memory.",
            f"max({of_node('devicelens_history_size_bytes{' + CLUSTER + '}')})",
            unit="bytes",
        ),
        number(
            "Pods are known",
            "Whether the source of pods' uids, labels and owners tells (--pods.source).",
            f"max({of_node('devicelens_pods_source_up{' + CLUSTER + '}')})",
            words=YES,
            steps=GOOD_IS_ONE,
            nothing="not asked for",
        ),
        number(
            "Plugin tells",
            "Whether the plugin of --plugin.url tells of its devices.",
            f"min({of_node('devicelens_plugin_url_up{' + CLUSTER + '}')})",
            words=YES,
            steps=GOOD_IS_ONE,
            nothing="none is asked",
        ),
        number(
            "Series left out",
            "Series that are not told as there are more than --metrics.max-series.",
            f"max({of_node('devicelens_series_dropped{' + CLUSTER + '}')})",
            steps=GOOD_IS_ZERO,
        ),
    )
