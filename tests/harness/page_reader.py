"""Reads what an application serves: a page's elements, attributes and text, and JSON."""

from html.parser import HTMLParser
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient
from yarl import URL

Client = TestClient[web.Request, web.Application]


class PageReader(HTMLParser):
    """`elements` are tags with their attributes, `words` the pieces of text, `keys` each data-key beside the
    number of its parent element. Fails where an element is not closed in its place.
    """

    def __init__(self, html: str = "") -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.keys: list[tuple[int, str]] = []
        self._joined = False
        self._open: list[tuple[int, str]] = [(0, "")]
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if found.get("class") == "br":  # a place for a line break is no space
            self._joined = bool(self.words)
        self.elements.append((tag, found))
        if "data-key" in found:
            self.keys.append((self._open[-1][0], found["data-key"]))
        if tag not in {"meta", "link", "input"}:
            self._open.append((len(self.elements), tag))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[1] == tag, "every element is closed where it should be"

    def handle_data(self, data: str) -> None:
        if self._joined:
            data = self.words.pop() + data
        self._joined = False
        self.words.append(data)

    @property
    def text(self) -> str:
        """The text in one line."""
        return " ".join(" ".join(self.words).split())

    @property
    def tags(self) -> set[str]:
        """The tags that occur."""
        return {tag for tag, _ in self.elements}

    @property
    def attributes(self) -> set[str]:
        """The names of attributes that occur."""
        return {name for _, attributes in self.elements for name in attributes}

    def values(self, name: str = "") -> list[str]:
        """The values of the attribute `name`, of every attribute for ""."""
        return [v for _, found in self.elements for n, v in found.items() if name in {n, ""}]


async def read_page(client: Client, path: str, status: int = 200) -> PageReader:
    """The page at `path`. Fails for another status, for an id that occurs twice, and for anything inline,
    which the policy does not permit.
    """
    answer = await client.get(URL(path, encoded=True), headers={"Accept": "text/html"})
    html = await answer.text()
    assert (answer.status, answer.content_type) == (status, "text/html"), html
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    reader = PageReader(html)
    assert len(set(reader.values("id"))) == len(reader.values("id"))
    assert "style" not in reader.tags | reader.attributes
    assert not [name for name in reader.attributes if name.startswith("on")]
    return reader


async def read_json(client: Client, path: str, status: int = 200, **query: str) -> Any:
    """The document, or the problem, at `path`."""
    answer = await client.get(path, params=query)
    assert answer.status == status, await answer.text()
    kind = "application/json" if status == 200 else "application/problem+json"
    assert answer.content_type == kind
    return await answer.json(content_type=None)
