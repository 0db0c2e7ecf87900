"""Fenced blocks of a Markdown document."""

import re
from collections.abc import Iterator

FENCE = re.compile(r"^( *)```([a-z]*(?: [a-z]+)?)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def fences(text: str) -> Iterator[tuple[str, str]]:
    """(language, text) of each block, without the indentation of the list that contains it."""
    for indent, language, block in FENCE.findall(text):
        yield language, re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)
