"""The API's documents as JSON text. Pure.

Encoding holds the interpreter for all its time: a long list is encoded in chunks, so that the event loop
runs in between.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from exporter.views.schema import ListEnvelope
from runtime.blocks import CHUNK

LIST_END: Final = b"]}"
"""What follows the last item of a list's document."""


def encode(document: object) -> bytes:
    """`document` as JSON. Lone surrogates, which paths and errors may contain, become U+FFFD."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(_replaced(msgspec.to_builtins(document)))


def _replaced(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_replaced(key): _replaced(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_replaced(inner) for inner in value]
        case _:
            return value


def list_head(document: ListEnvelope) -> bytes:
    """The text of a list's document, which has no items yet, up to where its first item follows."""
    return encode(document).removesuffix(LIST_END)


def list_items(items: Sequence[msgspec.Struct]) -> bytes:
    """The text of some items, with a comma before each."""
    return b"," + encode(items)[1:-1]


def pieces(document: msgspec.Struct) -> list[bytes]:
    """The text of a document in pieces, those of a list's items apart."""
    if not isinstance(document, ListEnvelope):
        return [encode(document)]
    name = document.__struct_fields__[-1]
    items: Sequence[msgspec.Struct] = getattr(document, name)
    if not items:
        return [encode(document)]
    head = list_head(msgspec.structs.replace(document, **{name: ()}))
    found = [list_items(items[at : at + CHUNK]) for at in range(0, len(items), CHUNK)]
    return [head, found[0][1:], *found[1:], LIST_END]
