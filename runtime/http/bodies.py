"""Bodies of large answers: made in a thread, sent in pieces that answers share, and bounded in all."""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

T = TypeVar("T")

LARGE: Final = 64 * 1024
"""Bytes from which an answer is sent in pieces of at most that size, and counts for the budget."""
BUDGET: Final = 64 << 20
"""Bytes of large answers that are being sent."""


class Body(Struct, frozen=True, eq=False):
    """The bytes of an answer in pieces, which other bodies may share.

    `key` identifies the answer: while it is being sent, others that ask for the same are sent the same.
    """

    pieces: tuple[bytes, ...]
    gzipped: bool = False
    key: Hashable = None

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(map(len, self.pieces))


def portions(pieces: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """The pieces in portions to write: large ones cut to LARGE, small ones joined to at most that."""
    small: list[bytes] = []
    length = 0
    for piece in pieces:
        if small and length + len(piece) > LARGE:
            yield b"".join(small)
            small, length = [], 0
        if len(piece) > LARGE:
            view = memoryview(piece)
            for start in range(0, len(view), LARGE):
                yield view[start : start + LARGE]
        else:
            small.append(piece)
            length += len(piece)
    if small:
        yield b"".join(small)


class BodyResponse(web.Response):
    """An answer with a Body. The server sends its pieces without joining them."""

    def __init__(self, body: Body, **options: Any) -> None:
        """`options` as those of web.Response."""
        super().__init__(**options)
        self.made = body


class AnswerBudget:
    """Bytes of the large answers that are being sent. A piece that several answers share counts once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._answers = Counter[int]()
        """How many answers have a piece, by its identity."""
        self._clients = Counter[Hashable]()
        self._bodies: dict[Hashable, Body] = {}

    def find(self, key: Hashable) -> Body | None:
        """The body for `key` that is being sent."""
        return self._bodies.get(key)

    @contextmanager
    def sending(self, body: Body) -> Generator[bool]:
        """Whether the budget has room for `body`, which then counts until the end."""
        further = sum(len(piece) for piece in body.pieces if id(piece) not in self._answers)
        if self._used and self._used + further > self._limit:
            yield False
            return
        self._used += further
        self._answers.update(map(id, body.pieces))
        self._clients[body.key] += 1
        if body.key is not None:
            self._bodies[body.key] = body
        try:
            yield True
        finally:
            for piece in body.pieces:
                if _left(self._answers, id(piece)):
                    self._used -= len(piece)
            if _left(self._clients, body.key):
                self._bodies.pop(body.key, None)


def _left(counts: Counter[T], one: T) -> bool:
    """Count `one` down. Whether it was the last."""
    counts[one] -= 1
    if counts[one]:
        return False
    del counts[one]
    return True


class AnswerWorker:
    """Makes what would block the event loop in a thread, one thing at a time."""

    def __init__(self, budget: AnswerBudget) -> None:
        self._turn = asyncio.Lock()
        self._budget = budget

    async def made(self, request: web.Request, make: Callable[[], T]) -> T:
        """What `make` returns. Raises ConnectionError where the client has left when its turn comes."""
        async with self._turn:
            return await _in_thread(request, make)

    async def body(self, request: web.Request, key: Hashable, make: Callable[[], Body]) -> Body:
        """The body for `key`: the one that another client is being sent, or a new one. Raises as `made`."""
        async with self._turn:
            return self._budget.find(key) or replace(await _in_thread(request, make), key=key)


async def _in_thread(request: web.Request, make: Callable[[], T]) -> T:
    if request.transport is None or request.transport.is_closing():
        raise ConnectionAbortedError("the client left")
    found: list[T] = []
    # A result that the thread returned would stay until the garbage collector comes: asyncio makes a cycle.
    await asyncio.to_thread(lambda: found.append(make()))
    return found.pop()


ANSWER_WORKER: Final = web.AppKey("answer_worker", AnswerWorker)
"""The worker of an application."""
