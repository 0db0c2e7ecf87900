"""The HTML of the pages of one device, pod or claimed device, and of the past."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from exporter.web.pages.claim import ClaimPage
from exporter.web.pages.device import DevicePage
from exporter.web.pages.history import HistoryPage
from exporter.web.pages.pod import PodPage
from exporter.web.pages.whens import filled
from exporter.web.words import Text, spelled

_DIRECTORY: Final = Path(__file__).parent / "templates"


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
            loader=FileSystemLoader(_DIRECTORY),
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
