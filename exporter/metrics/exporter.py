"""/metrics: the mapping, written in blocks before a state is published, and the exporter's own families."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from msgspec import Struct

from exporter.mapping.state import Freshness, State, StateStore
from exporter.metrics.families import MappingFamilies, stale_mapping
from exporter.metrics.process import Counters, MappingStatus
from exporter.metrics.series_limit import SeriesLimit
from exporter.refresh.protocols import DraSource, NoDra, Phase, PodSource
from runtime.blocks import Block, gzip_pieces, joined, plain
from runtime.exposition import END, Collector, CollectorBlocks, Format

LARGE: Final = 12 << 20
"""Bytes of text that are not kept for plain scrapes."""
EXPECTED_WITHIN: Final = 600.0
"""Seconds after a scrape for which the next one is prepared: twice Prometheus' longest useful interval."""


class _Body(Struct):
    """The families of the mapping of `state` in blocks, and all in one for gzip. `text` is for plain scrapes,
    None where none is expected or it is too large to be kept.
    """

    state: State
    blocks: Sequence[Block]
    deflated: Block
    text: bytes | None = None

    def read(self) -> bytes:
        """The text, which is kept from now on."""
        text = plain(self.blocks) if self.text is None else self.text
        if len(text) <= LARGE:
            self.text = text
        return text


def _body(state: State, blocks: Sequence[Block]) -> _Body:
    return _Body(state, blocks, joined(blocks))


class Metrics:
    """The whole exposition. A scrape never calls the kubelet.

    Implements the refresh loop's Preparer and PhaseObserver.
    """

    def __init__(
        self,
        states: StateStore,
        *,
        node: str,
        version: str,
        stale_after: float,
        clock: Callable[[], float],
        limit: SeriesLimit | None = None,
        pods: PodSource | None = None,
        dra: DraSource | None = None,
    ) -> None:
        """`stale_after` in seconds; `clock` returns unix time as the states have it; no `limit` of series
        without it.
        """
        self._states = states
        self._node = node
        self._stale_after = stale_after
        self._clock = clock
        self._limit = limit or SeriesLimit(sys.maxsize)
        self._mapping = MappingFamilies(node)
        self._bodies: tuple[_Body, ...] = ()
        """The last two: of the published state, and of the one that is about to be published."""
        self._writing = threading.Lock()
        self._scraped_at: dict[tuple[Format, bool], float] = {}
        """When each format was last asked for, compressed or not."""
        self._unknown, self._stale = _body(State(), []), _body(State(), stale_mapping(node))
        self._status = MappingStatus(version, pods, dra or NoDra(), states.state)
        self.counters = Counters(node)
        self._collectors: list[CollectorBlocks] = []
        self._own = [CollectorBlocks(self.counters), CollectorBlocks(self._status)]
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")

    def register(self, collector: Collector) -> None:
        """Add the families of another part of the process."""
        self._collectors.append(CollectorBlocks(collector))

    def prepare(self, state: State) -> None:
        """Write the mapping of `state`, if a scrape may ask for it. Runs in the refresh loop's thread."""
        if expected := self._expected():
            body = self._write(state)
            if not all(compress for _, compress in expected):
                body.read()
        elif self._bodies:
            self._bodies, self._mapping = (), MappingFamilies(self._node)

    def timed(self, seconds: Mapping[Phase, float]) -> None:
        """Count how long a refresh took, and write what the next scrape shows of it."""
        self.counters.timed(seconds)
        self._show(self._states.state)
        # What cannot be written fails the scrape, never the refresh.
        with suppress(Exception):
            for form in {form for form, _ in self._expected()}:
                self._own_blocks(form)

    async def document(self, form: Format, *, compress: bool) -> tuple[bytes, ...]:
        """The exposition as `form`, gzipped if `compress`, in pieces: scrapes share those of the mapping.
        Everything in it is of one state.
        """
        self._scraped_at[form, compress] = time.monotonic()
        state, body = self._present()
        while body is None:
            # The first scrape for a while: those that follow are prepared.
            await asyncio.get_running_loop().run_in_executor(self._worker, self._write, state)
            state, body = self._present()
        self._show(state)
        tail = [*self._own_blocks(form), *[collector.of(form) for collector in self._collectors], END[form]]
        if compress:
            return gzip_pieces([body.deflated, *tail])
        text = body.text
        if text is None:
            text = await asyncio.get_running_loop().run_in_executor(self._worker, body.read)
        return (text, *[one.text for one in tail])

    def close(self) -> None:
        """End the rendering thread."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _own_blocks(self, form: Format) -> list[Block]:
        """The families of counts and of the mapping's status."""
        return [*self.counters.blocks(form), *[collector.of(form) for collector in self._own]]

    def _expected(self) -> list[tuple[Format, bool]]:
        """The formats of which a scrape is expected, and whether compressed."""
        now = time.monotonic()
        return [asked for asked, at in self._scraped_at.items() if now - at < EXPECTED_WITHIN]

    def _show(self, state: State) -> None:
        self._status.state = state
        self._status.fresh = state.freshness(self._clock(), self._stale_after) is Freshness.FRESH

    def _present(self) -> tuple[State, _Body | None]:
        """The published state, and the mapping as it is to be exposed now; None if it is not written."""
        state = self._states.state
        freshness = state.freshness(self._clock(), self._stale_after)
        if freshness is Freshness.UNKNOWN:
            return state, self._unknown
        if freshness is Freshness.STALE:
            return state, self._stale
        return state, next((body for body in self._bodies if body.state.same_mapping(state)), None)

    def _write(self, state: State) -> _Body:
        with self._writing:
            for body in self._bodies:
                if body.state.same_mapping(state):
                    return body
            body = _body(state, self._mapping.of(state, self._limit.plan(state)))
            self._bodies = (*self._bodies[-1:], body)
            return body
