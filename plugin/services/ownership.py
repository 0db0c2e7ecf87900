"""Claims of the resources that run: who may claim now, and who is told that something is free again."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from plugin.core.claims import Claims


class Ownership:
    """The claims of a process."""

    def __init__(self) -> None:
        self._claims = Claims()
        self._wakers: dict[str, Callable[[], None]] = {}
        self._looked = asyncio.Event()

    def configure(self, order: Sequence[str]) -> None:
        """The exclusive resources, in the order of the configuration."""
        self._claims.configure(order)
        self._looked.set()

    async def turn(self, resource: str, limit: float) -> None:
        """Wait until every earlier resource has looked for the first time, `limit` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self._claims.awaited(resource):
                    self._looked.clear()
                    await self._looked.wait()

    def looked(self, resource: str) -> None:
        """`resource` has looked for the first time, and claimed what is its own."""
        self._claims.looked(resource)
        self._looked.set()

    def claim(self, resource: str, claims: Collection[str], freed: Callable[[], None]) -> Mapping[str, str]:
        """Claim all this and nothing else; what others have is given back, with who has it.

        `freed` is called when some of that is free again.
        """
        self._wakers[resource] = freed
        claimed = self._claims.claim(resource, claims)
        self._wake(claimed.wake)
        return claimed.refused

    def release(self, resource: str) -> None:
        """`resource` is gone."""
        self._wakers.pop(resource, None)
        self._wake(self._claims.release(resource))

    def _wake(self, resources: Collection[str]) -> None:
        for name in resources:
            if name in self._wakers:
                self._wakers[name]()
