"""The project's version, in one place."""

import re
from collections.abc import Mapping
from typing import Final

__version__ = "0.1.0"

_REVISION: Final = re.compile(r"[0-9a-f]{7,64}(-dirty)?")


def described(environment: Mapping[str, str]) -> str:
    """The version, with the revision that an image says it was built of (Dockerfile: DEVICELENS_REVISION)."""
    revision = environment.get("DEVICELENS_REVISION", "")
    return f"{__version__} (revision {revision})" if _REVISION.fullmatch(revision) else __version__
