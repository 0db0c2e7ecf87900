"""The OpenAPI document that exporters serve; `make openapi` (docs/make_openapi.py) makes it."""

from pathlib import Path
from typing import Final

DOCUMENT: Final = Path(__file__).parents[2] / "exporter" / "web" / "openapi.json"
