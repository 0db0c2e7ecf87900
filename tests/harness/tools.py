"""Programs that some tests need. A test that lacks one is skipped, or fails where CI=true."""

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest


def required(program: str, package: str) -> str:
    """The program's path. Skips where it is missing; fails instead under CI=true."""
    found = shutil.which(program)
    if found is not None:
        return found
    message = f"{program} is not installed: apt-get install {package}"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(message)
    pytest.skip(message)


@lru_cache
def shared_library(source: Path) -> Path:
    """A shared library compiled from a C source, once per process. Skips where no C compiler is installed."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(f"{source.name} needs a C compiler")
    directory = tempfile.mkdtemp(prefix="dl-")
    atexit.register(shutil.rmtree, directory)
    library = Path(directory) / "library.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True, timeout=60)
    return library
