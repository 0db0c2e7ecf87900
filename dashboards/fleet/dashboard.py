"""The fleet's dashboard, row by row."""

from typing import Any

from dashboards import variables
from dashboards.board import Board
from dashboards.fleet import free, namespaces, present, processes, resources, used
from dashboards.settings import Settings
from dashboards.variables import CLUSTER


def fleet(settings: Settings) -> dict[str, Any]:
    """The dashboard."""
    del settings
    board = Board(
        "fleet",
        "Fleet",
        "Devices of all nodes: by resource and state, by namespace, what is wrong, what is free and usable together.",
        [
            variables.datasource(),
            variables.cluster(),
            variables.resources(CLUSTER),
            variables.namespaces(CLUSTER),
        ],
        back="6h",
    )
    present.now(board)
    present.wrong(board)
    resources.resources(board)
    namespaces.namespaces(board)
    free.fragments(board)
    used.used(board)
    processes.processes(board)
    return board.document()
