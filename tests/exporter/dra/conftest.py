"""A simulated kubelet and its API server."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from simulator import SimulatedKubelet
from simulator.apiserver import ApiServer


@pytest.fixture
async def kubelet(root: Path) -> AsyncGenerator[SimulatedKubelet]:
    async with SimulatedKubelet(root) as running:
        yield running


@pytest.fixture
async def api(kubelet: SimulatedKubelet) -> AsyncGenerator[ApiServer]:
    server = ApiServer(kubelet)
    async with server.serve():
        yield server
