"""A directory short enough for sockets, and a kubelet below it."""

import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from harness.recordings import RECORDINGS
from simulator import SimulatedKubelet


@pytest.fixture
def root() -> Generator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="dl"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
async def kubelet(root: Path) -> AsyncGenerator[SimulatedKubelet]:
    async with SimulatedKubelet(root, dial_timeout=30.0, registry_interval=0.05, pods_api=True) as running:
        yield running


@pytest.fixture
def recordings() -> Path:
    return RECORDINGS
