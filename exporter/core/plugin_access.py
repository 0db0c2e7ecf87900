"""How the exporter is let in by plugins that are protected: which files say so."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PluginAccess:
    """The files of flags, None where there are none: whom to trust, what to show, USER:PASSWORD."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    password_file: Path | None = None


NO_ACCESS = PluginAccess()
"""Plugins ask for nothing, and certificates are those of public authorities."""
