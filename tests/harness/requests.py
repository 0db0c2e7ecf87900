"""A refresh loop that records what it is requested."""

from dataclasses import dataclass, field

from exporter.refresh.protocols import Trigger


@dataclass
class RecordedRequests:
    """Implements RefreshRequests."""

    triggers: list[Trigger] = field(default_factory=list[Trigger])
    reconsidered: int = 0

    def trigger(self, trigger: Trigger) -> None:
        """Record a refresh."""
        self.triggers.append(trigger)

    def reconsider(self) -> None:
        """Record another reading of the last answer."""
        self.reconsidered += 1
