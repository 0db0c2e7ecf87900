"""`devicelens discover`, the dry run: what a configuration would advertise and allocate on this host."""

from plugin.discover.cli import discover

__all__ = ["discover"]
