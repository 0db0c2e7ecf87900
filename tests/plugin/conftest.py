"""Fixtures for the plugin: short directories for sockets, host trees with parts of machines, a kubelet."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.hosttree import HostTree
from harness.machines import Machine
from harness.nvml import FakeNvml, with_nvml, without_nvml
from harness.served import Node, Serve, serving
from harness.usb import UsbBus
from plugin.discovery.host import HostRoot
from simulator import SimulatedKubelet


@pytest.fixture
def host(root: Path) -> Path:
    """A host's file system: an empty tree."""
    made = root / "h"
    made.mkdir()
    return made


@pytest.fixture
def colas(host: Path) -> Path:
    """A directory of devices: `a` is there."""
    made = host / "etc/colas"
    made.mkdir(parents=True)
    (made / "a").touch()
    return made


@pytest.fixture
def tolerated() -> list[str]:
    """Parts of the violations that a test accepts."""
    return []


@pytest.fixture
async def kubelet(root: Path, tolerated: list[str]) -> AsyncIterator[SimulatedKubelet]:
    """A simulated kubelet that runs, and that finds nothing wrong with the plugin in the end."""
    async with SimulatedKubelet(root / "k", registry_interval=0.1) as running:
        yield running
        assert [found for found in running.violations if not any(part in found for part in tolerated)] == []


@pytest.fixture
def serve(root: Path, host: Path) -> Serve:
    """Serves a configuration from the host tree to the kubelet below root/k."""
    return partial(serving, root / "k", host)


@pytest.fixture
def node(kubelet: SimulatedKubelet, serve: Serve) -> Node:
    """The kubelet, and how to serve a configuration to it."""
    return Node(kubelet, serve)


@pytest.fixture
def tree(host: Path) -> HostTree:
    """Writes to the host tree."""
    return HostTree(host)


@pytest.fixture
def here(tree: HostTree) -> HostRoot:
    """Reads the host tree, as the plugin does."""
    return HostRoot(tree.root)


@pytest.fixture
def machine(tree: HostTree) -> Machine:
    """Puts PCI functions and their parts into the host tree."""
    return Machine(tree)


@pytest.fixture
def bus(tree: HostTree) -> UsbBus:
    """A USB bus on NUMA node 1, in the host tree."""
    made = UsbBus(tree)
    tree.files(made.controller, numa_node=1)
    return made


@pytest.fixture
def nvml(tree: HostTree) -> Iterator[FakeNvml]:
    """NVML in the host tree."""
    with with_nvml(tree) as fake:
        yield fake


@pytest.fixture
def no_nvml() -> Iterator[None]:
    """No NVML, whatever this machine has."""
    with without_nvml():
        yield
