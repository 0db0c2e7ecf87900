"""What device plugins themselves tell of their devices (their /api/v1/devices), put together.

The kubelet's word wins wherever it has one: what is allocatable it knows, for it is the one that gives
devices out. A plugin adds that a device exists which the kubelet does not name (nobody holds it, and it is
not healthy), why it is not healthy, what it is, and when it was last given out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from exporter.core.model import DeviceKey

FORGOTTEN_AFTER: Final = 300.0
"""Seconds for which the last word of a plugin that answers no more is kept.

kubelet: a plugin whose stream ended keeps its place for five minutes, then its devices are forgotten.
"""


@dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """One device as its plugin tells of it.

    `reason` says why it is not healthy ("" where it is, or where nothing is said), `since` the unix time of
    its last change of health, `last_allocated` that of the last Allocate that gave it out; None: not told.
    `attributes` are sorted by name. `parent` is the device that this one is a share of, "" where it is
    none or nothing is said.
    """

    healthy: bool
    reason: str = ""
    since: float | None = None
    numa_nodes: tuple[int, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    last_allocated: float | None = None
    parent: str = ""


@dataclass(frozen=True, slots=True)
class AdvertisedResource:
    """One resource of a plugin: whether the kubelet took its registration, and how many ListAndWatch
    streams are open.
    """

    registered: bool
    streams: int
    devices: Mapping[str, AdvertisedDevice]

    @property
    def served(self) -> bool:
        """Whether the kubelet follows this plugin."""
        return self.registered and self.streams > 0


@dataclass(frozen=True, slots=True)
class Telling:
    """What one plugin told.

    `source` is its address; `told_at` is the unix time at which it was first heard to say this, None while
    it has said nothing. `problem` says why it does not answer at present, "" while it does; it was last
    heard at `silent_since`.
    """

    source: str
    resources: Mapping[str, AdvertisedResource] = field(
        default_factory=lambda: MappingProxyType(dict[str, AdvertisedResource]())
    )
    told_at: float | None = None
    problem: str = ""
    silent_since: float | None = None

    @property
    def answers(self) -> bool:
        """Whether this is its present word."""
        return self.told_at is not None and not self.problem


@dataclass(frozen=True, slots=True)
class Word:
    """Who tells of a resource: the resource as that plugin has it, and its telling."""

    resource: AdvertisedResource
    telling: Telling


@dataclass(frozen=True, slots=True)
class Advertised:
    """What all plugins told. Replaced as a whole, never changed."""

    tellings: tuple[Telling, ...] = ()
    devices: Mapping[DeviceKey, AdvertisedDevice] = field(
        default_factory=lambda: MappingProxyType(dict[DeviceKey, AdvertisedDevice]())
    )
    resources: Mapping[str, Word] = field(default_factory=lambda: MappingProxyType(dict[str, Word]()))

    def answers(self, resource: str) -> bool:
        """Whether a plugin tells of this resource at present."""
        word = self.resources.get(resource)
        return word is not None and word.telling.answers

    def serves(self, resource: str) -> bool:
        """Whether a plugin says at present that the kubelet follows it for this resource."""
        word = self.resources.get(resource)
        return word is not None and word.telling.answers and word.resource.served


NOTHING: Final = Advertised()
"""Of a node whose plugins are not asked."""


def merged(tellings: Iterable[Telling]) -> Advertised:
    """What all of `tellings` say together.

    A resource that several tell of (one process takes over from another) is as the one says that answers
    and that the kubelet follows; among equals, as the first says.
    """
    kept = tuple(tellings)
    resources: dict[str, Word] = {}
    for telling in kept:
        for name, resource in telling.resources.items():
            before = resources.get(name)
            if before is None or _weight(Word(resource, telling)) > _weight(before):
                resources[name] = Word(resource, telling)
    devices = {
        DeviceKey(name, device): told
        for name, word in resources.items()
        for device, told in word.resource.devices.items()
    }
    return Advertised(kept, MappingProxyType(devices), MappingProxyType(resources))


def _weight(word: Word) -> tuple[bool, bool, bool]:
    return word.telling.answers, word.resource.served, word.resource.registered
