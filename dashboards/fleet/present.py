"""What there is now, and what is wrong with it."""

from dashboards import links
from dashboards.board import Board
from dashboards.fleet.selectors import BY, RULES, total
from dashboards.panels import BLUE, GOOD_IS_ZERO, GREEN, RED, USED, YELLOW, Column, Query, bars, number, rows
from dashboards.parts import HOLDER
from dashboards.variables import CLUSTER


def now(board: Board) -> None:
    """The numbers of the moment."""
    board.row(
        "Now",
        number(
            "Nodes that are known",
            "Nodes whose exporter tells a mapping that is what the kubelet says.",
            f"sum(node:devicelens_up:max{{{CLUSTER}}})",
            steps=((None, BLUE),),
            nothing="no exporter is scraped",
        ),
        number(
            "Nodes that are not",
            "Nodes whose mapping is old, or whose exporter does not answer.",
            f"(count(node:devicelens_up:max{{{CLUSTER}}} == 0) or vector(0))"
            f" + (count(instance:devicelens_exporter_up:last{{{CLUSTER}}} == 0) or vector(0))",
            steps=GOOD_IS_ZERO,
        ),
        number("Devices", "Devices that are allocatable, held or known.", total("devices"), nothing=RULES),
        number(
            "Held",
            "The share of all devices that somebody holds; a shared device counts once.",
            f"{total('allocated_devices')} / {total('devices')}",
            unit="percentunit",
            steps=USED,
            nothing=RULES,
            decimals=0,
        ),
        number(
            "Free",
            "Devices that are allocatable and that nobody holds.",
            total("free_devices"),
            nothing=RULES,
        ),
        number(
            "Not healthy",
            "Devices that are known and that the kubelet does not count as allocatable.",
            total("unhealthy_devices"),
            steps=((None, GREEN), (1.0, YELLOW)),
            nothing=RULES,
        ),
    )


def wrong(board: Board) -> None:
    """Anomalies, devices that failed in the hands of pods, alerts."""
    labels = "cluster, node, kind, resource, device, namespace, pod, container"
    board.row(
        "What is wrong",
        rows(
            "Anomalies",
            "Everything that an exporter finds wrong at this moment. The node's page has the evidence.",
            [Query(f"group by ({labels}) (devicelens_anomaly_info{{{CLUSTER}}})")],
            [
                Column("kind", width=140),
                Column("cluster", width=110),
                Column("node", link=links.NODE),
                Column("resource"),
                Column("device", link=links.DEVICE),
                *HOLDER,
            ],
            nothing="nothing is wrong",
            width=16,
            height=9,
        ),
        bars(
            "Anomalies by kind",
            "How many there are of each kind. The alerts' runbooks say what to do.",
            [
                Query(
                    f"count by (kind) (group by ({labels}) (devicelens_anomaly_info{{{CLUSTER}}}))",
                    "{{kind}}",
                )
            ],
            steps=((None, YELLOW), (5.0, RED)),
            nothing="nothing is wrong",
            width=8,
            height=9,
        ),
        rows(
            "Devices that are held and not healthy",
            "Pods whose device has failed under them, or whose plugin is gone.",
            [
                Query(
                    "max by (cluster, node, resource, device, namespace, pod, container) "
                    f'(devicelens_device_healthy{{{BY}, pod!=""}}) == 0'
                )
            ],
            [
                Column("cluster", width=110),
                Column("node", link=links.NODE),
                Column("resource"),
                Column("device", link=links.DEVICE),
                *HOLDER,
            ],
            nothing="every held device is healthy",
            width=16,
            height=8,
        ),
        rows(
            "Alerts",
            "Alerts of devicelens that fire or are about to.",
            [
                Query(
                    'count by (alertname, severity, alertstate) (ALERTS{alertname=~"Devicelens.+"})', "count"
                )
            ],
            [Column("alertname"), Column("severity"), Column("alertstate"), Column("count", width=80)],
            nothing="no alert",
            width=8,
            height=8,
        ),
    )
