"""A short directory for sockets, and the snapshot that tests of the views, the API and the pages share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.mapping.model import Snapshot
from harness.scene import node


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory whose name is short enough for sockets in it."""
    directory = Path(tempfile.mkdtemp(prefix="dl", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def snapshot() -> Snapshot:
    """Eight GPUs, one of them shared, one unhealthy and held; a claim; a container with CPUs of its own."""
    return node()
