"""Fixtures for the plugin: host trees, short directories for sockets, waiting for a condition."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


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
