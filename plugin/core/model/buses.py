"""Sources that walk sysfs by bus and class: pci, net, infiniband, drm, kfd."""

from msgspec import Struct

from plugin.core.model.common import Texts


class Pci(Struct, frozen=True, forbid_unknown_fields=True):
    """PCI functions. Every list that is given must hold; an empty one holds for all."""

    vendors: Texts = []
    devices: Texts = []
    classes: Texts = []
    drivers: Texts = []
    addresses: Texts = []


class Net(Struct, frozen=True, forbid_unknown_fields=True):
    """Network functions and interfaces."""

    interfaces: Texts = []


class Infiniband(Struct, frozen=True, forbid_unknown_fields=True):
    """InfiniBand and RoCE devices of /sys/class/infiniband, each joined with its network interface."""

    devices: Texts = []


class Drm(Struct, frozen=True, forbid_unknown_fields=True):
    """Graphics cards of /sys/class/drm with their render nodes."""

    vendors: Texts = []
    drivers: Texts = []


class Kfd(Struct, frozen=True, forbid_unknown_fields=True):
    """AMD's compute nodes, whole devices and partitions, with their render nodes."""
