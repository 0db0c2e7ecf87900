"""The project's files, as somebody has them who has just cloned it."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def listed() -> list[str]:
    """Every file that git knows or would add, by its path from the root. Skips where this is no checkout."""
    told = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode != 0:
        pytest.skip("this is no checkout of git's, which knows the project's files")
    return sorted({name for name in told.stdout.split("\0") if name and (ROOT / name).is_file()})


def copied(place: Path) -> Path:
    """Those files at `place`, with times of their own."""
    for name in listed():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, place / name)
    return place
