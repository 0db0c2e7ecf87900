"""A host's file system made for a test: files, links and device nodes below a directory."""

import os
import stat
from pathlib import Path, PurePosixPath
from typing import Literal

import pytest
import yaml

MACHINES = Path(__file__).parents[1] / "data" / "machines"


class HostTree:
    """Writes below `root`; every path is the host's own and absolute, its parents are made."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def at(self, path: str) -> Path:
        """Where a host path is for the test; its parent is made."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def directory(self, path: str) -> Path:
        """An empty directory."""
        place = self.at(path)
        place.mkdir(exist_ok=True)
        return place

    def file(self, path: str, text: str | bytes = "") -> Path:
        """A file; `text` as it is, without a new line at its end."""
        place = self.at(path)
        if isinstance(text, bytes):
            place.write_bytes(text)
        else:
            place.write_text(text, encoding="utf-8")
        return place

    def files(self, directory: str, **texts: str | int) -> None:
        """Files of one directory, each ended by a new line as sysfs does."""
        for name, text in texts.items():
            self.file(f"{directory}/{name}", f"{text}\n")

    def link(self, path: str, target: str) -> Path:
        """A symbolic link. An absolute `target` is the host's path, made relative as sysfs' own are."""
        place = self.at(path)
        parent = str(PurePosixPath(path).parent)
        place.symlink_to(os.path.relpath(target, parent) if target.startswith("/") else target)
        return place

    def load(self, machine: str) -> None:
        """The files and links of a machine in tests/data/machines."""
        document = yaml.safe_load((MACHINES / f"{machine}.yaml").read_text(encoding="utf-8"))
        for directory, texts in document["files"].items():
            self.files(directory, **texts)
        for path, target in document.get("links", {}).items():
            self.link(path, target)

    def node(self, path: str, kind: Literal["char", "block"], major: int, minor: int) -> Path:
        """A device node. Skips the test where this process may make none."""
        place = self.at(path)
        mode = (stat.S_IFCHR if kind == "char" else stat.S_IFBLK) | 0o600
        try:
            os.mknod(place, mode, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("making device nodes needs CAP_MKNOD")
        return place
