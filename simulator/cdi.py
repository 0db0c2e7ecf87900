"""CDI specifications of prepared claims: what a container runtime adds to a container for a device's name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from simulator.dra_objects import Object

VERSION: Final = "0.6.0"


def specification(kind: str, devices: Mapping[str, list[Object]]) -> Object:
    """A specification of `kind` (vendor/class): for each device its edits, merged."""
    return {
        "cdiVersion": VERSION,
        "kind": kind,
        "devices": [{"name": name, "containerEdits": _merged(edits)} for name, edits in devices.items()],
    }


def _merged(edits: list[Object]) -> Object:
    merged: Object = {}
    for one in edits:
        for field, entries in one.items():
            merged.setdefault(field, []).extend(entries)
    return merged


class Specifications:
    """A driver's specifications in a directory such as /var/run/cdi: one file for each claim's uid."""

    def __init__(self, directory: Path, driver: str, device_class: str) -> None:
        self._directory = directory
        self._prefix = f"{driver}-{device_class}_"
        self.kind = f"{driver}/{device_class}"

    def path(self, uid: str) -> Path:
        """The file of a claim."""
        return self._directory / f"{self._prefix}{uid}.json"

    def write(self, uid: str, devices: Mapping[str, list[Object]]) -> None:
        """Write a claim's file, whole or not at all. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self.path(uid)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(specification(self.kind, devices), indent=1), encoding="utf-8")
        temporary.replace(path)

    def remove(self, uid: str) -> None:
        """Remove a claim's file, if it is there."""
        self.path(uid).unlink(missing_ok=True)

    def uids(self) -> set[str]:
        """The claims that have a file."""
        files = self._directory.glob(f"{self._prefix}*.json")
        return {path.stem.removeprefix(self._prefix) for path in files}
