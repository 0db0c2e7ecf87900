"""The pages' HTML: templates, compiled once, and what is put into them."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from exporter.web.api.documents import Moment
from exporter.web.pages.status import status_page
from exporter.web.query import PageQuery
from exporter.web.words import spelled, text

_DIRECTORY: Final = Path(__file__).parent / "templates"


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

    def status(self, moment: Moment, query: PageQuery, *, tag: str, triggers: tuple[str, ...]) -> bytes:
        """The status page; `tag` and `triggers` as in `status_page`."""
        page = status_page(moment, query, tag=tag, triggers=triggers)
        return self._status.render(page=page).encode(errors="replace")

    def message(self, node: str, headline: str, detail: str) -> bytes:
        """A page that says one thing."""
        rendered = self._message.render(
            node=spelled(node), headline=headline, detail=text(detail, limit=600).shown
        )
        return rendered.encode(errors="replace")
