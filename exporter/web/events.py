"""/api/v1/events: server-sent events for pages and programs that follow the mapping.

Event `generation`: the mapping, its freshness or its failure changed. Its data is the generation's number,
its id the current ETag; the first comes at once. Event `refreshed`: the kubelet answered without a change;
its data is the time, in RFC 3339. One comes at the start of each stream too.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final, cast

from aiohttp import hdrs, web
from aiohttp_sse import EventSourceResponse

from exporter.mapping.state import Freshness, Moment, State
from exporter.views.wording import rfc3339
from exporter.web.site import Site
from runtime.http.app import problem

LIMIT: Final = 256
"""Streams at once: each is a socket and three tasks."""
LIMIT_PER_ADDRESS: Final = 64
"""Streams of one client address."""
SPACING: Final = 0.25
"""Seconds between two events of a connection; changes in between share the next event."""
_PING: Final = 15.0
_SEND_WITHIN: Final = 10.0
_RETRY_MS: Final = 2000
_RECHECK: Final = 5.0
"""Seconds after which freshness is evaluated again."""


class Events:
    """The open streams."""

    def __init__(
        self,
        site: Site,
        *,
        limit: int = LIMIT,
        per_address: int = LIMIT_PER_ADDRESS,
        spacing: float = SPACING,
    ) -> None:
        self._site = site
        self._limit = limit
        self._per_address = per_address
        self._spacing = spacing
        self._open: Counter[str] = Counter()
        """Open streams by client address."""
        self._ending = asyncio.Event()

    @property
    def open(self) -> int:
        """How many streams are open."""
        return self._open.total()

    async def end(self, _app: web.Application) -> None:
        """End every stream, because the process shuts down."""
        self._ending.set()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """One stream, until the client disconnects or the process ends; 503 above the limit."""
        if request.method == hdrs.METH_HEAD:
            return web.Response(
                headers={hdrs.CONTENT_TYPE: "text/event-stream", hdrs.CACHE_CONTROL: "no-cache"}
            )
        address = request.remote or ""
        if self.open >= self._limit or self._open[address] >= self._per_address:
            limit = min(self._limit, self._per_address) if self.open < self._limit else self._limit
            refused = problem(503, f"{limit} pages follow this exporter already, at most that many can")
            refused.headers[hdrs.RETRY_AFTER] = "30"
            return refused
        response = EventSourceResponse(ping_interval=_PING, send_timeout=_SEND_WITHIN)
        self._open[address] += 1
        try:
            await response.prepare(request)
            async with response:
                await self._until_closed(response)
        except ConnectionResetError:
            pass  # the client disconnected, which is how most streams end
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]
        return response

    async def _until_closed(self, response: EventSourceResponse) -> None:
        feed = asyncio.create_task(self._feed(response))
        others = (asyncio.create_task(response.wait()), asyncio.create_task(self._ending.wait()))
        try:
            await asyncio.wait((feed, *others), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (feed, *others):
                task.cancel()
            outcome, *_ = await asyncio.gather(feed, *others, return_exceptions=True)
        if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionResetError | TimeoutError):
            raise outcome

    async def _feed(self, response: EventSourceResponse) -> None:
        sent_tag, sent_at = "", None
        async with aclosing(self._moments()) as moments:
            async for moment in moments:
                tag, taken_at = self._site.tag(moment), moment.state.taken_at
                changed, answered = tag != sent_tag, taken_at is not None and taken_at != sent_at
                if changed:
                    number = str(moment.state.generation)
                    await response.send(number, id=tag, event="generation", retry=_RETRY_MS)
                # The first event has no time: a page may be older than this stream.
                if answered and taken_at is not None and (not changed or not sent_tag):
                    await response.send(rfc3339(taken_at), event="refreshed")
                if not changed and not answered:
                    continue
                sent_tag, sent_at = tag, taken_at
                await asyncio.sleep(self._spacing)

    async def _moments(self) -> AsyncGenerator[Moment]:
        """The current moment, then one for each change of the state, or when freshness may have changed."""
        async with aclosing(cast("AsyncGenerator[State]", self._site.states.follow())) as states:
            upcoming = asyncio.ensure_future(_next(states))
            try:
                while True:
                    moment = self._site.moment()
                    done, _ = await asyncio.wait((upcoming,), timeout=_patience(moment))
                    if done:
                        upcoming = asyncio.ensure_future(_next(states))
                    yield self._site.moment()
            finally:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)


async def _next(states: AsyncIterator[State]) -> State:
    return await anext(states)


def _patience(moment: Moment) -> float:
    """Seconds until the mapping may become stale, at most _RECHECK."""
    age = moment.state.age(moment.now)
    if age is None or moment.freshness is Freshness.STALE:
        return _RECHECK
    return min(max(moment.stale_after - age, 0.0) + 0.01, _RECHECK)
