"""Words, columns and queries that several dashboards have in common."""

from typing import Final

from dashboards import links
from dashboards.panels import GREEN, IDLE, RED, Column, Query

HEALTH: Final = {"1": ("healthy", GREEN), "0": ("not healthy", RED)}
HELD: Final = {"1": ("held", GREEN), "0": ("held, not healthy", RED)}
YES: Final = {"1": ("yes", GREEN), "0": ("no", RED)}

LABELS: Final = "cluster, node, resource, device, namespace, pod, container"
"""What a holding is told apart by."""

HOLDER: Final = (Column("namespace", link=links.NAMESPACE), Column("pod"), Column("container"))
HOLDER_HERE: Final = (
    Column("namespace", link=links.NAMESPACE),
    Column("pod", link=links.POD_PAGE),
    Column("container"),
)
"""The same where the node's page is known."""
UNUSED: Final = (
    Column("scope", width=90),
    Column("busiest", unit="percentunit", decimals=1, steps=IDLE),
)

DIRECTIONS: Final = (("receive", "in"), ("transmit", "out"))
"""Of a network: as families are called, and as people say."""


def busy(selector: str) -> Query:
    """How busy each holding is."""
    return Query(
        f"holding:devicelens_utilisation:ratio{{{selector}}}", "{{namespace}}/{{pod}} {{device}} ({{scope}})"
    )


def given_out(selector: str) -> list[Query]:
    """Allocations and releases, a second."""
    return [
        Query(
            f"sum by (resource) (rate(devicelens_{what}_total{{{selector}}}[$__rate_interval]))",
            f"{{{{resource}}}} {legend}",
        )
        for what, legend in (("allocations", "given out"), ("releases", "given back"))
    ]
