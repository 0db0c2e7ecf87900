"""The node that the end-to-end tests run on, chosen by environment."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from harness.node import Node

REAL: Final = bool(os.environ.get("DEVICELENS_E2E_KUBECONFIG"))


@asynccontextmanager
async def running_node(*simulated: str) -> AsyncGenerator[Node]:
    """A real cluster's node where DEVICELENS_E2E_KUBECONFIG names one, else a simulated one.

    `simulated` are flags of `devicelens kubelet`.
    """
    if REAL:
        from harness.cluster import ClusterNode  # noqa: PLC0415 -- lightkube only where it is needed

        async with ClusterNode() as real:
            yield real
    else:
        from harness.simulated import SimulatedNode  # noqa: PLC0415 -- likewise

        async with SimulatedNode(*simulated) as node:
            yield node
