"""Several who follow the refresh loop."""

from collections.abc import Iterable, Sequence

from exporter.core.holdings import Step
from exporter.core.state import State
from exporter.services.partners import Observer, Trigger


class Observers:
    """Tells each of `observers`, in their order. Implements the refresh loop's Observer."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:
        """A refresh ended."""
        causes = tuple(triggers)
        for observer in self._observers:
            observer.refreshed(causes, seconds)

    def failed(self, method: str, code: str) -> None:
        """A refresh failed."""
        for observer in self._observers:
            observer.failed(method, code)

    def reread(self) -> None:
        """The last answer was read anew."""
        for observer in self._observers:
            observer.reread()

    def stepped(self, state: State, step: Step) -> None:
        """A refresh brought changes."""
        for observer in self._observers:
            observer.stepped(state, step)
