"""A simulated kubelet with the Pods API."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from simulator import SimulatedKubelet


@pytest.fixture
async def kubelet(root: Path) -> AsyncGenerator[SimulatedKubelet]:
    async with SimulatedKubelet(root, pods_api=True, sync_delay=0.2) as running:
        yield running
