"""The frame of a dashboard and its variables.

Selectors take a variable of several values as `=~"$name"`: Grafana escapes the values for a double-quoted regular
expression (with ${name:regex} it would escape too little). They take a variable of one value as `="$name"`. `cluster`
is for stores of several clusters; without such a label it has All alone, and `.*` matches a missing label.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
    TimePicker,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dashboards.links import Addresses, Link
from dashboards.panels import SOURCE

TAG: Final = "devicelens"


class GrafanaDashboard:
    """A dashboard under construction. Panels go from left to right, 24 units wide, in the order of their addition."""

    def __init__(
        self,
        name: str,
        title: str,
        description: str,
        variables: Iterable[Builder[Any]],
        *,
        back: str,
        page: Link | None = None,
    ) -> None:
        """`back` is the initial time range; `page` a link at the top to the node's status page."""
        self._panels = 0
        self._board = (
            Dashboard(f"devicelens / {title}")
            .uid(f"devicelens-{name}")
            .description(description)
            .tags([TAG])
            .readonly()
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .timezone("browser")
            .time(f"now-{back}", "now")
            .refresh("1m")
            .timepicker(TimePicker().refresh_intervals(["10s", "30s", "1m", "5m", "15m"]))
            .link(
                DashboardLink("devicelens")
                .type(DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .include_vars(True)  # noqa: FBT003 -- the library's signature
                .keep_time(True)  # noqa: FBT003 -- as above
                .tooltip("The other devicelens dashboards, with the same variables")
            )
        )
        if page is not None:
            self._board.link(
                DashboardLink(page.title)
                .type(DashboardLinkType.LINK)
                .url(page.url)
                .icon("external link")
                .tooltip("The exporter's own page, without Prometheus")
                .target_blank(True)  # noqa: FBT003 -- as above
            )
        for variable in variables:
            self._board.with_variable(variable)

    def row(self, title: str, *panels: Builder[Any]) -> "GrafanaDashboard":
        """Add a row of panels."""
        self._panels += 1
        self._board.with_row(Row(title).id(self._panels))
        for panel in panels:
            self._panels += 1
            identified: Any = panel
            self._board.with_panel(identified.id(self._panels))
        return self

    def document(self) -> dict[str, Any]:
        """The dashboard as Grafana reads it."""
        document: dict[str, Any] = json.loads(json.dumps(self._board.build(), cls=JSONEncoder))
        return document


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
"""Metrics with the namespaces of pods that hold devices, claims, CPUs or memory."""


def datasource_variable() -> Builder[Any]:
    """The Prometheus data source."""
    return (
        DatasourceVariable("datasource")
        .label("Data source")
        .type("prometheus")
        .description("The Prometheus that scrapes devicelens and evaluates its rules.")
    )


def _query(name: str, label: str, description: str, query: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
    )


def _several(name: str, label: str, description: str, query: str) -> Builder[Any]:
    """A variable of any number of values, initially All."""
    return (
        _query(name, label, description, query)
        .multi(True)  # noqa: FBT003 -- the library's signature
        .include_all(True)  # noqa: FBT003 -- as above
        .all_value(".*")
        .current(_ALL)
    )


def _one(name: str, label: str, description: str, query: str) -> Builder[Any]:
    """A variable of one value."""
    return _query(name, label, description, query).multi(False).include_all(False)  # noqa: FBT003 -- the library's signature


def cluster_variable() -> Builder[Any]:
    """The clusters."""
    return _several(
        "cluster",
        "Cluster",
        "For stores of several clusters; All where no series has the label.",
        "label_values(devicelens_build_info, cluster)",
    )


def nodes_variable() -> Builder[Any]:
    """The nodes."""
    query = f"label_values(devicelens_resource_devices{{{CLUSTER}}}, node)"
    return _several("node", "Node", "Nodes that have devices.", query)


def node_variable() -> Builder[Any]:
    """One node."""
    query = f"label_values(instance:devicelens_node:info{{{CLUSTER}}}, node)"
    return _one("node", "Node", "The node.", query)


def resources_variable(selector: str) -> Builder[Any]:
    """The resources of the selected series."""
    query = f"label_values(devicelens_resource_devices{{{selector}}}, resource)"
    return _several("resource", "Resource", "Extended resources, by the names that pods ask for.", query)


def resource_variable() -> Builder[Any]:
    """One resource of the node."""
    query = f"label_values(devicelens_device_info{{{NODE}}}, resource)"
    return _one("resource", "Resource", "The resource that the device is of.", query)


def namespaces_variable(selector: str) -> Builder[Any]:
    """The namespaces of pods that hold something."""
    query = f'label_values({{__name__=~"{_OF_HOLDERS}", {selector}}}, namespace)'
    return _several("namespace", "Namespace", "Namespaces whose pods hold a device.", query)


def workloads_variable() -> Builder[Any]:
    """The workloads of the namespaces."""
    query = f"label_values(holding:devicelens_owner:info{{{CLUSTER}, {NAMESPACE}}}, workload)"
    return _several(
        "workload", "Workload", "Deployments, Jobs, StatefulSets, where the exporter has a pod source.", query
    )


def device_variable() -> Builder[Any]:
    """One device."""
    query = f'label_values(devicelens_device_info{{{NODE}, resource="$resource"}}, device)'
    return _one("device", "Device", "The device, by the id from its plugin.", query)


def page_variable(addresses: Addresses) -> Builder[Any]:
    """The address of the node's status page, from the labels of its exporter's target."""
    made = (
        f"query_result(label_replace(instance:devicelens_exporter_up:last * on (cluster, job, instance) "
        f'group_left (node) instance:devicelens_node:info{{{NODE}}}, "page", '
        f'"{addresses.page_replacement}", "{addresses.page_label}", "(.+)"))'
    )
    return (
        _query("page", "Page", "The address of the node's status page.", made)
        .regex('/page="([^"]+)"/')
        .hide(VariableHide.HIDE_VARIABLE)
        .multi(False)  # noqa: FBT003 -- the library's signature
        .include_all(False)  # noqa: FBT003 -- as above
    )
