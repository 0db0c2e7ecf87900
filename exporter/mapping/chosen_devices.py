"""Which physical devices the holders of plugins' devices use, where another scheduler chose them. Pure.

HAMi and Volcano: the kubelet allocates any of many ids, the plugin's Allocate gives the container the device
of the pod's annotation (scheduler_annotations), and the id says nothing about it. A scheduler chooses the
devices of the resources that offer a chosen device: as a device, as a device's parent, or by an id that is
the chosen one with a number (HAMi: `GPU-<uuid>-3`). What cannot be matched is not provable: a holder is never
shown with another physical device than its own.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from exporter.mapping.dra import NO_DEVICES, ChosenDevice, PodDevices
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import Device, DeviceKey, Holder, PodKey, Snapshot

_SHARE: Final = re.compile(r"(.+)-\d+", re.ASCII | re.DOTALL)


class Choice(NamedTuple):
    """The physical device that a scheduler chose for a holder, by its UUID, and the scheduler. `doubt` says
    why the physical device is not provable, "" if it is; `device` is "" then, and if no scheduler chose one.
    """

    device: str = ""
    scheduler: str = ""
    doubt: str = ""

    def parent(self, device: Device) -> str:
        """The physical device behind `device` for this holder, "" for a whole device and if not provable."""
        if self.doubt:
            return ""
        if not self.device:
            return device.parent
        return "" if self.device == device.key.device else self.device


KUBELETS: Final = Choice()
"""No other scheduler chose: the id names the device."""

Choices = Mapping[DeviceKey, Mapping[Holder, Choice]]
NO_CHOICES: Final[Choices] = MappingProxyType({})


def choices(snapshot: Snapshot, pods: Mapping[PodKey, PodIdentity]) -> Choices:
    """The choices for holders of plugins' devices; NO_CHOICES on a node without such schedulers."""
    known = [(key, one.devices) for key, one in pods.items() if one.devices is not NO_DEVICES]
    deciding = {key: devices for key, devices in known if devices.chosen or devices.unreadable}
    if not deciding:
        return NO_CHOICES
    offered = _offered(snapshot.devices, {one.device for pod in deciding.values() for one in pod.chosen})
    chosen_resources = frozenset[str]().union(*offered.values())
    held: dict[tuple[Holder, str], list[Device]] = {}
    for device in snapshot.devices:
        for holder in device.holders if device.claimed is None else ():
            unidentified = device.key.resource in chosen_resources and holder[:2] not in pods
            if holder[:2] in deciding or unidentified:
                held.setdefault((holder, device.key.resource), []).append(device)
    found: dict[DeviceKey, dict[Holder, Choice]] = {}
    for (holder, resource), devices in held.items():
        pod = deciding.get(holder[:2])
        if pod is None:
            doubt = f"which pod this is is not known, and other schedulers choose devices of {resource}"
            of = _doubted(devices, doubt)
        else:
            of = _of_holder(holder, resource, devices, pod, offered)
        for key, choice in of.items():
            found.setdefault(key, {})[holder] = choice
    return found


def _names(device: Device) -> tuple[str, ...]:
    """The physical devices that a device may be a share of, by its parent and its id."""
    share = _SHARE.fullmatch(device.key.device)
    return device.parent, device.key.device, "" if share is None else share[1]


def _offered(devices: Iterable[Device], chosen: set[str]) -> dict[str, set[str]]:
    """The resources that offer each of the `chosen` devices."""
    found: dict[str, set[str]] = {}
    for device in devices:
        if device.claimed is None:
            for name in chosen.intersection(_names(device)):
                found.setdefault(name, set()).add(device.key.resource)
    return found


def _of_holder(
    holder: Holder,
    resource: str,
    devices: Sequence[Device],
    pod: PodDevices,
    offered: Mapping[str, set[str]],
) -> Mapping[DeviceKey, Choice]:
    """The choices for the devices of one resource that one container holds; none where the kubelet chose."""
    chosen = [one for one in pod.chosen if one.container == holder.container]
    mine = [one for one in chosen if resource in offered.get(one.device, ())]
    foreign = [one for one in chosen if one.device not in offered]
    doubt = ""
    if pod.unreadable:
        doubt = f"the pod's annotation {pod.unreadable} cannot be read"
    elif foreign:
        doubt = f"{foreign[0].scheduler} chose {foreign[0].device}, which no resource of the node offers"
    elif len(mine) not in {0, len(devices)}:
        doubt = f"{mine[0].scheduler} chose {len(mine)} devices, and the container holds {len(devices)}"
    elif not mine and any(resource in resources for resources in offered.values()):
        doubt = f"other schedulers choose devices of {resource}, and none is chosen for the container"
    if doubt:
        return _doubted(devices, doubt)
    return _paired(devices, mine)


def _doubted(devices: Sequence[Device], doubt: str) -> Mapping[DeviceKey, Choice]:
    return dict.fromkeys([device.key for device in devices], Choice(doubt=doubt))


def _paired(devices: Sequence[Device], chosen: list[ChosenDevice]) -> Mapping[DeviceKey, Choice]:
    """A chosen device for each, its own where that is chosen. The others in their order: the ids are
    exchangeable, and the container has all that are chosen.
    """
    left, found = list(chosen), dict[DeviceKey, ChosenDevice]()
    for device in devices if left else ():
        own = next((one for one in left if one.device in _names(device)), None)
        if own is not None:
            left.remove(own)
            found[device.key] = own
    for device in devices if left else ():
        if device.key not in found:
            found[device.key] = left.pop(0)
    return {key: Choice(one.device, one.scheduler) for key, one in found.items()}
