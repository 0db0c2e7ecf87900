"""Ids across resources: the kubelet looks a device's health up by its id alone."""

from collections.abc import Collection


class Identities:
    """Which resource advertises which ids."""

    def __init__(self) -> None:
        self._ids: dict[str, frozenset[str]] = {}

    def claim(self, resource: str, ids: Collection[str]) -> dict[str, str]:
        """Say what `resource` advertises from now on; returns the ids that another has too, with its name."""
        own = frozenset(ids)
        self._ids[resource] = own
        return {i: other for other, theirs in self._ids.items() if other != resource for i in own & theirs}

    def release(self, resource: str) -> None:
        """`resource` advertises nothing any more."""
        self._ids.pop(resource, None)
