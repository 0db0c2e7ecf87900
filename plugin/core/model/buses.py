"""Sources that walk sysfs by bus and class: pci, net, infiniband, drm, kfd.

Their attributes are always there, empty where the host does not tell them. Ids are written with or
without `0x`; names and addresses may be patterns. Every list that is given must hold; one that is not
given holds for all.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from plugin.core import selectors
from plugin.core.errors import Path, quoted
from plugin.core.model.common import Texts, unfit

NetKind = Literal["pci", "hardware", "virtual"]
_Check = Callable[[str], str | None]

_FUNCTION_CHECKS: Mapping[str, _Check] = {
    "vendors": selectors.vendor_problem,
    "devices": selectors.vendor_problem,
    "drivers": selectors.name_problem,
    "addresses": selectors.address_problem,
    "pf_drivers": selectors.name_problem,
    "pf_names": selectors.physical_name_problem,
    "pf_addresses": selectors.physical_address_problem,
}


def _pci_alone() -> list[NetKind]:
    return ["pci"]


class Functions(Struct, frozen=True, forbid_unknown_fields=True):
    """What selects the PCI function that a device sits on."""

    vendors: Texts = []
    """PCI vendors: `8086`."""
    devices: Texts = []
    """PCI devices: `1889`."""
    drivers: Texts = []
    """Names of the drivers that are bound, or patterns: `vfio-pci`, `mlx5*`."""
    addresses: Texts = []
    """PCI addresses or patterns: `0000:3b:00.0`, `3b:00.0`, `0000:3b:*`."""
    functions: Literal["all", "physical", "virtual"] = "all"
    """Physical functions alone, virtual ones (SR-IOV) alone, or both."""
    pf_names: Texts = []
    """Virtual functions of the physical ones with these interfaces; some of them: `eth0#0-3,5`."""
    pf_addresses: Texts = []
    """Virtual functions of the physical ones at these addresses; some of them: `3b:00.0#0-3,5`."""
    pf_drivers: Texts = []
    """Virtual functions of the physical ones with these drivers."""

    checks: ClassVar[Mapping[str, _Check]] = _FUNCTION_CHECKS

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below the source's key, what is wrong)."""
        for key, check in self.checks.items():
            texts: list[str] = getattr(self, key)
            for index, text in enumerate(texts):
                yield from unfit(text, check(text), key, index)
                if text in texts[:index]:
                    yield (key, index), f"found {quoted(text)} a second time"
        if self.functions == "physical":
            for key in ("pf_names", "pf_addresses", "pf_drivers"):
                if getattr(self, key):
                    yield (key,), f"found {key}, which select virtual functions, beside functions: physical"


class Pci(Functions, frozen=True, forbid_unknown_fields=True):
    """PCI functions, named by their addresses.

    Attributes: `address`, `vendor`, `device`, `class`, `subsystem_vendor`, `subsystem_device`, `revision`
    (lower-case hexadecimal digits without 0x), `driver`, `iommu_group`; `vfio` and `uio`, the node of
    its VFIO group or of its UIO device while such a driver is bound, `vfio_device`, its own VFIO node;
    `vfs`, how many virtual functions are enabled; for a virtual one `pf`, the physical one's address,
    `vf`, its index, `pf_driver` and `pf_name`, that one's driver and interface; `acpi_index`, `label`.

    Nodes: the VFIO group with /dev/vfio/vfio, or the UIO device.
    """

    classes: Texts = []
    """The first two, four or all six digits of PCI classes: `03`, `0x030200`."""
    with_vfs: bool = False
    """Also physical functions that have virtual ones enabled, through which they are given out."""

    checks: ClassVar[Mapping[str, _Check]] = {**_FUNCTION_CHECKS, "classes": selectors.class_problem}


