"""Reads the ResourceClaims that pods of this node use, each by its name.

10 000 nodes must not watch all claims: an exporter requests only those that its node's pods name, a few at a
time.
"""

import asyncio
import random
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct

from exporter.apiserver.client import (
    DENIED,
    DENIED_AT_FIRST,
    NOT_SERVED,
    ApiClient,
    ApiServerError,
    pause_after,
)
from exporter.apiserver.kubeconfig import ApiServerAccess
from exporter.dra.slices import GROUP, SELDOM, VERSIONS
from exporter.mapping.dra import Claim, ClaimName, SourceStatus
from exporter.mapping.resource_claims import ResourceClaim, claim_of
from runtime.clock import wait_within
from runtime.http.client import read_body
from runtime.log import Episode, Log

AT_ONCE: Final = 4
"""Requests that are under way at most."""
MAX_CLAIMS: Final = 1024
AGAIN: Final = 60.0
"""Seconds after which a claim is read again; up to a quarter more, so that nodes do not ask together."""
SOON: Final = 5.0
"""Seconds after which a claim that List contradicts is read again."""

_ANSWER: Final = 10.0
_ANSWER_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of a claim. etcd holds less."""
_SESSION: Final = 300.0
"""Seconds after which certificates are read again."""
_OF_ONE: Final = frozenset({"UNDECODABLE", "TOO_LARGE"})
"""Failures that concern one claim and not the API server."""
_CALM: Final = 600.0
_DENIED: Final = "it may not get resourceclaims: see deploy/components/dra"
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""Namespaces and claims: they become a path."""
_CLAIM: Final = msgspec.json.Decoder(ResourceClaim)
_log = Log("dra")


class _Wanted(Struct):
    """A claim that pods use: when it is due, whether a request is under way, and whether and when one was
    answered or failed.
    """

    due: float
    under_way: bool = False
    asked: bool = False
    asked_at: float = 0.0


