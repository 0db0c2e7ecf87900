"""A fleet beside a simulated kubelet."""

from functools import partial
from pathlib import Path

import pytest

from harness.served import Serve, serving


@pytest.fixture
def serve(root: Path, host: Path) -> Serve:
    """Serves a configuration from the host tree to the kubelet below root/k."""
    return partial(serving, root / "k", host)


@pytest.fixture
def colas(host: Path) -> Path:
    """A directory of devices."""
    made = host / "etc/colas"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def dev(host: Path) -> Path:
    """The host's /dev."""
    made = host / "dev"
    made.mkdir()
    return made
