"""Presets: a YAML configuration for each common device system."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

PRESETS: Final[Mapping[str, Path]] = {
    path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))
}
"""The file of each preset, by name."""
