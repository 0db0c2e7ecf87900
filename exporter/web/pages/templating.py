"""The pages' HTML: templates, compiled once, and what is put into them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from exporter.core.model import PodKey
from exporter.web.api.documents import Moment
from exporter.web.pages.rows import Scene, inputs, row
from exporter.web.pages.sorting import Entry
from exporter.web.pages.status import status_page
from exporter.web.query import PageQuery
from exporter.web.words import spelled, text

_DIRECTORY: Final = Path(__file__).parent / "templates"
_ROWS_KEPT: Final = 1000
"""Rows kept, some 2 KiB each: those of a few pages that are looked at."""


@dataclass(frozen=True, slots=True)
class Made:
    """A row as HTML, with what the table must know of it, and all that it was made of."""

    inputs: tuple[object, ...]
    key: str
    state: str
    html: Markup


class Rows:
    """Rows' HTML, made once for as long as what a row tells does not change. Most do not, at most changes."""

    def __init__(self, render: Callable[..., str], limit: int = _ROWS_KEPT) -> None:
        self._render = render
        self._limit = limit
        self._kept: dict[tuple[tuple[str, ...], PodKey | None], Made] = {}

    def made(self, scene: Scene, entry: Entry) -> Made:
        """The row of `entry` in `scene`, with places for its ages."""
        name = (tuple(entry.item.key), entry.pod)
        wanted = inputs(entry, scene)
        made = self._kept.pop(name, None)
        if made is None or made.inputs != wanted:
            view = row(entry, scene)
            made = Made(wanted, view.key, view.state, Markup(self._render(view)))  # noqa: S704 -- a template's
        self._kept[name] = made
        while len(self._kept) > self._limit:
            del self._kept[next(iter(self._kept))]
        return made


class Templates:
    """Renders the pages, as UTF-8."""

    def __init__(self, asset: Callable[[str], str], version: str) -> None:
        """`asset` tells the address of one of the pages' own files."""
        environment = Environment(
            loader=FileSystemLoader(_DIRECTORY),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        offered: dict[str, object] = {"asset": asset, "version": spelled(version)}
        self._status = environment.get_template("status.html", globals=offered)
        self._message = environment.get_template("message.html", globals=offered)
        self._rows = Rows(environment.get_template("row.html").module.row)  # type: ignore[attr-defined] # pyright: ignore -- a macro

    def status(self, moment: Moment, query: PageQuery, *, tag: str, triggers: tuple[str, ...]) -> bytes:
        """The status page, with places for ages; `tag` and `triggers` as in `status_page`."""
        page = status_page(moment, query, tag=tag, triggers=triggers)
        rendered = self._status.render(page=page, row=partial(self._rows.made, page.scene))
        return rendered.encode(errors="replace")

    def message(self, node: str, headline: str, detail: str) -> bytes:
        """A page that says one thing."""
        rendered = self._message.render(
            node=spelled(node), headline=headline, detail=text(detail, limit=600).shown
        )
        return rendered.encode(errors="replace")
