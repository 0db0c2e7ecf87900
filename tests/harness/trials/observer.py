"""Reads /metrics and /api/v1/devices continuously and compares each response with the kubelet."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import aiohttp

from harness.trials.owners_check import owners_in
from harness.truth import CLOCKS, Owner, Scrape, Truth

PACE = 0.05
"""Seconds between two reads, each of one scrape and one document."""
_EXPECTED = {
    "node",
    "resource",
    "device",
    "parent",
    "namespace",
    "pod",
    "container",
    "pod_uid",
}
_UP = re.compile(r"^devicelens_up 1(?:\.0)?$", re.MULTILINE)
FRESH = 8.0
"""Seconds that a mapping may be old while `devicelens_up` is 1, not counted while the exporter is away: an
exporter of these trials calls List every second and waits a second for each answer.
"""
LATE = 3.0
"""Seconds for which a pod's uid may be told although a successor of its name holds the very same devices:
List cannot tell the two apart, so that only the source of uids says it, which comes over another connection.
"""
_KEPT = 20


@dataclass
class Seen:
    """What was seen, counted. `late`: owners whose uid was their predecessor's, within LATE; `unconfirmed`:
    former owners that are marked so after a kubelet restart; `unanswered`: while somebody should have
    answered.
    """

    scrapes: int = 0
    documents: int = 0
    owners: int = 0
    wrong: int = 0
    late: int = 0
    unconfirmed: int = 0
    missing: int = 0
    unlabelled: int = 0
    fallen: int = 0
    withdrawn: int = 0
    unanswered: int = 0
    slowest: float = 0.0


@dataclass
class Observer:
    """Watches one exporter. `url` is where it is, "" while it is nowhere; `stale_after` in seconds.

    `excused`: pods that need not be told at present, as the kubelet itself leaves them out. `ahead`: by how
    much the exporter's clock may be ahead of this one. `away`: how many reasons there are for it not to
    answer at present.
    """

    truth: Truth
    url: Callable[[], str]
    stale_after: float
    excused: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    ahead: tuple[float, ...] = (0.0,)
    away: int = 0
    seen: Seen = field(default_factory=Seen)
    problems: list[str] = field(default_factory=list[str])
    _returned: float = 0.0
    _has_mapping: bool = False
    _counted: dict[str, float] = field(default_factory=dict[str, float])
    _reported: dict[tuple[str, ...], float] = field(default_factory=dict[tuple[str, ...], float])

    @contextmanager
    def absent(self, *, replaced: bool = True) -> Generator[None]:
        """While in the context nobody needs to answer. `replaced`: afterwards another process may."""
        self.away += 1
        try:
            yield
        finally:
            self.away -= 1
            self._returned = time.time()
            if replaced:
                self._has_mapping = False
                self._counted, self._reported = {}, {}

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Read the endpoints while in the context."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            assert isinstance(outcome, asyncio.CancelledError), outcome

    async def _watch(self) -> None:
        timeout = aiohttp.ClientTimeout(total=20)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                if self.url() and not self.away:
                    await self._read(session, "/metrics", self._scrape)
                    await self._read(session, "/api/v1/devices", self._document)
                await asyncio.sleep(PACE)

    async def _read(
        self,
        session: aiohttp.ClientSession,
        path: str,
        judge: Callable[[str, float, float], Iterable[str]],
    ) -> None:
        asked, began = time.time(), time.monotonic()
        away, url = self.away, self.url()
        try:
            async with session.get(url + path) as answer:
                status, text = answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if not (away or self.away) and url == self.url():
                self.seen.unanswered += 1
                self._note(f"{path} was not answered: {error!r}")
            return
        if away or self.away:
            return
        answered = time.time()
        self.seen.slowest = max(self.seen.slowest, time.monotonic() - began)
        self.truth.look()
        if status == 503 and path != "/metrics" and not self._has_mapping:
            return
        if status != 200:
            self.seen.unanswered += 1
            self._note(f"{path} answered {status}: {text[:200]}")
            return
        for problem in judge(text, asked, answered):
            self._note(problem)

    def _note(self, problem: str) -> None:
        if len(self.problems) < _KEPT:
            self.problems.append(f"{time.time():.3f} {problem}")

    def _scrape(self, text: str, asked: float, answered: float) -> Iterable[str]:
        self.seen.scrapes += 1
        scrape = Scrape(text)
        for labels in scrape.series():
            empty = {name for name in _EXPECTED - {"parent", "pod_uid"} if not labels.get(name)}
            # A release that is upgraded from may not have requested_as.
            if labels.keys() - {"requested_as"} != _EXPECTED or empty:
                self.seen.unlabelled += 1
                yield f"a label is missing: {labels}"
        counters = scrape.counters()
        for name, before in self._counted.items():
            if counters.get(name, -1.0) < before:
                self.seen.fallen += 1
                yield f"{name} fell from {before} to {counters.get(name)}"
        self._counted.update(counters)
        found, taken = scrape.owners(), self._taken(scrape.taken_at(), asked)
        if taken is not None and max(taken, self._returned) < asked - FRESH and _UP.search(text):
            self.seen.wrong += 1
            yield f"a mapping that was {asked - taken:.3f} s old is said to be fresh"
        if taken is not None and taken < answered - self.stale_after + CLOCKS:
            if not found:
                self.seen.withdrawn += 1
                return
            if taken < asked - self.stale_after - CLOCKS:
                self.seen.wrong += 1
                yield f"owners although the mapping was {asked - taken:.3f} s old"
        yield from self._judge(found, taken, answered, scrape.unconfirmed())

    def _document(self, text: str, asked: float, answered: float) -> Iterable[str]:
        self.seen.documents += 1
        document: Any = json.loads(text)
        taken = document["taken_at"]
        moment = None if taken is None else datetime.fromisoformat(taken).timestamp()
        doubtful = frozenset(
            (device["resource"], device["device"], holder["namespace"], holder["pod"], holder["container"])
            for device in document["devices"]
            for holder in device["holders"]
            if not holder.get("confirmed", True)  # a former version does not say
        )
        taken = self._taken(moment, asked)
        yield from self._judge(frozenset(owners_in(document)), taken, answered, doubtful)

    def _taken(self, reported: float | None, asked: float) -> float | None:
        """When the kubelet was asked, by this process's clock."""
        if reported is None:
            return None
        return min((reported - ahead for ahead in self.ahead), key=lambda moment: abs(asked - moment))

    def _judge(
        self,
        owners: frozenset[Owner],
        taken: float | None,
        answered: float,
        doubtful: frozenset[tuple[str, ...]],
    ) -> Iterable[str]:
        """The wrong and missing owners of a mapping, as messages; `doubtful` are the unconfirmed."""
        self.seen.owners += len(owners)
        if taken is None:
            if self._has_mapping or owners:
                self.seen.missing += 1
                yield f"no mapping is told any more, or one of no time: {sorted(owners)}"
            return
        self._has_mapping = True
        for owner in sorted(owners):
            if self.truth.held(owner, taken, answered):
                continue
            if owner[:5] in doubtful and self.truth.may_hold(owner, taken):
                self.seen.unconfirmed += 1
                continue
            if self._succeeded(owner, taken, answered):
                self.seen.late += 1
            else:
                self.seen.wrong += 1
                spans = [(one.begin - taken, one.end and one.end - taken) for one in self.truth.of(owner)]
                yield (
                    f"{owner} by a mapping of {taken:.3f}, answered {answered - taken:.3f} s later; "
                    f"it held it (seconds from there): {spans}"
                )
        yield from self._missing(owners, taken)

    def _succeeded(self, owner: Owner, taken: float, answered: float) -> bool:
        """Whether a pod of the same name has taken the device over within LATE seconds."""
        return self.truth.held(owner, taken - LATE, answered) and self.truth.held(
            owner._replace(uid=""), taken, answered
        )

    def _missing(self, owners: frozenset[Owner], taken: float) -> Iterable[str]:
        reported = {owner[:5] for owner in owners}
        self._reported |= dict.fromkeys(reported, taken)
        for owner in sorted(self.truth.present):
            begun = self.truth.spans[owner][-1].begin
            unseen = owner[:5] not in reported and (owner.namespace, owner.pod) not in self.excused
            known = self._reported.get(owner[:5], 0.0) >= begun
            # It came just before a restart: no List that this exporter has seen names it.
            unseen = unseen and (known or taken > self.truth.listing_since + CLOCKS)
            if unseen and begun < taken - CLOCKS:
                self.seen.missing += 1
                yield f"{owner} is missing from a mapping of {taken:.3f}; it holds it since {begun:.3f}"
