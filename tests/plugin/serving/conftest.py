"""A fleet beside a simulated kubelet."""

from functools import partial
from pathlib import Path

import pytest

from harness.served import Node, Serve, serving
from simulator import SimulatedKubelet


@pytest.fixture
def serve(root: Path, host: Path) -> Serve:
    """Serves a configuration from the host tree to the kubelet below root/k."""
    return partial(serving, root / "k", host)


@pytest.fixture
def node(kubelet: SimulatedKubelet, serve: Serve) -> Node:
    """The kubelet, and how to serve a configuration to it."""
    return Node(kubelet, serve)


@pytest.fixture
def dev(host: Path) -> Path:
    """The host's /dev."""
    made = host / "dev"
    made.mkdir()
    return made
