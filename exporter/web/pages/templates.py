"""The pages' HTML: Jinja2 templates, and a cache of the status page's rows."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from exporter.mapping.model import PodKey
from exporter.views.links import claim_link, device_link, pod_link
from exporter.views.wording import counted, lasting, ranges, size, spelled, text
from exporter.web.pages.parts import Frame, device_state, life_link, resource_address, row_key
from exporter.web.pages.past import held_details, held_link, past_state
from exporter.web.pages.rows import Row, RowItem, row, row_inputs
from exporter.web.pages.times import REASONS, began, ended, lasted

_DIRECTORY: Final = Path(__file__).parent / "templates"
_ROWS_KEPT: Final = 1000
"""Rows in the cache, about 2 KiB each: those of a few pages."""
_FUNCTIONS: Final[dict[str, object]] = {
    **{one.__name__: one for one in (claim_link, device_link, pod_link, life_link, row_key, device_state)},
    **{one.__name__: one for one in (began, ended, lasted, counted, held_link, held_details)},
    **{one.__name__: one for one in (past_state, resource_address)},
    "lasting_time": lasting,
    "reasons": REASONS,
}
"""What templates call: links, times and states of what they show."""


@dataclass(frozen=True, slots=True)
class RenderedRow:
    """A row, its HTML with placeholders for ages, and its inputs."""

    inputs: tuple[object, ...]
    row: Row
    html: Markup


class RowCache:
    """Renders rows, and keeps them while their inputs are equal: a change of the mapping affects few rows."""

    def __init__(self, render: Callable[[Row, Frame], str], limit: int = _ROWS_KEPT) -> None:
        self._render = render
        self._limit = limit
        self._kept: dict[tuple[tuple[str, ...], PodKey | None], RenderedRow] = {}

    def rendered(self, item: RowItem, frame: Frame) -> RenderedRow:
        """The row of `item` on the page of `frame`."""
        name = (tuple(item.item.key), item.pod)
        inputs = row_inputs(item, frame.moment)
        found = self._kept.pop(name, None)
        if found is None or found.inputs != inputs:
            view = row(item, frame.moment)
            found = RenderedRow(inputs, view, Markup(self._render(view, frame)))  # noqa: S704 -- a template's
        self._kept[name] = found
        while len(self._kept) > self._limit:
            del self._kept[next(iter(self._kept))]
        return found


class Templates:
    """Renders pages as UTF-8, with placeholders for ages (exporter.web.pages.times)."""

    def __init__(self, asset: Callable[[str], str], version: str) -> None:
        """`asset` returns the address of a static file."""
        self._environment = Environment(
            loader=FileSystemLoader(_DIRECTORY),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        filters: Any = {"text": text, "spelled": spelled, "ranges": ranges, "size": size}
        self._environment.filters.update(filters)
        functions: Any = _FUNCTIONS | {"asset": asset, "version": spelled(version)}
        self._environment.globals.update(functions)
        render = self._environment.get_template("row.html").module.row  # type: ignore[attr-defined] # pyright: ignore -- a macro
        self.rows = RowCache(render)

    def render(self, name: str, **values: object) -> bytes:
        """The template `name` with `values`."""
        return self._environment.get_template(name).render(**values).encode(errors="replace")
