"""The node's devices: their state, where they sit and whether they are used."""

from dashboards import links
from dashboards.board import Board
from dashboards.node.selectors import BY, OF
from dashboards.panels import GREEN, YELLOW, Column, Query, bars, graph, rows, timeline
from dashboards.parts import DIRECTIONS, HEALTH, HOLDER_HERE, busy, given_out
from dashboards.variables import NAMESPACE, NODE


def devices(board: Board) -> None:
    """Devices by state, over time."""
    counts = (
        ("devices:max", "known"),
        ("allocatable_devices:max", "allocatable"),
        ("allocated_devices:max", "held"),
        ("free_devices:sum", "free"),
        ("unhealthy_devices:max", "not healthy"),
    )
    board.row(
        "Devices",
        graph(
            "Devices by state",
            "All resources that are chosen, together.",
            [Query(f"sum(node_resource:devicelens_{what}{{{OF}}})", legend) for what, legend in counts],
        ),
        timeline(
            "Health",
            "Devices that the kubelet did not count as allocatable at some moment.",
            [
                Query(
                    f"min by (resource, device) (devicelens_device_healthy{{{OF}}})",
                    "{{resource}} {{device}}",
                )
            ],
            HEALTH,
            nothing="no device is known",
            links=[links.DEVICE_OF_SERIES],
            width=12,
            height=8,
        ),
        graph(
            "Given out and given back",
            "Allocations and releases that the exporter saw, a second.",
            given_out(OF),
            unit="cps",
            width=24,
            height=6,
        ),
    )


def placement(board: Board) -> None:
    """NUMA nodes, CPUs and pinned memory."""
    containers = f"{NODE}, {NAMESPACE}"
    board.row(
        "NUMA, CPUs and memory",
        bars(
            "Free devices by NUMA node",
            'What an aligned request can have. "" is where nobody tells the NUMA node.',
            [
                Query(
                    f"node_resource_numa:devicelens_free_devices:count{{{OF}}}",
                    "{{resource}} NUMA {{numa_node}}",
                )
            ],
            nothing="nothing is free",
            width=8,
        ),
        rows(
            "Containers and NUMA nodes",
            "How many NUMA nodes each container's devices, CPUs and pinned memory span (1 is aligned), and how many "
            "CPUs are its alone.",
            [
                Query(
                    f"max by (namespace, pod, container) (devicelens_container_numa_nodes{{{containers}}})",
                    "nodes",
                ),
                Query(
                    f"max by (namespace, pod, container) (devicelens_container_exclusive_cpus{{{containers}}})",
                    "CPUs",
                ),
            ],
            [
                *HOLDER_HERE,
                Column("nodes", steps=((None, GREEN), (2.0, YELLOW)), width=80),
                Column("CPUs", width=80),
            ],
            nothing="nothing is known of NUMA nodes",
            width=8,
            height=8,
        ),
        graph(
            "Pinned memory",
            "What the static memory manager keeps for containers, by type and NUMA node.",
            [
                Query(
                    "sum by (memory_type, numa_node) (max by (namespace, pod, container, memory_type, numa_node) "
                    f"(devicelens_container_pinned_memory_bytes{{{containers}}}))",
                    "{{memory_type}} on {{numa_node}}",
                )
            ],
            unit="bytes",
            nothing="no memory is pinned",
            width=8,
        ),
    )


def used(board: Board) -> None:
    """Utilisation and network of what is held."""
    board.row(
        "Used (needs DCGM exporter, AMD's device metrics exporter or node_exporter)",
        graph(
            "How busy held devices are",
            "Of a shared device each holder is shown the whole: nobody can tell whose work it was.",
            [busy(BY)],
            unit="percentunit",
            most=1,
            nothing="no exporter of utilisation is scraped",
            links=[links.DEVICE_OF_SERIES],
        ),
        graph(
            "Network of held devices",
            "What held NICs and HCAs receive and transmit, as far as node_exporter sees them.",
            [
                Query(
                    f"holding:devicelens_network_{direction}_bytes:rate5m{{{BY}}}",
                    f"{{{{namespace}}}}/{{{{pod}}}} {{{{device}}}} {legend}",
                )
                for direction, legend in DIRECTIONS
            ],
            unit="Bps",
            nothing="node_exporter does not know the devices",
        ),
    )