class ClaimReader:
    """The claims that pods of this node use. `bind` it, then `run` it as an actor."""

    def __init__(self, access: ApiServerAccess) -> None:
        self._client = ApiClient(access, _DENIED, connections=AT_ONCE)
        self._version = 0
        self._wanted: dict[ClaimName, _Wanted] = {}
        self._claims: dict[ClaimName, Claim] = {}
        self._absent: set[ClaimName] = set()
        self._view: tuple[Mapping[ClaimName, Claim], frozenset[ClaimName]] | None = None
        self._status = SourceStatus("claims", up=True)
        self._failures = self._denials = 0
        self._not_before = 0.0
        self._left_out = False
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()
        self._changed: Callable[[], None] = _nothing
        self._failing = Episode(_log, "ResourceClaims cannot be read", calm=_CALM)

    @property
    def status(self) -> SourceStatus:
        """Whether the last request was answered; up before the first one."""
        if self._status.up and self._left_out:
            return self._status._replace(
                problem=f"pods use more than {MAX_CLAIMS} claims: others are not read"
            )
        return self._status

    @property
    def view(self) -> tuple[Mapping[ClaimName, Claim], frozenset[ClaimName]]:
        """DraView.claims and DraView.absent; the same objects until they change."""
        if self._view is None:
            self._view = MappingProxyType(dict(self._claims)), frozenset(self._absent)
        return self._view

    def bind(self, changed: Callable[[], None]) -> None:
        """Set what is called after `view` or `status` changed."""
        self._changed = changed

    def want(self, names: Collection[ClaimName]) -> None:
        """Read these claims, and forget all others."""
        before = self.status
        gone = self._wanted.keys() - names
        for name in gone:
            del self._wanted[name]
        forgotten = bool(gone & (self._claims.keys() | self._absent))
        for name in gone:
            self._claims.pop(name, None)
            self._absent.discard(name)
        self._left_out = False
        self._add(names)
        if forgotten:
            self._view = None
        if forgotten or self.status != before:
            self._changed()

    async def known(self, names: Collection[ClaimName], within: float) -> None:
        """Return when each of these claims was read or has failed, at the latest after `within` seconds. At
        once while claims cannot be read. A claim that was read SOON seconds ago or earlier is read again.
        """
        self._add(names)
        clock = asyncio.get_running_loop().time
        until = clock() + within
        for name in names:
            wanted = self._wanted.get(name)
            if wanted is not None and wanted.asked:
                # At the latest SOON, also where the answer is published without it.
                wanted.due = min(wanted.due, wanted.asked_at + SOON)
                wanted.asked = clock() < wanted.due
                self._wake.set()
        while self._status.up and any(self._is_unread(name) for name in names):
            self._answered.clear()
            if not await wait_within(self._answered, max(0.0, until - clock())):
                return

    async def run(self) -> None:
        """Read claims until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            # Most nodes have no claims: no certificates are read for them.
            while not self._wanted:
                self._wake.clear()
                await self._wake.wait()
            try:
                with self._client.problems():
                    async with self._client.session() as session:
                        until = clock() + _SESSION
                        async with asyncio.TaskGroup() as group:
                            for _ in range(AT_ONCE):
                                group.create_task(self._work(session, until))
            except ApiServerError as error:
                self._failed(error)
                await asyncio.sleep(self._not_before - clock())

    async def _work(self, session: aiohttp.ClientSession, until: float) -> None:
        """Read one claim after the other, as they are due, until the time `until`."""
        clock = asyncio.get_running_loop().time
        while (now := clock()) < until:
            self._wake.clear()
            name, due = self._next(now)
            if name is None:
                await wait_within(self._wake, min(due, until) - now)
                continue
            wanted = self._wanted[name]
            wanted.under_way = True
            try:
                await self._read(session, name)
            finally:
                wanted.under_way = False
                wanted.asked, wanted.asked_at = True, clock()
                self._answered.set()

    def _next(self, now: float) -> tuple[ClaimName | None, float]:
        """The claim to read now, or None and when to look again. After a failure one is read at a time."""
        under_way = any(one.under_way for one in self._wanted.values())
        waiting = [(one.due, name) for name, one in self._wanted.items() if not one.under_way]
        if not waiting or (self._failures and under_way):
            return None, now + SELDOM
        due, name = min(waiting)
        due = max(due, self._not_before)
        return (name if due <= now else None), due

    async def _read(self, session: aiohttp.ClientSession, name: ClaimName) -> None:
        """Request one claim, and schedule the next request."""
        spread = random.uniform(1.0, 1.25)  # noqa: S311 -- jitter
        again = asyncio.get_running_loop().time() + AGAIN * spread
        try:
            found: Claim | None = await self._request(session, name)
        except ApiServerError as error:
            if error.code != "404" and error.code not in _OF_ONE:
                self._failed(error)
                self._answer(name, self._claims.get(name), self._not_before)
                return
            found = self._claims.get(name) if error.code in _OF_ONE else None
        if self._failures:
            self._failures = self._denials = 0
            self._failing.recovered()
            self._status = SourceStatus("claims", up=True)
            self._changed()
            self._wake.set()
        self._answer(name, found, again)

    async def _request(self, session: aiohttp.ClientSession, name: ClaimName) -> Claim | None:
        """The claim as it is now, None for one with another name. Raises ApiServerError."""
        while True:
            version = self._version
            path = f"{GROUP}/{VERSIONS[version]}/namespaces/{name.namespace}/resourceclaims/{name.name}"
            try:
                with self._client.problems():
                    async with asyncio.timeout(_ANSWER):
                        async with await self._client.get(session, path, {}) as response:
                            found = claim_of(_CLAIM.decode(await read_body(response, _ANSWER_LIMIT)))
            except ApiServerError as error:
                if error.code != NOT_SERVED:
                    raise
                if version + 1 == len(VERSIONS):
                    self._version = 0
                    raise
                self._version = max(self._version, version + 1)
            else:
                return found if found.name == name else None

    def _failed(self, error: ApiServerError) -> None:
        """The API server does not answer requests for claims."""
        now = asyncio.get_running_loop().time()
        # Requests that were under way together are one attempt.
        if now >= self._not_before:
            self._failures += 1
            self._denials += error.code in DENIED
        seldom = DENIED_AT_FIRST if self._denials <= 1 else SELDOM
        self._not_before = now + pause_after(error, self._failures, seldom=seldom)
        self._failing.failed(error.message)
        problem = f"ResourceClaims are not read: {error.message}"
        status = SourceStatus("claims", up=False, problem=problem)
        if status != self._status:
            self._status = status
            self._answered.set()
            self._changed()

    def _answer(self, name: ClaimName, found: Claim | None, again: float) -> None:
        """Keep what is known of a claim, None if it does not exist or cannot be read; read it again at the
        time `again`.
        """
        wanted = self._wanted.get(name)
        if wanted is None:
            return
        wanted.due = again
        if self._claims.get(name) == found and (found is not None or name in self._absent):
            return
        if found is None:
            self._claims.pop(name, None)
            self._absent.add(name)
        else:
            self._claims[name] = found
            self._absent.discard(name)
        self._view = None
        self._changed()

    def _add(self, names: Collection[ClaimName]) -> None:
        now = asyncio.get_running_loop().time()
        for name in names:
            if name in self._wanted or not all(_NAME.fullmatch(part) for part in name):
                continue
            if len(self._wanted) >= MAX_CLAIMS:
                self._left_out = True
                break
            self._wanted[name] = _Wanted(now)
            self._wake.set()

    def _is_unread(self, name: ClaimName) -> bool:
        wanted = self._wanted.get(name)
        return wanted is not None and not wanted.asked


def _nothing() -> None:
    """Until the source is bound."""
