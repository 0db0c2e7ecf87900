"""Which series a node's panels are of."""

from typing import Final

from dashboards.variables import NAMESPACE, NODE, RESOURCE

OF: Final = f"{NODE}, {RESOURCE}"
BY: Final = f"{OF}, {NAMESPACE}"


def of_node(family: str) -> str:
    """A family that has no node of its own, for the node's targets."""
    return f"{family} and on (cluster, job, instance) instance:devicelens_node:info{{{NODE}}}"
