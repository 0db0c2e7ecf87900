"""Where things lead to: other dashboards, with the variables and the time kept, and the node's status page."""

from dataclasses import dataclass
from typing import Final

_KEPT: Final = "${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}"


@dataclass(frozen=True, slots=True)
class Link:
    """A link behind a value. `elsewhere`: it leaves Grafana, so it opens in a tab of its own."""

    title: str
    url: str
    elsewhere: bool = False


def of_row(field: str) -> str:
    """The value of this row's field, for an address."""
    return f"${{__data.fields.{field}:percentencode}}"


def of_series(label: str) -> str:
    """The value of this series' label, for an address."""
    return f"${{__field.labels.{label}:percentencode}}"


def board(name: str, title: str, **values: str) -> Link:
    """Another dashboard, with these variables set."""
    chosen = "".join(f"&var-{variable}={value}" for variable, value in values.items())
    return Link(title, f"/d/devicelens-{name}/devicelens-{name}?{_KEPT}{chosen}")


NODE: Final = board("node", "This node", node=of_row("node"))
NODE_OF_SERIES: Final = board("node", "This node", node=of_series("node"))
DEVICE: Final = board(
    "device",
    "This device",
    node=of_row("node"),
    resource=of_row("resource"),
    device=of_row("device"),
)
DEVICE_HERE: Final = board(
    "device",
    "This device",
    node="${node:percentencode}",
    resource=of_row("resource"),
    device=of_row("device"),
)
DEVICE_OF_SERIES: Final = board(
    "device",
    "This device",
    node="${node:percentencode}",
    resource=of_series("resource"),
    device=of_series("device"),
)
NAMESPACE: Final = board("workload", "This namespace", namespace=of_row("namespace"))
NAMESPACE_OF_SERIES: Final = board("workload", "This namespace", namespace=of_series("namespace"))
WORKLOAD: Final = board(
    "workload", "This workload", namespace=of_row("namespace"), workload=of_row("workload")
)
RESOURCE: Final = board("fleet", "This resource", resource=of_row("resource"))

# A resource's slash stays a slash in the page's addresses; one in a device's id does not.
PAGE: Final = Link("The node's status page", "${page}/", elsewhere=True)
DEVICE_PAGE: Final = Link(
    "Its page on the node",
    f"${{page}}/devices/${{__data.fields.resource}}/{of_row('device')}",
    elsewhere=True,
)
THIS_DEVICE_PAGE: Final = Link(
    "Its page on the node", "${page}/devices/${resource}/${device:percentencode}", elsewhere=True
)
POD_PAGE: Final = Link(
    "Its page on the node", f"${{page}}/pods/{of_row('namespace')}/{of_row('pod')}", elsewhere=True
)
