"""Claims of the resources that run: who may claim now, and who is told that something is free again."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from plugin.core.claims import Claims, claim_of
from plugin.core.device import Device
from plugin.core.holders import Held
from plugin.core.holdings import Holding, Holdings, Present
from plugin.core.sharing import Sharing


class Ownership:
    """The claims of a process, and what pods hold on its node."""

    def __init__(self) -> None:
        self._claims = Claims()
        self._holdings = Holdings()
        self._wakers: dict[str, Callable[[], None]] = {}
        self._present: dict[str, Present] = {}
        self._before: frozenset[str] = frozenset()
        self._served: set[str] = set()
        self._learned = False
        self._waits: dict[str, frozenset[Holding]] = {}
        self._looked = asyncio.Event()
        self.renamed = asyncio.Event()
        """Set whenever `names` may be others."""

    def remember(self, names: Collection[str]) -> None:
        """Exclusive resources that a former process served: what pods hold of them is believed."""
        self._before = frozenset(names)
        for name in names:
            self._holdings.own(name)

    @property
    def names(self) -> frozenset[str]:
        """The exclusive resources that the next process is to know of.

        One of a former process is forgotten when nothing of it is held any more.
        """
        own = self._holdings.exclusive
        return own - (self._before - self._served - self._holdings.resources) if self._learned else own

    @property
    def held_names(self) -> frozenset[str]:
        """Those of them of which pods may hold something."""
        return self._holdings.exclusive & self._holdings.resources

    def configure(self, order: Sequence[str], shared: Collection[str] = ()) -> None:
        """The exclusive resources, in the order of the configuration, and the others."""
        self._claims.configure(order)
        self._holdings.configure(order, shared)
        self._served |= {*order}
        self._looked.set()
        self.renamed.set()

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
        held: Held,
        nodes: Mapping[Holding, frozenset[str]],
    ) -> None:
        """`resource` begins: what is held on the node, and what of that it finds is its own.

        `claims` gives the claims of those ids.
        """
        self._holdings.own(resource)
        self._served.add(resource)
        self._holdings.learn(held, nodes)
        self._learned = True
        self._claims.stake(resource, claims(self._holdings.of(resource)))
        self._looked.set()
        self.renamed.set()

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
        self._waits[resource] = frozenset(found.values())
        return {i: f"{name}: a pod holds it as {other}" for i, (name, other) in found.items()}

    def waits(self, resource: str) -> bool:
        """Whether `resource` was refused something that a pod holds as something else."""
        return bool(self._waits.get(resource))

    def review(self, listed: Held, now: float, patience: float) -> None:
        """Take in who holds what by now; who waits for what nobody holds any more is woken."""
        forgotten = self._holdings.review(listed, now, patience)
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
        self._holdings.leave(resource, {i: claim for i, claim in claims.items() if claim})
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
