"""Links between dashboards and to the status page of a node, and the addresses that a site can change."""

import re
from dataclasses import dataclass
from typing import Final

RUNBOOKS: Final = "https://github.com/devicelens/devicelens/blob/main/dashboards/runbooks"
PAGE_ADDRESS: Final = "http://{instance}"

_PLACE: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses in dashboards and alerts. `runbooks` is the folder of <alert>.md. `grafana` is Grafana's address,
    "" for relative links. `page` is the address of a node's status page: a template with {instance} (the address
    that Prometheus scrapes) or {node}.

    Raises ValueError for a template without one of the two, and for an address with quotes, $ or backslashes.
    """

    runbooks: str = RUNBOOKS
    grafana: str = ""
    page: str = PAGE_ADDRESS

    def __post_init__(self) -> None:
        places = set(_PLACE.findall(self.page))
        if len(places) != 1 or not places <= {"instance", "node"}:
            raise ValueError(
                f"the page's address: found {self.page!r}, expected {{instance}} or {{node}} in it"
            )
        for what in (self.page, self.runbooks, self.grafana):
            if set(what) & set("\"'\\$`\n"):
                raise ValueError(f"found {what!r}, expected an address without quotes, $ and backslashes")

    @property
    def page_label(self) -> str:
        """The label in the template of the page's address."""
        label: str = _PLACE.findall(self.page)[0]
        return label

    @property
    def page_replacement(self) -> str:
        """The page's address as a replacement for label_replace, with $1 for the label."""
        return _PLACE.sub("$1", self.page)


_KEPT: Final = "${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}"


@dataclass(frozen=True, slots=True)
class Link:
    """A link behind a value. `elsewhere` opens it in a new tab, for links out of Grafana."""

    title: str
    url: str
    elsewhere: bool = False


def of_row(field: str) -> str:
    """The value of a field of the row, escaped for a URL."""
    return f"${{__data.fields.{field}:percentencode}}"


def of_series(label: str) -> str:
    """The value of a label of the series, escaped for a URL."""
    return f"${{__field.labels.{label}:percentencode}}"


def board(name: str, title: str, **values: str) -> Link:
    """A link to another dashboard with these variables set; it keeps cluster, data source and time range."""
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

# In page addresses the slash of a resource stays a slash; one in a device id is escaped.
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
