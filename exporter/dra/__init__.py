"""Facts of Dynamic Resource Allocation: slices and claims of the API server, CDI specifications."""

from pathlib import Path
from typing import Final

CDI_DIRECTORIES: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where runtimes read CDI specifications. CDI: a device in a later directory overrides an earlier one's."""
