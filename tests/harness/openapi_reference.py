"""docs/openapi.json, made from the code: `cd tests && python -m harness.openapi_reference` writes it."""

import json
from pathlib import Path
from typing import Final

from exporter.web.openapi import document
from runtime.version import __version__

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "openapi.json"


def text() -> str:
    """What is to be in the file."""
    return json.dumps(document(__version__), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(text())
