"""Presets served from the host tree to a simulated kubelet."""

from functools import partial
from pathlib import Path

import pytest

from harness.preset import Serve, serving_configuration


@pytest.fixture
def serve(root: Path, host: Path) -> Serve:
    """Serves a preset by its name, or a configuration."""
    return partial(serving_configuration, root, host)
