"""What a device is, by the names that all programs share: UUID and PCI address, model and driver. Pure.

A device id is a name between the kubelet and a plugin, or a driver and the scheduler. The identity is of the
physical device or its partition, and joins what different programs say about it: DCGM's metrics, a plugin and
a DRA driver that both give one GPU.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from exporter.mapping.device_ids import DeviceKind, read_id
from exporter.mapping.model import AdvertisedDevice, Claimed, Device, DeviceKey
from exporter.mapping.physical_ids import gpu_uuid, pci_address, uuid

_BEGINS: Final = re.compile(r"GPU-|MIG-|[0-9a-fA-F]{4,8}:")
"""How a UUID of a GPU and a PCI address begin."""


class DeviceIdentity(NamedTuple):
    """A physical device, or a partition of one; "" for what is not known.

    `uuid` is the partition's own. `pci_address`, as the kernel writes it, is that of the PCI function, which
    all partitions share. `driver` is the DRA driver of a claimed device, else the kernel's.
    """

    uuid: str = ""
    pci_address: str = ""
    model: str = ""
    driver: str = ""


def identity_of(device: Device, reported: AdvertisedDevice | None) -> DeviceIdentity | None:
    """The identity of a device that its plugin reports as `reported`; None if nothing is known.

    For each part the first that is known counts: what the plugin reports, the device's id and its parent, the
    ResourceSlice, the CDI specification. Replicas have the identity of their physical device.
    """
    by_id = _by_id(device)
    attributes = () if reported is None else reported.attributes
    if not attributes and device.claimed is None:
        return by_id
    found = [_by_attributes(dict(attributes))] if attributes else []
    found += [by_id] if by_id is not None else []
    found += [] if device.claimed is None else _by_claim(device.claimed)
    identity = found[0]
    for more in found[1:]:
        identity = DeviceIdentity(*[part or other for part, other in zip(identity, more, strict=True)])
    return identity if any(identity) else None


def is_partition(device: Device, reported: AdvertisedDevice | None, identity: DeviceIdentity) -> bool:
    """Whether the device is a part of the PCI function whose address `identity` has."""
    attributes = {} if reported is None else dict(reported.attributes)
    if identity.uuid.startswith("MIG-") or any(attributes.get(name) for name in ("partition", "gi")):
        return True
    reading = read_id(device.key.device, device.key.resource)
    return bool(device.parent) and (reading.kind is not DeviceKind.REPLICA or bool(reading.partition))


def same_physical(
    devices: Iterable[Device], reported: Mapping[DeviceKey, AdvertisedDevice]
) -> list[Sequence[Device]]:
    """Groups of devices that are one physical device, where both plugins and DRA drivers give it away: by
    UUID, or by the PCI address of devices that are no partitions.
    """
    both = list(devices)
    if len({one.claimed is None for one in both}) < 2:
        return []
    found: list[tuple[Device, str, str]] = []
    for device in both:
        report = reported.get(device.key)
        identity = identity_of(device, report)
        if identity is not None:
            part = is_partition(device, report, identity)
            found.append((device, identity.uuid, "" if part else identity.pci_address))
    # A UUID and an address name one device as soon as one program knows both.
    addresses = {unique: address for _, unique, address in found if unique and address}
    groups: dict[str, list[Device]] = {}
    for device, unique, address in found:
        groups.setdefault(address or addresses.get(unique, unique), []).append(device)
    groups.pop("", None)
    return [tuple(group) for group in groups.values() if len({one.claimed is None for one in group}) > 1]


def _by_id(device: Device) -> DeviceIdentity | None:
    """The identity that the id has; a replica `ID::3` has that of ID."""
    name, parent = device.key[1], device.parent
    if _BEGINS.match(name) is None and (not parent or _BEGINS.match(parent) is None):
        return None  # nearly always, and of thousands of devices
    physical, separator, number = name.rpartition("::")
    if separator and number.isdigit():
        name = physical
    unique, address = gpu_uuid(name), pci_address(name) or pci_address(parent)
    return DeviceIdentity(unique, address) if unique or address else None


def _by_attributes(attributes: Mapping[str, str]) -> DeviceIdentity:
    """The identity by a plugin's attributes (docs/configuration.md: those of each source)."""
    addresses = (pci_address(attributes.get(name, "")) for name in ("address", "pci_address", "device_name"))
    return DeviceIdentity(
        _stated(attributes.get("uuid", "")),
        next(filter(None, addresses), ""),
        attributes.get("model") or attributes.get("product_name", ""),
        attributes.get("driver", ""),
    )


def _by_claim(claimed: Claimed) -> list[DeviceIdentity]:
    """The identities by the ResourceSlice and by the CDI specification."""
    found = [DeviceIdentity(driver=claimed.name.driver)]
    device, cdi = claimed.published, claimed.cdi
    if device is not None:
        found.append(DeviceIdentity(_stated(device.uuid), pci_address(device.pci_address), device.model))
    if cdi is not None:
        # Several belong to a device that stands for all; a partition's container may see the whole GPU's.
        unique = cdi.uuids[0] if len(cdi.uuids) == 1 else ""
        if device is not None and device.parent and unique.startswith("GPU-"):
            unique = ""
        found.append(DeviceIdentity(unique, cdi.pci_addresses[0] if len(cdi.pci_addresses) == 1 else ""))
    return found


def _stated(text: str) -> str:
    """A text that is said to be a UUID, in the usual form if it has one."""
    return uuid(text) or text if text else ""
