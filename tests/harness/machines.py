"""Parts of machines as sysfs shows them, put into a host tree: PCI functions and what is on them."""

from dataclasses import dataclass

from harness.hosttree import HostTree

BUS = "/sys/bus/pci"


@dataclass(frozen=True, slots=True)
class Machine:
    """Builds in `tree` as the kernel lays it out: directories below /sys/devices, links in bus and class."""

    tree: HostTree

    def function(
        self,
        address: str,
        vendor: str,
        device: str,
        code: str,
        *,
        driver: str = "",
        numa: int | None = 0,
        below: str = "/sys/devices/pci0000:00",
    ) -> str:
        """A PCI function; `code` is its class. Returns its directory."""
        path = f"{below}/{address}"
        self.tree.files(path, vendor=f"0x{vendor}", device=f"0x{device}", revision="0x01")
        self.tree.file(f"{path}/class", f"0x{code}\n")
        self.tree.files(path, subsystem_vendor=f"0x{vendor}", subsystem_device="0x0001")
        if numa is not None:
            self.tree.files(path, numa_node=numa)
        self.tree.link(f"{BUS}/devices/{address}", path)
        if driver:
            self.bind(address, path, driver)
        return path

    def bind(self, address: str, path: str, driver: str) -> None:
        """Bind a driver to a function that has none."""
        self.tree.directory(f"{BUS}/drivers/{driver}")
        self.tree.link(f"{path}/driver", f"{BUS}/drivers/{driver}")
        self.tree.link(f"{BUS}/drivers/{driver}/{address}", path)

    def unbind(self, address: str, path: str) -> None:
        """Take a function's driver away."""
        driver = (self.tree.root / path.lstrip("/") / "driver").readlink().name
        (self.tree.root / f"{path}/driver".lstrip("/")).unlink()
        (self.tree.root / f"{BUS}/drivers/{driver}/{address}".lstrip("/")).unlink()

    def virtual(self, physical: str, path: str, index: int) -> None:
        """Make the function at `path` the virtual one of this index of that at `physical`."""
        self.tree.link(f"{path}/physfn", physical)
        self.tree.link(f"{physical}/virtfn{index}", path)
        count = self.tree.at(f"{physical}/sriov_numvfs")
        self.tree.file(
            f"{physical}/sriov_numvfs",
            f"{max(index + 1, _number(count.read_text()) if count.exists() else 0)}\n",
        )

    def iommu_group(self, path: str, group: int, name: str = "") -> None:
        """Put a function into an IOMMU group, with the node of a VFIO driver."""
        at = f"/sys/kernel/iommu_groups/{group}"
        self.tree.directory(at)
        if name:
            self.tree.files(at, name=name)
        self.tree.link(f"{path}/iommu_group", at)

    def interface(self, name: str, path: str, *, kind: int = 1, **files: str | int) -> str:
        """A network interface of the device at `path`; returns its directory."""
        at = f"{path}/net/{name}"
        self.tree.files(at, type=kind, **files)
        self.tree.link(f"/sys/class/net/{name}", at)
        if not path.startswith("/sys/devices/virtual"):
            self.tree.link(f"{at}/device", path)
        return at

    def routes(self, *interfaces: str, six: tuple[str, ...] = ()) -> None:
        """The host's default routes."""
        lines = [f"{name}\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" for name in interfaces]
        lines.append("eth9\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n")
        self.tree.file("/proc/1/net/route", "Iface\tDestination\tGateway\n" + "".join(lines))
        zero = "0" * 32
        table = [f"{zero} 00 {zero} 00 {zero} 00000400 1 0 00000003 {name}\n" for name in six]
        table.append(f"{zero} 00 {zero} 00 {zero} ffffffff 1 0 00200200       lo\n")
        self.tree.file("/proc/1/net/ipv6_route", "".join(table))

    def rdma(
        self, name: str, path: str, number: int, *, layer: str = "Ethernet", state: str = "4: ACTIVE"
    ) -> None:
        """An RDMA device on the function at `path`, with the nodes of this number."""
        at = f"{path}/infiniband/{name}"
        self.tree.files(f"{at}/ports/1", state=state, link_layer=layer)
        self.tree.files(at, node_guid="0002:c903:00f9:bfa0", fw_ver="16.35.2000", board_id="MT_0000000011")
        self.tree.link(f"{at}/device", path)
        self.tree.link(f"/sys/class/infiniband/{name}", at)
        for kind, node in (("verbs", "uverbs"), ("mad", "umad"), ("mad", "issm")):
            self.tree.files(f"{path}/infiniband_{kind}/{node}{number}", ibdev=name)
            self.tree.file(f"/dev/infiniband/{node}{number}")
        self.tree.file("/dev/infiniband/rdma_cm")

    def card(self, number: int, path: str, *, render: int | None = 128) -> None:
        """A graphics card on the device at `path`, with its nodes and links in /dev/dri."""
        nodes = [f"card{number}", *([f"renderD{render}"] if render is not None else [])]
        for node in nodes:
            self.tree.directory(f"{path}/drm/{node}")
            self.tree.link(f"{path}/drm/{node}/device", path)
            self.tree.link(f"/sys/class/drm/{node}", f"{path}/drm/{node}")
            self.tree.file(f"/dev/dri/{node}")
            self.tree.link(
                f"/dev/dri/by-path/pci-{path.rpartition('/')[2]}-{node.rstrip('0123456789D')}",
                f"/dev/dri/{node}",
            )
        self.tree.directory(f"{path}/drm/card{number}-DP-1")
        self.tree.link(f"/sys/class/drm/card{number}-DP-1", f"{path}/drm/card{number}-DP-1")

    def compute_node(self, number: int, **properties: int) -> None:
        """A node of AMD's compute driver."""
        at = f"/sys/class/kfd/kfd/topology/nodes/{number}"
        lines = "".join(f"{key} {value}\n" for key, value in properties.items())
        self.tree.file(f"{at}/properties", lines)
        self.tree.files(at, gpu_id=1000 + number)
        self.tree.file("/dev/kfd")


def _number(text: str) -> int:
    return int(text.strip())
