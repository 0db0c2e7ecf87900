"""A short directory for sockets, and a simulated kubelet with the Pods API below it."""

import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from simulator import SimulatedKubelet


@pytest.fixture
def root() -> Generator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="dl", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
async def kubelet(root: Path) -> AsyncGenerator[SimulatedKubelet]:
    async with SimulatedKubelet(root, pods_api=True, sync_delay=0.2) as running:
        yield running
