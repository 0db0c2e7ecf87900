"""A dashboard put together: rows of panels, numbered in their order, in a frame that is the same for all."""

import json
from collections.abc import Iterable
from typing import Any, Final

from grafana_foundation_sdk.builders.dashboard import Dashboard, DashboardLink, Row, TimePicker
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DashboardLinkType

from dashboards.links import Link

TAG: Final = "devicelens"


class Board:
    """Panels are placed from left to right, 24 units wide, in the order in which they are added."""

    def __init__(
        self,
        name: str,
        title: str,
        says: str,
        variables: Iterable[Builder[Any]],
        *,
        back: str,
        page: Link | None = None,
    ) -> None:
        """`back`: how far the time goes back to begin with; `page`: a link to the node's page at the top."""
        self._panels = 0
        self._board = (
            Dashboard(f"devicelens / {title}")
            .uid(f"devicelens-{name}")
            .description(says)
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
                .include_vars(True)  # noqa: FBT003 -- the library's own
                .keep_time(True)  # noqa: FBT003 -- likewise
                .tooltip("The other dashboards of devicelens, with what is chosen here")
            )
        )
        if page is not None:
            self._board.link(
                DashboardLink(page.title)
                .type(DashboardLinkType.LINK)
                .url(page.url)
                .icon("external link")
                .tooltip("What the exporter itself shows, without Prometheus between")
                .target_blank(True)  # noqa: FBT003 -- likewise
            )
        for variable in variables:
            self._board.with_variable(variable)

    def row(self, title: str, *panels: Builder[Any]) -> "Board":
        """A row with a title, and its panels."""
        self._panels += 1
        self._board.with_row(Row(title).id(self._panels))
        for panel in panels:
            self._panels += 1
            identified: Any = panel
            self._board.with_panel(identified.id(self._panels))
        return self

    def document(self) -> dict[str, Any]:
        """As Grafana reads it."""
        document: dict[str, Any] = json.loads(json.dumps(self._board.build(), cls=JSONEncoder))
        return document
