"""A refresh loop that calls functions of a test."""

from collections.abc import Callable
from dataclasses import dataclass

from exporter.refresh.protocols import Trigger


@dataclass(frozen=True)
class Requests:
    """Implements RefreshRequests."""

    trigger: Callable[[Trigger], None]
    reconsider: Callable[[], None]
