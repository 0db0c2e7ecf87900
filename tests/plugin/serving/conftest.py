"""The host's directories of devices."""

from pathlib import Path

import pytest


@pytest.fixture
def dev(host: Path) -> Path:
    """The host's /dev."""
    made = host / "dev"
    made.mkdir()
    return made
