"""The node that the end-to-end tests run on, chosen by environment."""

import os
from collections.abc import AsyncGenerator

import pytest

from harness.node import Node


@pytest.fixture
async def node(request: pytest.FixtureRequest) -> AsyncGenerator[Node]:
    """A real cluster's node where DEVICELENS_E2E_KUBECONFIG names one, else a simulated one."""
    if os.environ.get("DEVICELENS_E2E_KUBECONFIG"):
        if request.node.get_closest_marker("simulated"):
            pytest.skip("only a simulated kubelet can do this")
        from harness.cluster import ClusterNode  # noqa: PLC0415 -- lightkube only where it is needed

        async with ClusterNode() as real:
            yield real
    else:
        from harness.simulated import SimulatedNode  # noqa: PLC0415 -- likewise

        async with SimulatedNode() as simulated:
            yield simulated
            assert await simulated.violations() == ()
