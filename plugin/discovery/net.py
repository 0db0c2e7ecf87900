"""The source `net`: network functions of the PCI bus, and on request interfaces without one."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from msgspec import UNSET

from plugin.config import selectors
from plugin.config.model import Net
from plugin.discovery.host import HostRoot
from plugin.discovery.network import SUBSYSTEMS, Interface, Interfaces, RdmaDevice, RdmaDevices
from plugin.discovery.pci_bus import DEVICES, PCI_ATTRIBUTES, Function, FunctionFilter, PciBus, driver_nodes
from plugin.discovery.source import Findings, Found
from plugin.discovery.sysfs_tree import MAX_JOINED, Sysfs, clean
from plugin.names import natural

_NETWORK_CLASS: Final = "02"
_LINK_TYPES: Final[Mapping[str, str]] = {"0200": "ether", "0207": "infiniband"}
_FOLLOWED: Final = (("/dev/vfio", "*"), ("/dev/infiniband", "*"))
_USB_PORT: Final = re.compile(r"\d+-\d+(\.\d+)*", re.ASCII)
_SUBSYSTEMS: Final = SUBSYSTEMS | {"pci", "net", "vfio", "uio"}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a function's interface and RDMA device were when they were in the host's namespace.

    Both go with the pod that they are given to, and come back: what was seen stays true of the
    function for as long as it keeps its driver.
    """

    driver: str
    interfaces: tuple[str, ...] = ()
    link_type: str = ""
    rdma: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    uverbs: str = ""
    umad: str = ""
    issm: str = ""


