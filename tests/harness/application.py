"""An exporter's web application with a state of the test, for clients of its API."""

from collections.abc import Callable

from aiohttp import web

from exporter.mapping.state import State, StateStore
from exporter.web.app import build
from exporter.web.site import HistorySource, Site


class NoMetrics:
    """Stands in for /metrics."""

    async def document(self, form: object, *, compress: bool) -> bytes:
        return b""


def application(
    state: State, now: float | Callable[[], float], history: HistorySource | None = None
) -> web.Application:
    """The application of worker-3 at unix time `now`."""
    states = StateStore()
    states.publish(state)
    clock = now if callable(now) else lambda: now
    return build(Site(states, "worker-3", 60.0, 5.0, clock, NoMetrics(), tuple, "1", history))
