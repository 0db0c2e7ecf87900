"""A node's dashboard, row by row."""

from typing import Any

from dashboards import links, variables
from dashboards.board import Board
from dashboards.node import devices, exporter, holdings, plugin, present
from dashboards.settings import Settings
from dashboards.variables import NODE


def node(settings: Settings) -> dict[str, Any]:
    """The dashboard."""
    board = Board(
        "node",
        "Node",
        "One node: who holds which device since when, what is wrong, what is free, and whether all that is fresh.",
        [
            variables.datasource(),
            variables.cluster(),
            variables.node(),
            variables.resources(NODE),
            variables.namespaces(NODE),
            variables.page(settings),
        ],
        back="6h",
        page=links.PAGE,
    )
    present.now(board)
    holdings.holdings(board)
    devices.devices(board)
    devices.placement(board)
    devices.used(board)
    exporter.exporter(board)
    plugin.plugin(board)
    return board.document()
