"""Claims of the resources that run: who may claim now, and who is told that something is free again."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from plugin.core.claims import Claims, claim_of
from plugin.core.device import Device
from plugin.core.holders import Held
from plugin.core.holdings import Holdings, Present
from plugin.core.ledger import Entries, Holding, Ledger, Page
from plugin.core.sharing import Sharing


class Ownership:
    """The claims of a process, and what pods hold on its node."""

    def __init__(self) -> None:
        self._claims = Claims()
        self._ledger = Ledger()
        self._holdings = Holdings(self._ledger)
        self._wakers: dict[str, Callable[[], None]] = {}
        self._present: dict[str, Present] = {}
        self._before: frozenset[str] = frozenset()
        self._served: set[str] = set()
        self._learned = False
        self._waits: dict[str, frozenset[Holding]] = {}
        self._looked = asyncio.Event()
        self._writers: list[asyncio.Future[None]] = []
        self.changed = asyncio.Event()
        """Set whenever there is something else to write for the next process."""
        self.urgent = asyncio.Event()
        """Set when somebody waits for that."""
        self.written_down = False
        """Whether anybody writes it."""

    def remember(
        self, names: Collection[str], entries: Entries | None = None, *, damaged: bool = False
    ) -> None:
        """Exclusive resources that former processes served, and what their ids stood for.

        What pods hold of them is believed. `damaged`: what was written down of that cannot be read.
        """
        self._before = frozenset(names)
        self._ledger.recall(entries or {})
        self._holdings.remember(self._before, doubted=damaged)

    @property
    def names(self) -> frozenset[str]:
        """The exclusive resources that the next process is to know of.

        One of a former process is forgotten when nothing of it is held any more.
        """
        own = self._holdings.exclusive
        return own - (self._before - self._served - self._holdings.resources) if self._learned else own

    @property
    def learned(self) -> bool:
        """Whether the kubelet has said what is held."""
        return self._learned

    @property
    def held_names(self) -> frozenset[str]:
        """Those of them of which pods may hold something, as far as the kubelet has told."""
        held = self._holdings.exclusive & self._holdings.resources
        return held if self._learned else held | self._before

    def configure(self, order: Sequence[str], shared: Collection[str] = ()) -> None:
        """The exclusive resources, in the order of the configuration, and the others."""
        self._claims.configure(order)
        self._holdings.configure(order, shared)
        self._served |= {*order}
        self._looked.set()
        self.changed.set()

    @property
    def generation(self) -> int:
        """Grows whenever something else is known of what pods hold."""
        return self._holdings.generation

    async def turn(self, resource: str, limit: float) -> None:
        """Wait until every earlier resource has looked for the first time, `limit` seconds at most.

        And until every other one of which something is held has said what that is.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self._claims.awaited(resource, self._holders(resource)):
                    self._looked.clear()
                    await self._looked.wait()

    def _holders(self, resource: str) -> frozenset[str]:
        return self._holdings.resources - {resource}

    def stake(
        self,
        resource: str,
        claims: Callable[[frozenset[str]], Collection[str]],
        held: Held | None,
        nodes: Mapping[Holding, frozenset[str]],
    ) -> None:
        """`resource` begins: what is held on the node, and what of that it finds is its own.

        `claims` gives the claims of those ids. `held`: None where nobody tells.
        """
        self._holdings.own(resource)
        self._served.add(resource)
        # It speaks for what is held of it by itself now: who took that for something of before looks again.
        self._wake([name for name, waits in self._waits.items() if any(of == resource for of, _ in waits)])
        self.learn(held, nodes)
        self._claims.stake(resource, claims(self._holdings.of(resource)))
        self._looked.set()
        self.changed.set()

    def learn(self, held: Held | None, nodes: Mapping[Holding, frozenset[str]]) -> None:
        """Take in what the kubelet says is held; None where it does not say."""
        if held is None:
            return
        self._holdings.learn(held, nodes)
        if not self._learned:
            self._learned = True
            self._wake(list(self._wakers))
        former = [name for name in self._ledger.resources if not self._holdings.is_served(name)]
        for name in former:
            free = self._ledger.of(name).keys() - self._holdings.of(name)
            self._ledger.forget([(name, i) for i in free])

    def offer(self, resource: str, claims: Mapping[str, str]) -> None:
        """These ids are advertised, for the devices of these claims; nobody else serves `resource`."""
        if self._ledger.offer(resource, claims, self._holdings.of(resource) if self._learned else None):
            self.changed.set()

    async def give(self, resource: str, claims: Mapping[str, str], limit: float) -> None:
        """Have it written down what these ids stand for, before they are given.

        What cannot be written, or not within `limit` seconds, is given nevertheless, for that is told.
        """
        if self._ledger.give(resource, claims):
            self._holdings.changed()
        if self._ledger.unwritten(resource, claims) and self.written_down:
            waits = asyncio.get_running_loop().create_future()
            self._writers.append(waits)
            self.changed.set()
            self.urgent.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await waits

    def page(self) -> tuple[Page, Callable[[], None]]:
        """What is to be written now, and what is to be called when that was tried."""
        self.changed.clear()
        self.urgent.clear()
        writers, self._writers = self._writers, []

        def tried() -> None:
            for waits in writers:
                if not waits.done():
                    waits.set_result(None)

        return self._ledger.page(), tried

    @property
    def forgotten(self) -> frozenset[str]:
        """Names of former processes that the next process need not know."""
        return self._holdings.exclusive - self.names

    def written(self, page: Page, entries: Entries, forgotten: frozenset[str]) -> None:
        """`page` has been written, without `forgotten`: another process may write that anew."""
        self._ledger.written(page, entries)
        self._before -= forgotten
        self._holdings.disown(forgotten)

    def looked(self, resource: str) -> None:
        """`resource` has looked for the first time, and claimed what is its own."""
        self._claims.looked(resource)
        self._looked.set()

    def held(
        self,
        resource: str,
        devices: Mapping[str, Device],
        sharing: Sharing,
        present: Present,
        freed: Callable[[], None],
    ) -> Mapping[str, str]:
        """Which of `devices`, advertised as `sharing` says, pods hold as something else, and as what.

        `freed` is called when one is held no more.
        """
        self._wakers[resource] = freed
        self._present[resource] = present
        found: dict[str, Holding] = {}
        for device_id, device in devices.items():
            holding = self._holdings.holding(resource, device, sharing, self._present)
            if holding is not None:
                found[device_id] = holding
                self._ledger.believe(holding, "" if device.found is None else claim_of(device.found))
        self._waits[resource] = frozenset(found.values())
        return {i: f"{name}: a pod holds it as {other}" for i, (name, other) in found.items()}

    def waits(self, resource: str) -> bool:
        """Whether `resource` was refused something that a pod holds as something else."""
        return bool(self._waits.get(resource))

    def review(self, listed: Held, now: float, patience: float) -> None:
        """Take in who holds what by now; who waits for what nobody holds any more is woken."""
        forgotten = self._holdings.review(listed, now, patience)
        self._ledger.forget(forgotten)
        if forgotten:
            self.changed.set()
        self._wake([name for name, waits in self._waits.items() if waits & forgotten])

    def claim(self, resource: str, claims: Collection[str], freed: Callable[[], None]) -> Mapping[str, str]:
        """Claim all this and nothing else; what others have is given back, with who has it.

        `freed` is called when some of that is free again.
        """
        self._wakers[resource] = freed
        claimed = self._claims.claim(resource, claims)
        self._wake(claimed.wake)
        return claimed.refused

    def leave(self, resource: str, held: Mapping[str, Device]) -> None:
        """`resource` is gone; `held`: what pods may hold of it, by advertised id."""
        claims = {i: claim_of(device.found) for i, device in held.items() if device.found is not None}
        self._ledger.leave(resource, claims, self._holdings.of(resource))
        self._holdings.leave(resource, held)
        self.changed.set()
        self.release(resource)

    def release(self, resource: str) -> None:
        """`resource` is gone, and nothing is held of it."""
        self._wakers.pop(resource, None)
        self._present.pop(resource, None)
        self._waits.pop(resource, None)
        self._wake(self._claims.release(resource))

    def _wake(self, resources: Collection[str]) -> None:
        for name in resources:
            if name in self._wakers:
                self._wakers[name]()
