"""Fixtures for the kubelet's clients."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def sockets() -> Iterator[Path]:
    """An empty directory whose path is short enough for unix sockets in it."""
    directory = Path(tempfile.mkdtemp(prefix="dl", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
