"""Programs that some tests need: a skip says what to install, and is a failure where CI=true."""

import os
import shutil

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