class Net(Functions, frozen=True, forbid_unknown_fields=True):
    """Network functions, named by their PCI addresses, and on request interfaces without one.

    A function counts with an interface or without, as those that are bound to vfio-pci, and keeps
    counting when its interface has been moved into a pod's namespace: its name and link type are then
    the last that were seen. An interface that has the host's default route, itself or through a bond,
    bridge or VLAN above it, is left out. For that the host's /proc and /sys must be below the host root,
    where they show the host's own network: the plugin needs neither hostNetwork nor hostPID.

    Attributes: those of `pci`, and `interface`, the interface's name, `interfaces`, all of them, joined
    by commas; `link_type`: ether, infiniband, or the kernel's number; `rdma`, `uverbs`, `umad`, `issm`,
    the RDMA device and its nodes; `kind`, the one of `kinds` that it is.

    Nodes: as for `pci`; where `rdma: true` is asked for those of its RDMA device and /dev/infiniband/rdma_cm.
    """

    interfaces: Texts = []
    """Names of interfaces or patterns: `ens3f0`, `eth*`."""
    link_types: Texts = []
    """`ether`, `infiniband`, or other numbers as /sys/class/net/NAME/type has them."""
    rdma: bool | UnsetType = UNSET
    """Those with an RDMA device alone, or those without."""
    with_vfs: bool = False
    """Also physical functions that have virtual ones enabled, through which they are given out."""
    default_route: bool = False
    """Also interfaces that have the host's default route."""
    kinds: Annotated[list[NetKind], Meta(min_length=1, max_length=3)] = field(default_factory=_pci_alone)
    """PCI functions; `hardware` on other buses; `virtual` interfaces (dummy, veth, VLAN, …), by name."""

    checks: ClassVar[Mapping[str, _Check]] = {
        **_FUNCTION_CHECKS,
        "interfaces": selectors.name_problem,
        "link_types": selectors.name_problem,
    }


class Infiniband(Functions, frozen=True, forbid_unknown_fields=True):
    """InfiniBand and RoCE devices of /sys/class/infiniband, each joined with its network interface.

    Attributes: those of `pci` for the function that the device is on, and `rdma`, the device's name,
    `interface`, `interfaces`, `link_type` (ether, infiniband), `ports`, their count, `states`, such as
    `ACTIVE` or `ACTIVE,DOWN`, `node_guid`, `board`, `firmware`, `uverbs`, `umad`, `issm`.

    Nodes: its own in /dev/infiniband and rdma_cm; for `together` those of all.
    """

    names: Texts = []
    """Names of devices or patterns: `mlx5_0`, `mlx5_*`."""
    interfaces: Texts = []
    """Names of network interfaces or patterns: `ib0`, `ens3f*`."""
    link_types: Texts = []
    """`ether`, `infiniband`."""
    together: bool = False
    """One device, named `all`, that stands for all of them while there is one at least.

    Its attributes are `devices`, `interfaces` and `addresses`, each joined by commas.
    """

    checks: ClassVar[Mapping[str, _Check]] = {
        **_FUNCTION_CHECKS,
        "names": selectors.name_problem,
        "interfaces": selectors.name_problem,
        "link_types": selectors.name_problem,
    }


class Drm(Functions, frozen=True, forbid_unknown_fields=True):
    """Graphics cards of /sys/class/drm with their render nodes, named as `card0`.

    Attributes: those of `pci` for the function that the card is on, and `card`, its number, `render`,
    the render node's path, `render_minor`, its number, `device_name`, what the card's device is called
    in sysfs: the PCI address, or another bus's name.

    Nodes: /dev/dri/cardN and /dev/dri/renderDN.
    """

    names: Texts = []
    """Names of cards or patterns: `card0`."""
    with_vfs: bool = False
    """Also physical functions that have virtual ones enabled, through which they are given out."""

    checks: ClassVar[Mapping[str, _Check]] = {**_FUNCTION_CHECKS, "names": selectors.name_problem}


class Kfd(Functions, frozen=True, forbid_unknown_fields=True):
    """AMD's compute nodes of /sys/class/kfd, whole devices and partitions, with their render nodes.

    Named by the PCI address, a partition as its platform device, `amdgpu_xcp_1`. The driver tells them
    only to who may use them: the plugin must be privileged.

    Attributes: those of `drm`, for a partition those of the function that it is a part of, and
    `partition`, the platform device's name; `kfd_node`, the node's number, `gpu_id`, `gfx` (`gfx942`),
    `simd_count`, `unique_id` (hexadecimal), `compute_partition`, `memory_partition` (`spx`, `nps1`).

    Nodes: /dev/kfd, /dev/dri/cardN and /dev/dri/renderDN.
    """

    partitions: bool | UnsetType = UNSET
    """Partitions alone, or whole devices alone; both if left out."""
