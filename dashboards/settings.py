"""What an organisation may want otherwise in what is made."""

import re
from dataclasses import dataclass
from typing import Final

RUNBOOKS: Final = "https://github.com/devicelens/devicelens/blob/main/dashboards/runbooks"
PAGE: Final = "http://{instance}"

_PLACE: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Settings:
    """`runbooks`: where the runbooks are read, <alert>.md below it. `grafana`: Grafana's address, "" for links
    within it. `page`: where a node's status page is, a template with {instance} (the address that Prometheus
    scrapes) or {node}.

    Raises ValueError for a template that names neither or something else.
    """

    runbooks: str = RUNBOOKS
    grafana: str = ""
    page: str = PAGE

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
        """The label that the page's address is made of."""
        label: str = _PLACE.findall(self.page)[0]
        return label

    @property
    def page_replacement(self) -> str:
        """The address as label_replace wants it, with $1 for the label."""
        return _PLACE.sub("$1", self.page)
