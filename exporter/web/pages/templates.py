"""The pages' HTML: templates, compiled once, and what is put into them.

The HTML of the pages of one device, pod or claimed device, and of the past.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from exporter.mapping.model import PodKey
from exporter.views.documents import Moment
from exporter.views.query import PageQuery
from exporter.views.wording import Text, spelled, text
from exporter.web.pages.claim import ClaimPage
from exporter.web.pages.device import DevicePage
from exporter.web.pages.history import HistoryPage
from exporter.web.pages.periods import filled
from exporter.web.pages.pod import PodPage
from exporter.web.pages.rows import Entry, Scene, inputs, row
from exporter.web.pages.status import status_page

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


_DIRECTORY_FACTS_TEMPLATES: Final = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Other:
    """Something else that may have been meant."""

    name: Text
    href: str
    of: str = ""


@dataclass(frozen=True, slots=True)
class Nowhere:
    """There is nothing of this name: in words, and what may have been meant."""

    headline: str
    name: Text
    words: str
    others: tuple[Other, ...]


class FactTemplates:
    """Renders the pages, as UTF-8."""

    def __init__(self, asset: Callable[[str], str], version: str) -> None:
        """`asset` tells the address of one of the pages' own files."""
        environment = Environment(
            loader=FileSystemLoader(_DIRECTORY_FACTS_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        offered: dict[str, object] = {"asset": asset, "version": spelled(version)}

        @cache
        def template(name: str) -> Template:
            return environment.get_template(name, globals=offered)

        self._template = template

    def device(self, page: DevicePage) -> bytes:
        """A device's page."""
        return self._rendered("device.html", page.now, page=page)

    def pod(self, page: PodPage) -> bytes:
        """A pod's page."""
        return self._rendered("pod.html", page.now, page=page)

    def claim(self, page: ClaimPage) -> bytes:
        """A claimed device's page."""
        return self._rendered("claim.html", page.now, page=page)

    def history(self, page: HistoryPage) -> bytes:
        """The history page."""
        return self._rendered("history.html", page.now, page=page)

    def nowhere(self, node: str, nowhere: Nowhere, problem: str) -> bytes:
        """A page for what is not there; `problem` says why that is not sure."""
        return self._rendered("nowhere.html", 0.0, node=spelled(node), page=nowhere, problem=problem)

    def _rendered(self, name: str, now: float, **shown: object) -> bytes:
        return filled(self._template(name).render(**shown).encode(errors="replace"), now)
