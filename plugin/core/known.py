"""What is known of a resource's devices: words for the inventory and for those who read it."""

from dataclasses import dataclass

from plugin.core.device import Device


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: `wall` in seconds since 1970 for people, `steady` for measuring."""

    wall: float
    steady: float


@dataclass(frozen=True, slots=True)
class Sighting:
    """A device as discovery and health see it now; `reason` says why it is unhealthy, empty: healthy."""

    device: Device
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """A device that is advertised. `since`: wall time of its last change of health.

    `vanished`: steady time since when discovery does not find it; None while it does.
    """

    device: Device
    reason: str
    since: float
    vanished: float | None = None

    @property
    def healthy(self) -> bool:
        """Whether it is advertised as healthy."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class Advertised:
    """One entry of the list that the kubelet sees: a device, or one of its replicas."""

    id: str
    known: Known


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is gone and still advertised: a device with all its ids, or the single id of an orphan.

    Told apart because an orphan, from another configuration, may be called as a device is now.
    """

    id: str
    orphan: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """A device's change of health, or its first appearance (`new`)."""

    id: str
    healthy: bool
    reason: str
    new: bool = False
