"""Which of the host's directories a source looks into, as far as every Linux has them.

Where one of them is not below the host root, it was not mounted: without this a preset in a container would
find no device, and nothing would tell it from a node that has none.
"""

from collections.abc import Iterator
from typing import Final

from plugin.config import model

DEV: Final = "/dev"
BUSES: Final = "/sys/bus"
CLASSES: Final = "/sys/class"
DEVICES: Final = "/sys/devices"
NUMBERS: Final = "/sys/dev"
DRIVERS: Final = "/proc/driver"
ROUTES: Final = "/proc/1/net"

EVERYWHERE: Final = (DEV, BUSES, CLASSES, DEVICES, NUMBERS, DRIVERS, ROUTES)
_LINKS: Final = frozenset({BUSES, CLASSES, NUMBERS})
"""What is in these are links into DEVICES."""


def looked_into(source: model.AnySource) -> frozenset[str]:
    """The directories, as host paths. What a program (`exec`) looks into nobody knows."""
    places = frozenset(place for path in _paths(source) for place in EVERYWHERE if _is_below(path, place))
    return places | {DEVICES} if places & _LINKS else places


def _paths(source: model.AnySource) -> Iterator[str]:  # noqa: C901 -- one case for each source
    match source:
        case model.Files() | model.Regex():
            yield source.directory
        case model.Glob() | model.Sysfs():
            yield from source.paths
        case model.Group():
            yield from (member.path for member in source.members)
        case model.Static():
            yield from (device.path for device in source.devices if isinstance(device.path, str))
        case model.Pci() | model.Usb():
            yield BUSES
        case model.Net():
            yield from (BUSES, CLASSES)
            # So as not to give the node's own way out away.
            if not source.default_route:
                yield ROUTES
        case model.Infiniband() | model.Drm() | model.Kfd():
            yield from (DEV, BUSES, CLASSES)
        case model.Nvidia():
            yield from (DEV, BUSES, DRIVERS)
        case model.Exec():
            pass


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")
