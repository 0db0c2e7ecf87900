"""Fixtures for the plugin: host trees, short directories for sockets, a kubelet."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from simulator import SimulatedKubelet


@pytest.fixture
def root() -> Iterator[Path]:
    """An empty directory whose path is short enough for unix sockets below it."""
    directory = Path(tempfile.mkdtemp(prefix="dl", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def host(root: Path) -> Path:
    """A host's file system: an empty tree."""
    made = root / "h"
    made.mkdir()
    return made


@pytest.fixture
async def kubelet(root: Path) -> AsyncIterator[SimulatedKubelet]:
    """A simulated kubelet that runs, and that finds nothing wrong with the plugin in the end."""
    async with SimulatedKubelet(root / "k", registry_interval=0.1) as running:
        yield running
        assert running.violations == ()
