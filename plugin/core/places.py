"""A document checked against the plugin's model: daemon.places, told of keys that are not in it."""

from typing import Final, TypeVar

from msgspec import Struct

from daemon import places
from daemon.yaml_document import Document
from plugin.core import model as language
from plugin.core.adjust import OF, PRESET

T = TypeVar("T", bound=Struct)

_EXPANDED: Final[places.Planned] = {language.Resource: frozenset({PRESET, OF})}
"""Keys that are gone when a document is checked, and are what a mistyped one may have meant."""


def convert(document: Document, model: type[T]) -> T:
    """The document as `model`. Raises ConfigError for the first thing in it that does not fit."""
    return places.convert(document, model, {**language.PLANNED, **_EXPANDED})
