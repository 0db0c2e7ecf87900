"""Faults that are told by events: heard in threads of their own, passed on to every resource."""

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from plugin.discovery.source import Fault, FaultSource, SourceConfig
from runtime.log import Episode, Log

_log = Log("faults")

_Sources = tuple[SourceConfig, ...]
_Tell = Callable[[Fault], None]

Make = Callable[[_Sources], FaultSource | None]
"""Who listens for faults of what these sources find; None where nobody needs to."""


class Listening:
    """One listener for equal sources, however many resources want to hear of their faults."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._listeners: list[tuple[_Sources, _Listener]] = []

    @contextmanager
    def following(self, sources: _Sources, tell: _Tell) -> Generator[None]:
        """Call `tell` in the event loop with each fault of what `sources` find."""
        listener = self._listener(sources)
        if listener is None:
            yield
            return
        listener.followers.append(tell)
        try:
            yield
        finally:
            listener.followers.remove(tell)
            if not listener.followers:
                listener.stop.set()
                self._listeners = [item for item in self._listeners if item[1] is not listener]

    def _listener(self, sources: _Sources) -> "_Listener | None":
        for known, listener in self._listeners:
            if known == sources:
                return listener
        source = self._make(sources)
        if source is None:
            return None
        made = _Listener(source)
        self._listeners.append((sources, made))
        made.start()
        return made


class _Listener(threading.Thread):
    """Listens until `stop` is set; a daemon, for a library may hang for good."""

    def __init__(self, source: FaultSource) -> None:
        super().__init__(name="faults", daemon=True)
        self.followers: list[_Tell] = []
        self.stop = threading.Event()
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._deaf = Episode(_log, "faults are not heard")

    def run(self) -> None:
        try:
            self._source.listen(self._heard, self._said, self.stop)
        except Exception as error:  # noqa: BLE001 -- a defect there must not end what is served here
            self._said(f"{type(error).__name__}: {error}")

    def _heard(self, fault: Fault) -> None:
        self._in_loop(lambda: self._tell(fault))

    def _said(self, problem: str) -> None:
        self._in_loop(lambda: self._deaf.failed(problem, level="info") if problem else self._deaf.recovered())

    def _tell(self, fault: Fault) -> None:
        for tell in tuple(self.followers):
            tell(fault)

    def _in_loop(self, do: Callable[[], None]) -> None:
        # RuntimeError: the loop has ended meanwhile, and with it who listens.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(do)
