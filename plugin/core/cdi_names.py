"""CDI names across resources: a runtime that finds one in two specifications gives the device to nobody."""

import threading
from collections.abc import Collection, Mapping


class CdiNames:
    """Which resource's specification has which qualified names. Asked by several threads.

    Of several that would have one it is the first by the resource's name that has it, whenever each of
    them came: a pod that starts again after this process did must get what it had.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def claim(self, resource: str, names: Collection[str]) -> Mapping[str, str]:
        """Say what `resource` would have from now on; returns what another has, and which one."""
        with self._lock:
            self._wanted[resource] = frozenset(names)
            return self._taken(resource, self._wanted[resource])

    def taken(self, resource: str, names: Collection[str]) -> Mapping[str, str]:
        """What of `names` another has, if `resource` would have them, and which one."""
        with self._lock:
            return self._taken(resource, frozenset(names))

    def release(self, resource: str) -> None:
        """`resource` has no specification any more."""
        with self._lock:
            self._wanted.pop(resource, None)

    def _taken(self, resource: str, names: frozenset[str]) -> dict[str, str]:
        earlier = sorted(other for other in self._wanted if other < resource)
        return {name: other for other in reversed(earlier) for name in names & self._wanted[other]}
