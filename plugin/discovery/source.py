"""What a source of devices is."""

from dataclasses import dataclass
from typing import Protocol

from plugin.core.device import Found
from plugin.discovery.host import HostRoot


@dataclass(frozen=True, slots=True)
class Findings:
    """What a source found, and the host directories whose changes may change it.

    `follow` maps a directory to patterns (as fnmatch takes them) of the entries that matter.
    `notes` say why there may be less than one would think: a directory that is missing, for one.
    """

    found: tuple[Found, ...]
    follow: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


class Source(Protocol):
    """A place where devices are found."""

    def discover(self, host: HostRoot) -> Findings:
        """Everything that is there now. Blocking. Raises OSError where it cannot be known."""
        ...
