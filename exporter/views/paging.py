"""Pages of a list in the order of its keys. Pure.

A cursor names the key of the last item of a page. The next page begins after this key, whatever has come and
gone in between: no item is repeated or left out.

Device ids have no length limit, an address has one. A cursor holds the first bytes of a key, and items whose
keys begin with the same bytes are on one page.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

from msgspec import Struct

T = TypeVar("T")

KEY_BYTES: Final = 255
"""Bytes of a key in a cursor: with a namespace of 63 characters, 191 of a pod's name."""
CURSOR: Final = r"([0-9a-f]{2})*(\.([0-9a-f]{2})*)*"
"""The names of a key in hexadecimal, with a dot between each two."""

Place = tuple[bytes, ...]
"""The first bytes of a key: its names in UTF-8, the last one cut. Places are in the order of their keys."""


def place(key: Iterable[str]) -> Place:
    """The place of `key` in its list."""
    found: list[bytes] = []
    left = KEY_BYTES
    for name in key:
        found.append(name.encode(errors="surrogatepass")[:left])
        # The end of a name counts as a byte, below all others.
        left -= len(found[-1]) + 1
        if left < 0:
            break
    return tuple(found)


def write_cursor(after: Place) -> str:
    """A cursor, of 510 characters at most."""
    return ".".join(name.hex() for name in after)


def read_cursor(text: str) -> Place:
    """The place of a cursor. Raises ValueError."""
    if not re.fullmatch(CURSOR, text, re.ASCII):
        raise ValueError(f"found {text!r}, expected what an earlier answer gave as next")
    return tuple(map(bytes.fromhex, text.split(".")))


class Paging(Struct, frozen=True):
    """A page: at most `limit` items, None for all, that come `after` a place, None for the first page."""

    limit: int | None = None
    after: Place | None = None

    def of(
        self, items: Sequence[T], key: Callable[[T], Iterable[str]], keep: Callable[[T], bool] | None = None
    ) -> tuple[list[T], str | None]:
        """The items of the page, of those that `keep` keeps, and the next page's cursor, None on the last.

        `items` are sorted by `key`. A page has more than `limit` items where keys begin with the same
        KEY_BYTES bytes.
        """

        def where(item: T) -> Place:
            return place(key(item))

        start = 0 if self.after is None else bisect_right(items, self.after, key=where)
        kept = filter(keep, islice(items, start, None)) if keep else islice(items, start, None)
        found = list(islice(kept, self.limit))
        for item in kept:
            last = where(found[-1])
            if where(item) != last:
                return found, write_cursor(last)
            found.append(item)
        return found, None


ALL: Final = Paging()
"""The whole list."""
