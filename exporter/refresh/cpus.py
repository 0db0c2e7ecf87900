"""Which NUMA node each CPU belongs to, from the host's sysfs."""

import re
from pathlib import Path
from typing import Final

SYSFS_NODES: Final = Path("/sys/devices/system/node")
_NODE: Final = re.compile(r"node(\d+)")
_MAX_CPUS: Final = 65536


def parse_cpu_list(text: str) -> frozenset[int]:
    """CPU numbers of the kernel's list format: `0-3,8,10-11`.

    Raises ValueError for anything else, and for more CPUs than a machine can have.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        low = int(first)
        high = int(last) if dash else low
        if not 0 <= low <= high < _MAX_CPUS:
            raise ValueError(f"found {part!r}, expected a range of CPU numbers")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def numa_of_cpus(nodes: Path = SYSFS_NODES) -> dict[int, int]:
    """CPU number → NUMA node. Empty where sysfs does not tell; a node that cannot be read is left out."""
    found: dict[int, int] = {}
    try:
        entries = sorted(nodes.iterdir())
    except OSError:
        return found
    for entry in entries:
        match = _NODE.fullmatch(entry.name)
        if match is None:
            continue
        try:
            cpus = parse_cpu_list((entry / "cpulist").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        found |= dict.fromkeys(cpus, int(match[1]))
    return found
