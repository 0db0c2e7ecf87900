"""A directory short enough for sockets, and a kubelet below it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from simulator import SimulatedKubelet


@pytest.fixture
async def kubelet(root: Path) -> AsyncGenerator[SimulatedKubelet]:
    async with SimulatedKubelet(root, dial_timeout=30.0, registry_interval=0.05, pods_api=True) as running:
        yield running
