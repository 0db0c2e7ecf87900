"""Kinds of values that several parts of the language share."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from plugin.core.errors import Path, quoted

TemplateText = Annotated[str, Meta(max_length=8192)]
"""A Jinja2 template; the variables that it may use are said where it is used."""
NumaNode = Annotated[int, Meta(ge=0, le=1023)]
"""A NUMA node's number; Linux knows 1024 at most."""
Duration = Annotated[str, Meta(max_length=32)]
"""A time as Prometheus writes it: `500ms`, `20s`, `5m`, `1h30m`."""
Texts = Annotated[list[str], Meta(max_length=256)]
"""A list of names or patterns."""
Command = Annotated[list[TemplateText], Meta(min_length=1, max_length=64)]
"""A program and its arguments; no shell is in between."""


def unfit(text: str, problem: str | None, *path: str | int) -> Iterator[tuple[Path, str]]:
    """What a `problems()` yields of a text at `path` that one of `names`' checks found unfit; or nothing."""
    if problem is not None:
        yield path, f"found {quoted(text)}, {problem}"
