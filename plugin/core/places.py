"""A document checked against the plugin's model: daemon.places, told which keys are planned."""

from typing import TypeVar

from msgspec import Struct

from daemon import places
from daemon.yaml_document import Document
from plugin.core.model import PLANNED

T = TypeVar("T", bound=Struct)


def convert(document: Document, model: type[T]) -> T:
    """The document as `model`. Raises ConfigError for the first thing in it that does not fit."""
    return places.convert(document, model, PLANNED)
