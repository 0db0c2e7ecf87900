"""An earlier version of the whole, to run beside this one: as while a DaemonSet is upgraded."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.processes import TREE

REVISION = "DEVICELENS_PREVIOUS"
"""A revision of git's to be upgraded from; else it is the newest release before this one."""
UNRELEASED = "714ba25a86950b79bc13eedd218433f9d04ef3aa"
"""What stands for a release as long as there is none."""


@dataclass(frozen=True)
class Version:
    """A version's code, and what it is called."""

    tree: Path
    name: str


def _git(*arguments: str) -> str:
    command = ("git", "-C", str(TREE), *arguments)
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout.strip()
    except (subprocess.CalledProcessError, FileNotFoundError):
        return ""


@contextmanager
def previous() -> Generator[Version]:
    """The version that is upgraded from: this one's own where git knows no other, as beside no repository."""
    asked = os.environ.get(REVISION, "")
    revision = (
        asked
        or _git("describe", "--tags", "--abbrev=0", "HEAD^")
        or _git("rev-parse", "-q", "--verify", f"{UNRELEASED}^{{commit}}")
    )
    if not revision:
        yield Version(TREE, "this version")
        return
    directory = Path(tempfile.mkdtemp(prefix="dl-"))
    try:
        archive = directory / "tree.tar"
        if not _git("archive", "--output", str(archive), revision) and not archive.exists():
            raise AssertionError(f"{REVISION}: git has no revision {revision!r}")
        shutil.unpack_archive(archive, directory, filter="data")
        archive.unlink()
        yield Version(directory, _git("rev-parse", "--short", f"{revision}^{{commit}}"))
    finally:
        shutil.rmtree(directory)