class NetSource:
    """The functions and interfaces that `written` selects."""

    def __init__(self, written: Net) -> None:
        self._written = written
        self._filter = FunctionFilter(written, with_vfs=written.with_vfs, classes=(_NETWORK_CLASS,))
        self._other = FunctionFilter(written)
        self._seen: dict[str, _Seen] = {}

    def scan(self, host: HostRoot) -> Findings:
        """Everything as it is now. Raises OSError where the host's default route cannot be known."""
        look = self._look(host)
        candidates: list[Found] = []
        notes: list[str] = []
        if "pci" in self._written.kinds:
            try:
                addresses = frozenset(look.bus.addresses())
            except FileNotFoundError:
                addresses = frozenset()
                notes.append(f"{DEVICES} is not there")
            candidates += look.functions(addresses)
            self._seen = {address: seen for address, seen in self._seen.items() if address in addresses}
        if {"hardware", "virtual"} & set(self._written.kinds):
            candidates += look.others()
        found: list[Found] = []
        for item in sorted(candidates, key=lambda item: natural(item.name)):
            reason = look.in_use(item)
            if reason:
                notes.append(f"{clean(item.name)} is left out: {reason}")
            else:
                found.append(item)
        if not found and not notes:
            notes.append("no network function or interface is selected")
        return Findings(tuple(found), _FOLLOWED, tuple(notes), _SUBSYSTEMS)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The function or interface as it is now; None where it is gone or not selected any more."""
        look = self._look(host)
        if selectors.ADDRESS.fullmatch(found.name):
            now = look.function(found.name)
        else:
            interface = look.interfaces.one(found.name)
            now = None if interface is None else look.other(interface)
        reason = look.in_use(now) if now is not None else ""
        return now if now is None or not reason else replace(now, absent=reason)

    def _look(self, host: HostRoot) -> "_Look":
        return _Look(host, self._written, (self._filter, self._other), self._seen)


class _Look:
    """One look at the host; `seen` is brought up to date."""

    def __init__(
        self,
        host: HostRoot,
        written: Net,
        filters: tuple[FunctionFilter, FunctionFilter],
        seen: dict[str, _Seen],
    ) -> None:
        sysfs = Sysfs(host)
        self.bus = PciBus(sysfs)
        self.interfaces = Interfaces(sysfs)
        self._rdma = RdmaDevices(self.bus)
        self._written = written
        self._wanted, self._other = filters
        self._seen = seen
        self._in_use: frozenset[str] | None = frozenset() if written.default_route else None

    def functions(self, addresses: Iterable[str]) -> Iterator[Found]:
        """The selected ones of the functions at `addresses`."""
        for address in addresses:
            found = self.function(address)
            if found is not None:
                yield found

    def function(self, address: str) -> Found | None:
        """The function at an address, where it is selected."""
        function = self.bus.function(address)
        if function is None or not self._wanted.holds(self.bus, function, self.interfaces.of_physical):
            return None
        written = self._written
        now = self._now(function)
        if (
            not selectors.any_matches(written.interfaces, now.interfaces)
            or not selectors.any_matches(written.link_types, (now.link_type,))
            or (written.rdma is not UNSET and written.rdma != bool(now.rdma))
        ):
            return None
        attributes = {
            **self.bus.attributes(function, self.interfaces.of_physical),
            **_interface_attributes("pci", now),
        }
        nodes = driver_nodes(attributes)
        if written.rdma is True:
            nodes = (*nodes, *now.nodes, *self._rdma.connection_manager())
        return Found(
            function.address,
            attrs=attributes,
            nodes=tuple(sorted(nodes, key=natural)),
            sysfs=function.directory.path,
            claim=function.claim,
        )

    def others(self) -> Iterator[Found]:
        """The selected ones of the interfaces that are on no PCI function."""
        for interface in self.interfaces.all():
            found = self.other(interface)
            if found is not None:
                yield found

    def other(self, interface: Interface) -> Found | None:
        """An interface that is on no PCI function, where it is selected."""
        written = self._written
        if interface.kind == "pci" or interface.kind not in written.kinds or not self._other.is_open:
            return None
        now = _Seen("", (interface.name,), interface.link_type())
        if (
            written.rdma is True
            or not selectors.any_matches(written.interfaces, now.interfaces)
            or not selectors.any_matches(written.link_types, (now.link_type,))
        ):
            return None
        return Found(
            interface.name,
            attrs={**dict.fromkeys(PCI_ATTRIBUTES, ""), **_interface_attributes(interface.kind, now)},
            sysfs=interface.directory.path,
            claim=_claim(interface),
        )

    def in_use(self, found: Found) -> str:
        """Why it cannot be given away: the host's own way out goes through it; empty where it can.

        Raises OSError where the host does not tell its routes: the wrong guess costs the node.
        """
        names = self.interfaces.of_physical(found.name)
        if found.attrs["kind"] != "pci":
            names = (found.name,)
        if not names:
            return ""
        if self._in_use is None:
            try:
                self._in_use = self.interfaces.with_default_route()
            except OSError as error:
                advice = "whose is the host's default route? Its /proc is needed, or default_route: true"
                raise OSError(error.errno, f"{error.strerror}: {advice}", error.filename) from error
        busy = [name for name in names if name in self._in_use]
        owner = "it" if found.name in busy else clean(next(iter(busy), ""))
        return f"{owner} has the host's default route" if busy else ""

    def _now(self, function: Function) -> _Seen:
        """What is to be seen of a function's interfaces, and of what is not, what was last seen."""
        before = self._seen.get(function.address)
        if before is None or before.driver != function.driver:
            before = _Seen(function.driver)
        interfaces = self.interfaces.of(function.address)
        devices = self._rdma.of(function)
        now = _Seen(
            function.driver,
            tuple(i.name for i in interfaces) or before.interfaces,
            next((t for i in interfaces if (t := i.link_type())), "") or before.link_type,
            tuple(d.name for d in devices) or before.rdma,
            tuple(n for d in devices for n in d.nodes) if devices else before.nodes,
            _node(devices, "uverbs") if devices else before.uverbs,
            _node(devices, "umad") if devices else before.umad,
            _node(devices, "issm") if devices else before.issm,
        )
        self._seen[function.address] = now
        return now if now.link_type else replace(now, link_type=self._assumed_link_type(function, devices))

    def _assumed_link_type(self, function: Function, devices: tuple[RdmaDevice, ...]) -> str:
        """Of a function whose interface was never seen: its RDMA port's, its physical function's."""
        of_port = next((t for device in devices if (t := device.link_type())), "")
        of_physical = next((t for i in self.interfaces.of(function.pf) if (t := i.link_type())), "")
        return of_port or of_physical or _LINK_TYPES.get(function.class_code[:4], "")


def _node(devices: tuple[RdmaDevice, ...], kind: str) -> str:
    return next((node for device in devices if (node := device.node(kind))), "")


def _claim(interface: Interface) -> str:
    """What names an interface without a function among the devices of all resources."""
    ports = [part for part in interface.directory.path.split("/") if _USB_PORT.fullmatch(part)]
    return f"usb:{ports[-1]}" if ports else f"net:{interface.name}"


def _interface_attributes(kind: str, now: _Seen) -> dict[str, str]:
    return {
        "kind": kind,
        "interface": clean(next(iter(now.interfaces), "")),
        "interfaces": clean(",".join(now.interfaces), MAX_JOINED),
        "link_type": now.link_type,
        "rdma": ",".join(now.rdma),
        "uverbs": now.uverbs,
        "umad": now.umad,
        "issm": now.issm,
    }
