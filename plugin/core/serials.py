"""Devices called by their serial numbers, as far as these tell them apart."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Plugged:
    """A device at a port. `serial` is empty where it has none; `kind` tells it from other models."""

    port: str
    kind: tuple[str, str]
    serial: str


@dataclass(slots=True)
class SerialNames:
    """Gives names that stay: a serial number that two devices have is nobody's from then on.

    Only who had it alone before goes on being called by it. Cheap devices have serials such as `0001`, all
    of them; there the port says which is which.
    """

    _owners: dict[str, Plugged] = field(default_factory=dict)
    _doubtful: set[str] = field(default_factory=set)

    def names(self, devices: Sequence[Plugged]) -> dict[str, str]:
        """What each device is called, by its port: its serial number, or the port."""
        by_serial: dict[str, list[Plugged]] = {}
        for device in devices:
            if device.serial:
                by_serial.setdefault(device.serial, []).append(device)
        named = {device.port: device.port for device in devices}
        for serial, rivals in by_serial.items():
            if len(rivals) > 1:
                self._doubtful.add(serial)
            owner = self._owners.get(serial)
            if owner not in rivals:
                if serial in self._doubtful:
                    continue
                owner = self._owners[serial] = rivals[0]
            named[owner.port] = serial
        return named
