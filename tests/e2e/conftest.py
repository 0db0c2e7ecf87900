"""The node that the end-to-end tests run on."""

from collections.abc import AsyncGenerator

import pytest

from harness.node import Node
from harness.nodes import REAL, running_node
from harness.simulated import SimulatedNode


@pytest.fixture(autouse=True)
def only_simulated(request: pytest.FixtureRequest) -> None:
    """Skips what only a simulation can do where the tests run on a real cluster."""
    if REAL and request.node.get_closest_marker("simulated"):
        pytest.skip("only a simulated kubelet can do this")


@pytest.fixture
async def node() -> AsyncGenerator[Node]:
    """A node, which had nothing to complain of."""
    async with running_node() as running:
        yield running
        if isinstance(running, SimulatedNode):
            assert await running.violations() == ()
