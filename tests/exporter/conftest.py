"""A short directory for sockets, and the snapshot that tests of the views, the API and the pages share."""

import pytest

from exporter.mapping.model import Snapshot
from harness.scene import node


@pytest.fixture
def snapshot() -> Snapshot:
    """Eight GPUs, one of them shared, one unhealthy and held; a claim; a container with CPUs of its own."""
    return node()
