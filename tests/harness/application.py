"""An exporter's web application with a state of the test, for clients of its API."""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from exporter.mapping.state import State, StateStore
from exporter.web.app import build
from exporter.web.site import HistorySource, Site


class NoMetrics:
    """Stands in for /metrics."""

    async def document(self, form: object, *, compress: bool) -> tuple[bytes, ...]:
        return ()


def site(state: State, now: float | Callable[[], float], node: str = "worker-3", **more: Any) -> Site:
    """The site of an exporter at unix time `now`; `more` are further fields."""
    states = StateStore()
    states.publish(state)
    clock = now if callable(now) else lambda: now
    values: dict[str, Any] = {"triggers": tuple, "version": "1"}
    return Site(states, node, 60.0, 5.0, clock, NoMetrics(), **values | more)


def application(
    state: State, now: float | Callable[[], float], history: HistorySource | None = None
) -> web.Application:
    """The application of worker-3 at unix time `now`."""
    return build(site(state, now, history=history))
