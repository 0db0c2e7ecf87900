"""`devicelens discover`: what a configuration would advertise and give on this host, without doing it.

cli       the command: flags, exit codes, the one clear line when it cannot
dry_run   one look at everything, each probe asked once
given     what Allocate would answer, and the CDI specification
document  what it found, in the shape that scripts rely on
show      the document as tables, JSON or YAML
"""

from plugin.discover.cli import discover

__all__ = ["discover"]
