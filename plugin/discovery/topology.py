"""NUMA nodes: from a device's directory, or its node's numbers, up through sysfs."""

from typing import Final

from plugin.core.device import Found
from plugin.discovery.host import HostRoot

MAX_NODE: Final = 1023
"""Linux knows 1024 nodes at most; a larger number is not one."""


def numa_nodes(host: HostRoot, found: Found) -> tuple[int, ...]:
    """The node that a device sits on, by the first `numa_node` from it upwards that says one.

    Linux writes -1 where it does not know: then there is none (kubelet: never send -1). Never fails:
    what cannot be read is not known.
    """
    start = found.sysfs
    if not start and found.rdev is not None:
        kind, major, minor = found.rdev
        start = f"/sys/dev/{kind}/{major}:{minor}"
    if not start:
        return ()
    try:
        path = host.real(start)
    except OSError:
        return ()
    while path.startswith("/sys/devices/"):
        node = _node(host, f"{path}/numa_node")
        if node is not None:
            return (node,)
        path = path.rpartition("/")[0]
    return ()


def _node(host: HostRoot, path: str) -> int | None:
    try:
        text = host.read(path)
    except OSError:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        return None
    node = int(text)
    return node if node <= MAX_NODE else None
