"""The node that the end-to-end tests run on, chosen by environment."""

import os
from collections.abc import AsyncGenerator

import pytest

from harness.node import Node

REAL = bool(os.environ.get("DEVICELENS_E2E_KUBECONFIG"))


@pytest.fixture(autouse=True)
def only_simulated(request: pytest.FixtureRequest) -> None:
    """Skips what only a simulation can do where the tests run on a real cluster."""
    if REAL and request.node.get_closest_marker("simulated"):
        pytest.skip("only a simulated kubelet can do this")


@pytest.fixture
async def node() -> AsyncGenerator[Node]:
    """A real cluster's node where DEVICELENS_E2E_KUBECONFIG names one, else a simulated one."""
    if REAL:
        from harness.cluster import ClusterNode  # noqa: PLC0415 -- lightkube only where it is needed

        async with ClusterNode() as real:
            yield real
    else:
        from harness.simulated import SimulatedNode  # noqa: PLC0415 -- likewise

        async with SimulatedNode() as simulated:
            yield simulated
            assert await simulated.violations() == ()
