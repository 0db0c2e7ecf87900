"""A fleet beside a simulated kubelet."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from harness.served import Serve, serving
from simulator import SimulatedKubelet


@pytest.fixture
def serve(root: Path, host: Path) -> Serve:
    """Serves a configuration from the host tree to the kubelet below root/k."""
    return partial(serving, root / "k", host)


@pytest.fixture
async def kubelet(root: Path) -> AsyncIterator[SimulatedKubelet]:
    """A simulated kubelet that runs, and that finds nothing wrong with the plugin in the end."""
    async with SimulatedKubelet(root / "k", registry_interval=0.1) as running:
        yield running
        assert running.violations == ()


@pytest.fixture
def colas(host: Path) -> Path:
    """A directory of devices."""
    made = host / "etc/colas"
    made.mkdir(parents=True)
    return made
