"""Which series the fleet's panels are of."""

from typing import Final

from dashboards.variables import CLUSTER, NAMESPACE, RESOURCE

OF: Final = f"{CLUSTER}, {RESOURCE}"
BY: Final = f"{OF}, {NAMESPACE}"
RULES: Final = "no data: are the recording rules loaded?"


def total(what: str, by: str = "") -> str:
    """A recorded count of all clusters that are chosen."""
    return f"sum{by} (cluster_resource:devicelens_{what}:sum{{{OF}}})"
