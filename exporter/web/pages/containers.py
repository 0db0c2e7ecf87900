"""The status page's lesser table: containers with CPUs or memory of their own. Pure."""

from dataclasses import dataclass

from exporter.core.model import Container
from exporter.web.links import pod_link
from exporter.web.pages.rows import row_key
from exporter.web.words import Text, counted, ranges, size, text


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """One container with exclusive CPUs or pinned memory, and its pod's page."""

    key: str
    namespace: Text
    pod: Text
    container: Text
    address: str
    cpus: str
    cpu_count: str
    memory: tuple[Text, ...]
    numa: str


def container_row(container: Container) -> ContainerRow:
    """The row of a container with exclusive CPUs or pinned memory."""
    holder = container.holder
    return ContainerRow(
        key=row_key("container", *holder),
        namespace=text(holder.namespace),
        pod=text(holder.pod),
        container=text(holder.container),
        address=pod_link(holder.namespace, holder.pod),
        cpus=text(ranges(container.cpu_ids), limit=120).shown,
        cpu_count=counted(len(container.cpu_ids), "CPU"),
        memory=tuple(
            text(f"{size(m.size_bytes)} {m.memory_type}{_on(m.numa_nodes)}") for m in container.memory[:20]
        ),
        numa=ranges(container.numa_nodes),
    )


def _on(nodes: tuple[int, ...]) -> str:
    return f" on NUMA {ranges(nodes)}" if nodes else ""
