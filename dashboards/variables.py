"""The dashboards' variables. Where several values may be chosen selectors take them as `=~"$name"`: Grafana
escapes them for a double-quoted regular expression by itself, and would not enough with ${name:regex}. Where it
is one, as `="$name"`.

`cluster` is there for stores of several clusters; where no series has such a label it has All alone, and `.*`
matches a label that is not there.
"""

from typing import Any, Final

from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, QueryVariable
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dashboards.panels import SOURCE
from dashboards.settings import Settings

_ALL: Final = VariableOption(selected=True, text=["All"], value=["$__all"])

CLUSTER: Final = 'cluster=~"$cluster"'
NODES: Final = f'{CLUSTER}, node=~"$node"'
NODE: Final = f'{CLUSTER}, node="$node"'
RESOURCE: Final = 'resource=~"$resource"'
NAMESPACE: Final = 'namespace=~"$namespace"'
WORKLOAD: Final = 'workload=~"$workload"'
DEVICE: Final = f'{NODE}, resource="$resource", device="$device"'

_OF_HOLDERS: Final = (
    "devicelens_container_devices|devicelens_claim_device_info|devicelens_container_exclusive_cpus"
    "|devicelens_container_pinned_memory_bytes"
)
"""What tells of pods that hold something, be it devices or not."""


def datasource() -> Builder[Any]:
    """Which Prometheus."""
    return (
        DatasourceVariable("datasource")
        .label("Data source")
        .type("prometheus")
        .description("The Prometheus that scrapes devicelens and evaluates its rules.")
    )


def _query(name: str, label: str, says: str, query: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .label(label)
        .description(says)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
    )


def several(name: str, label: str, says: str, query: str) -> Builder[Any]:
    """Any number of values, all to begin with."""
    return (
        _query(name, label, says, query)
        .multi(True)  # noqa: FBT003 -- the library's own
        .include_all(True)  # noqa: FBT003 -- likewise
        .all_value(".*")
        .current(_ALL)
    )


def one(name: str, label: str, says: str, query: str) -> Builder[Any]:
    """One value."""
    return _query(name, label, says, query).multi(False).include_all(False)  # noqa: FBT003 -- the library's own


def cluster() -> Builder[Any]:
    """Which clusters."""
    return several(
        "cluster",
        "Cluster",
        "For stores that hold several clusters; All where no series has the label.",
        "label_values(devicelens_build_info, cluster)",
    )


def nodes() -> Builder[Any]:
    """Any nodes."""
    query = f"label_values(devicelens_resource_devices{{{CLUSTER}}}, node)"
    return several("node", "Node", "Nodes that have devices.", query)


def node() -> Builder[Any]:
    """One node."""
    query = f"label_values(instance:devicelens_node:info{{{CLUSTER}}}, node)"
    return one("node", "Node", "The node.", query)


def resources(selector: str) -> Builder[Any]:
    """Any resources of what the selector leaves."""
    query = f"label_values(devicelens_resource_devices{{{selector}}}, resource)"
    return several("resource", "Resource", "Extended resources, by the names that pods ask for.", query)


def resource() -> Builder[Any]:
    """One resource of the node."""
    query = f"label_values(devicelens_device_info{{{NODE}}}, resource)"
    return one("resource", "Resource", "The resource that the device is of.", query)


def namespaces(selector: str) -> Builder[Any]:
    """Any namespaces that hold something."""
    query = f'label_values({{__name__=~"{_OF_HOLDERS}", {selector}}}, namespace)'
    return several("namespace", "Namespace", "Namespaces whose pods hold something.", query)


def workloads() -> Builder[Any]:
    """Any workloads of the namespaces."""
    query = f"label_values(holding:devicelens_owner:info{{{CLUSTER}, {NAMESPACE}}}, workload)"
    return several(
        "workload", "Workload", "Deployments, Jobs, StatefulSets…, where the exporter knows them.", query
    )


def device() -> Builder[Any]:
    """One device."""
    query = f'label_values(devicelens_device_info{{{NODE}, resource="$resource"}}, device)'
    return one("device", "Device", "The device, by the id that its plugin gave it.", query)


def page(settings: Settings) -> Builder[Any]:
    """Where the node's status page is, by what Prometheus knows of its exporter."""
    made = (
        f"query_result(label_replace(instance:devicelens_exporter_up:last * on (cluster, job, instance) "
        f'group_left (node) instance:devicelens_node:info{{{NODE}}}, "page", '
        f'"{settings.page_replacement}", "{settings.page_label}", "(.+)"))'
    )
    return (
        _query("page", "Page", "The address of the node's status page.", made)
        .regex('/page="([^"]+)"/')
        .hide(VariableHide.HIDE_VARIABLE)
        .multi(False)  # noqa: FBT003 -- the library's own
        .include_all(False)  # noqa: FBT003 -- likewise
    )
