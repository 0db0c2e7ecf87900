"""Kinds of values that several parts of the language share.

Sources that look at paths: files, glob, regex, group; and static, which is told.

Sources that walk sysfs by bus and class: pci, net, infiniband, drm, kfd.

Their attributes are always there, empty where the host does not tell them. Ids are written with or
without `0x`; names and addresses may be patterns. Every list that is given must hold; one that is not
given holds for all.

Sources of their own kind: nvidia, usb, sysfs, exec.

Probes: what must hold for a device to be healthy, and how often it is asked.

What a container gets: allocate, CDI specs, pre_start.

A whole configuration file: its resources.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, ClassVar, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from plugin import names, patterns
from plugin.config import selectors
from runtime.config_file import Path, quoted
from runtime.flags import parse_duration

TemplateText = Annotated[str, Meta(max_length=8192)]
"""A Jinja2 template; the variables that it may use are said where it is used."""
NumaNode = Annotated[int, Meta(ge=0, le=1023)]
"""A NUMA node's number; Linux knows 1024 at most."""
Duration = Annotated[str, Meta(max_length=32)]
"""A time as Prometheus writes it: `500ms`, `20s`, `5m`, `1h30m`."""
Texts = Annotated[list[str], Meta(max_length=256)]
"""A list of names or patterns."""
Command = Annotated[list[TemplateText], Meta(min_length=1, max_length=64)]
"""A program and its arguments; no shell is in between."""


def unfit(text: str, problem: str | None, *path: str | int) -> Iterator[tuple[Path, str]]:
    """What a `problems()` yields of a text at `path` that one of `names`' checks found unfit; or nothing."""
    if problem is not None:
        yield path, f"found {quoted(text)}, {problem}"


class Files(Struct, frozen=True, forbid_unknown_fields=True):
    """Every regular file of a directory is a device, named like the file."""

    directory: str
    """Absolute path on the host."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `files`, what is wrong)."""
        yield from unfit(self.directory, names.path_problem(self.directory), "directory")


class Glob(Struct, frozen=True, forbid_unknown_fields=True):
    """Every path that matches one of the patterns is a device, named by its last component.

    Attributes: `type`, `major`, `minor` of a device node; `target`, where a link leads.

    Nodes: the path, where it is a device node.
    """

    paths: Annotated[list[str], Meta(min_length=1, max_length=64)]
    """Absolute patterns with `*`, `?` and `[…]`, none of which matches a slash."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `glob`, what is wrong)."""
        for index, pattern in enumerate(self.paths):
            yield from unfit(pattern, names.glob_problem(pattern), "paths", index)


class Regex(Struct, frozen=True, forbid_unknown_fields=True):
    """Every entry of a directory whose whole name matches is a device.

    Named by its path below the directory: `video0`, `snd/controlC0`. Directories are looked into, as deep
    as asked for, and are no devices themselves; neither are links that lead nowhere.

    Attributes: one for each named group of the pattern, empty where it took no part; `type`, `major`,
    `minor` of a device node; `target`, where a link leads.

    Nodes: the path, where it is a device node.
    """

    pattern: str
    """A regular expression for the whole path below the directory; repeats in repeats are refused."""
    directory: str = "/dev"
    """Absolute path on the host."""
    depth: Annotated[int, Meta(ge=1, le=8)] = 1
    """How many levels are looked at; 1: the directory's own entries alone."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `regex`, what is wrong)."""
        yield from unfit(self.pattern, patterns.pattern_problem(self.pattern), "pattern")
        yield from unfit(self.directory, names.path_problem(self.directory), "directory")


class GroupMember(Struct, frozen=True, forbid_unknown_fields=True):
    """Paths of which each device of the group gets one."""

    path: str
    """Absolute pattern, as in `glob`."""
    name: str | UnsetType = UNSET
    """The attribute that tells the path; `member0` for the first member, and so on, if left out."""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """How many devices may get the same path."""
    optional: bool = False
    """A device is complete without it."""


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """Several paths together are one device: the n-th path of each member makes the n-th device.

    The first member that is not optional and whose paths are not shared names the devices, by the last
    component of its path. A device keeps its paths while they are there. When one of them vanishes, the
    next free path takes its place; while there is none the device stays known, and is absent.

    Attributes: one for each member, its path, empty where an optional one has none.

    Nodes: the paths that are device nodes.
    """

    members: Annotated[list[GroupMember], Meta(min_length=1, max_length=64)]
    """What each device consists of."""
    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """How many times each complete group is a device: `name-0`, `name-1`, …"""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `group`, what is wrong)."""
        seen: set[str] = set()
        for index, member in enumerate(self.members):
            yield from unfit(member.path, names.glob_problem(member.path), "members", index, "path")
            called = f"member{index}" if member.name is UNSET else member.name
            problem = names.attribute_problem(called)
            if problem is None and called in seen:
                problem = "which another member is called"
            yield from unfit(called, problem, "members", index, "name")
            seen.add(called)


class StaticDevice(Struct, frozen=True, forbid_unknown_fields=True):
    """One device that is written down. With a path it is healthy while the path is there."""

    name: Annotated[str, Meta(min_length=1)]
    """Its name, and its id if `id` does not say otherwise."""
    path: str | UnsetType = UNSET
    """Absolute path on the host."""
    numa: NumaNode | UnsetType = UNSET
    """Its NUMA node."""
    attrs: dict[str, str] = {}
    """Its attributes."""


class Static(Struct, frozen=True, forbid_unknown_fields=True):
    """Devices that are written down."""

    devices: Annotated[list[StaticDevice], Meta(min_length=1, max_length=4096)]
    """The devices."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `static`, what is wrong)."""
        seen: set[str] = set()
        for index, device in enumerate(self.devices):
            if device.name in seen:
                yield ("devices", index, "name"), f"found {quoted(device.name)} a second time"
            seen.add(device.name)
            yield from unfit(device.name, names.id_problem(device.name), "devices", index, "name")
            if device.path is not UNSET:
                yield from unfit(device.path, names.path_problem(device.path), "devices", index, "path")


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


RelativePath = Annotated[str, Meta(min_length=1, max_length=512)]
"""A path below a device's directory, or beside it (`../vendor`); `*` and `?` take the first that there is."""
RelativePaths = Annotated[list[RelativePath], Meta(min_length=1, max_length=16)]
"""Several such paths, of which the first that is there counts."""


class Nvidia(Struct, frozen=True, forbid_unknown_fields=True):
    """NVIDIA GPUs, or their MIG slices, by NVML where its library is; else by what the driver shows.

    NVML needs the extra `nvidia` and `libnvidia-ml.so.1`. Without it the driver's files below
    /proc/driver/nvidia tell the same of GPUs, and, of slices, neither UUIDs nor profiles; and where even
    these are not there, /dev/nvidia0 and so on tell that there are GPUs.

    Named by the UUID; where none is known, as `nvidia0` or `nvidia0/gi1`, and `nvidia0/gi1/ci2` for further
    compute instances of a slice.

    Attributes, empty where not known: `uuid`, `minor` (the number of /dev/nvidiaN), `gpu` (`nvidia0`),
    `gpu_uuid`, the UUID of the GPU, which for a slice is its parent's, `model`, `address` (PCI),
    `memory_mib`; `mig`, `enabled` or `disabled`; of a slice also `profile` (`1g.10gb`), `slice`
    (`nvidia0/gi1`), `gi`, `ci`, `gi_minor` and `ci_minor`, the numbers of its nodes in
    /dev/nvidia-caps; `source`: nvml, procfs or nodes.

    Nodes: /dev/nvidiaN; for a slice also its two in /dev/nvidia-caps.
    """

    kind: Literal["gpus", "slices", "both"] = "gpus"
    """Whole GPUs; MIG slices; or the slices of GPUs in MIG mode, and the others whole."""
    library: str | UnsetType = UNSET
    """NVML's library, a host path; where the loader and drivers' installers put it, if left out."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `nvidia`, what is wrong)."""
        if self.library is not UNSET:
            yield from unfit(self.library, names.path_problem(self.library), "library")


def _usb_class_problem(text: str) -> str | None:
    if selectors.hex_id(text) and len(selectors.hex_id(text).lstrip("0")) <= 2:
        return None
    return "expected a USB class: two hexadecimal digits, such as 0e"


def _serial_problem(text: str) -> str | None:
    if text and len(text) <= selectors.MAX_PATTERN and text.isprintable():
        return None
    return f"expected a serial number or a pattern of at most {selectors.MAX_PATTERN} printable characters"


def _port_problem(text: str) -> str | None:
    if text and set(text) <= set("0123456789-.*?[]!"):
        return None
    return "expected a USB port or a pattern: 1-1.2, 1-*"


_USB_CHECKS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "vendors": selectors.vendor_problem,
    "products": selectors.vendor_problem,
    "serials": _serial_problem,
    "ports": _port_problem,
    "classes": _usb_class_problem,
    "with_nodes": selectors.name_problem,
}


class Usb(Struct, frozen=True, forbid_unknown_fields=True):
    """USB devices with their child nodes; hubs are none. Every list that is given must hold.

    Named by the serial number, so that a device is the same after it was plugged in elsewhere; by the
    port's path (`1-1.2`) where it has none, or one that another device has too.

    Attributes, empty where not known: `vendor`, `product` (four hexadecimal digits), `serial`,
    `manufacturer`, `product_name`, `port`, `bus`, `address` (numbers of the bus and on it), `class`,
    `classes`, those of its interfaces joined by commas, `speed` (Mbit/s), `drivers`; and for each kind of
    child node the paths, joined by commas: `tty`, `input`, `video4linux`, `hidraw`, `sound`, `block`,
    `net` (names of interfaces).

    Nodes: /dev/bus/usb/BBB/DDD and those of its children, as they are at Allocate.
    """

    vendors: Texts = []
    """Ids with or without 0x: `0403`."""
    products: Texts = []
    """Ids with or without 0x: `6001`."""
    serials: Texts = []
    """Serial numbers or patterns."""
    ports: Texts = []
    """Paths of ports or patterns: `1-1.2`, `1-*`."""
    classes: Texts = []
    """Classes of the device or of one of its interfaces: `0e` for video, `03` for HID, `08` for storage."""
    with_nodes: Texts = []
    """Kinds of child nodes of which it must have one: `tty`, `video4linux`."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `usb`, what is wrong)."""
        for key, check in _USB_CHECKS.items():
            texts: list[str] = getattr(self, key)
            for index, text in enumerate(texts):
                yield from unfit(text, check(text), key, index)
                if text in texts[:index]:
                    yield (key, index), f"found {quoted(text)} a second time"


class SysfsFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file, or a link's target, that says whether a directory is a device."""

    file: RelativePath
    """The file."""
    equals: str | UnsetType = UNSET
    """What it must say, white space at its ends left out."""
    one_of: Annotated[list[str], Meta(min_length=1, max_length=256)] | UnsetType = UNSET
    """What it may say."""
    matches: str | UnsetType = UNSET
    """A regular expression for the whole text; its named groups become attributes."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below the file's entry, what is wrong)."""
        yield from unfit(self.file, _relative_problem(self.file), "file")
        if self.matches is not UNSET:
            yield from unfit(self.matches, patterns.pattern_problem(self.matches), "matches")
        if self.equals is not UNSET and self.one_of is not UNSET:
            yield ("one_of",), "found equals and one_of, expected one of them"


class Sysfs(Struct, frozen=True, forbid_unknown_fields=True):
    """Directories of sysfs (or elsewhere) that match a pattern, kept where their files say what is wanted.

    Named by the path's last component.

    Attributes: one for each named group of `pattern` and of `matches`, and for each of `attrs` and `locate`;
    of the latter it is a path.

    Nodes: the device nodes of the directory and of those below it, as deep as `depth` says: a directory
    that has a file `dev` is a device's.
    """

    paths: Annotated[list[str], Meta(min_length=1, max_length=64)]
    """Absolute patterns with `*`, `?` and `[…]`, none of which matches a slash."""
    pattern: str | UnsetType = UNSET
    """A regular expression for the whole path, for what the patterns cannot tell apart."""
    keep: Annotated[list[SysfsFile], Meta(max_length=64)] = []
    """Files that must be there, with what is expected of each."""
    attrs: Annotated[dict[str, RelativePath | RelativePaths], Meta(max_length=64)] = {}
    """Attributes by the files that have their values; a link's is what its target is called.

    Of a list, the first file that is there.
    """
    locate: Annotated[dict[str, RelativePath | RelativePaths], Meta(max_length=64)] = {}
    """Attributes that tell the host paths of files, for probes and templates; empty where none is there."""
    depth: Annotated[int, Meta(ge=0, le=4)] = 1
    """How many levels below the directory are looked through for device nodes."""
    subsystems: Annotated[list[str], Meta(max_length=16)] = []
    """Subsystems of the kernel whose events call for another look, beside those that the paths tell."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `sysfs`, what is wrong)."""
        for index, text in enumerate(self.paths):
            yield from unfit(text, names.glob_problem(text), "paths", index)
        if self.pattern is not UNSET:
            yield from unfit(self.pattern, patterns.pattern_problem(self.pattern), "pattern")
        for index, file in enumerate(self.keep):
            for path, problem in file.problems():
                yield ("keep", index, *path), problem
        for key, attributes in (("attrs", self.attrs), ("locate", self.locate)):
            for name, paths in attributes.items():
                yield from unfit(name, names.attribute_problem(name), key, name)
                for index, text in enumerate([paths] if isinstance(paths, str) else paths):
                    place = (key, name) if isinstance(paths, str) else (key, name, index)
                    yield from unfit(text, _relative_problem(text), *place)
                if name in self.attrs and key == "locate":
                    yield (key, name), "found an attribute that attrs has too"


def _relative_problem(path: str) -> str | None:
    if path.startswith("/") or "\0" in path or "**" in path:
        return "expected a path below the device's directory, such as state or ../vendor"
    return None


class Exec(Struct, frozen=True, forbid_unknown_fields=True):
    """A program that prints the devices: a JSON array of objects, on standard output.

    Of each object `name` is needed; `path`, `attrs` (texts by name), `numa` (a node's number), `nodes`
    (host paths), `sysfs`, its directory, from which the NUMA node is looked for, and `unhealthy`, the
    reason why it is, may be there.

    The program is the plugin's own image's, or is mounted into it. Its environment is PATH and HOST_ROOT,
    where the host's files are. It must exit 0; until it does the devices stay as they were.

    Attributes: those that it prints.
    """

    command: Command
    """The program, an absolute path, and its arguments; no templates."""
    timeout: Duration = "10s"
    """It is killed then, with everything that it began; 15s at most."""
    interval: Duration = "10s"
    """It is not run more often, whatever happens on the host."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """What the decoder does not see: (path below `exec`, what is wrong)."""
        yield from unfit(self.command[0], names.path_problem(self.command[0]), "command", 0)
        for index, part in enumerate(self.command):
            if "\0" in part:
                yield ("command", index), f"found {quoted(part)}, expected text without NUL"
        for key, least, most in (("timeout", "100ms", "15s"), ("interval", "0", "1d")):
            text: str = getattr(self, key)
            try:
                seconds = parse_duration(text)
            except ValueError as error:
                yield (key,), str(error)
                continue
            if not parse_duration(least) <= seconds <= parse_duration(most):
                yield (key,), f"found {quoted(text)}, expected from {least} to {most}"


class FileProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """A host file's content, white space at its ends left out, against one expectation or several."""

    path: TemplateText
    """Absolute path on the host."""
    equals: TemplateText | UnsetType = UNSET
    """What it must say."""
    one_of: Texts | UnsetType = UNSET
    """What it may say."""
    matches: str | UnsetType = UNSET
    """A regular expression that the whole content must match."""
    not_matches: str | UnsetType = UNSET
    """A regular expression that the whole content must not match."""
    at_least: float | UnsetType = UNSET
    """The least number that it may be."""
    at_most: float | UnsetType = UNSET
    """The largest number that it may be."""


class ExecProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """A program of the plugin's own image (or mounted into it) that must exit 0."""

    command: Command
    """The program, an absolute path, and its arguments; no shell is in between."""


class HttpProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """A GET that must be answered with a status of `status` (by default 200 to 299)."""

    url: TemplateText
    """http or https, and the address."""
    status: Annotated[list[int], Meta(max_length=32)] | UnsetType = UNSET
    """Statuses that are well; 200 to 299 if left out."""


class XidProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """NVIDIA's XID events by NVML: a critical one is a fault until it has been quiet for `quiet`."""

    ignore: Annotated[tuple[int, ...], Meta(max_length=256)] = (13, 31, 43, 45, 68, 109)
    """Codes that are the application's own."""
    quiet: Duration = "5m"
    """How long a device stays unhealthy after the last event."""


class Probe(Struct, frozen=True, forbid_unknown_fields=True):
    """One probe: exactly one of exists, file, carrier, exec, http, xid; the rest says how it is asked."""

    exists: TemplateText | UnsetType = UNSET
    """A host path that must be there (`device`)."""
    file: FileProbe | UnsetType = UNSET
    """A host file's content."""
    carrier: TemplateText | UnsetType = UNSET
    """A network interface that must have a carrier; one in another namespace passes."""
    exec: ExecProbe | UnsetType = UNSET
    """A program that must exit 0."""
    http: HttpProbe | UnsetType = UNSET
    """An address that must answer."""
    xid: XidProbe | UnsetType = UNSET
    """NVIDIA's XID events."""
    interval: Duration | UnsetType = UNSET
    """How often it is asked. Left out: with each look at the host and when something happens to its path;
    every 10s where the kernel tells of no change (below /sys and /proc, carriers); every 30s for exec
    and http.
    """
    timeout: Duration | UnsetType = UNSET
    """A probe that has not answered by then has failed."""
    failures: Annotated[int, Meta(ge=1, le=100)] = 1
    """Failures in a row that make a device unhealthy."""
    successes: Annotated[int, Meta(ge=1, le=100)] = 1
    """Successes in a row that make it healthy again."""
    initial: bool | UnsetType = UNSET
    """Healthy until the first answer; left out: the first answer decides alone."""


class DeviceNode(Struct, frozen=True, forbid_unknown_fields=True):
    """A device node that a container gets.

    Once for each device where a template uses `device`; once for each of its device nodes where one
    uses `node`, a host path of `device.nodes`.
    """

    host: TemplateText
    """Absolute path on the host."""
    container: TemplateText | UnsetType = UNSET
    """The same path as `host` if left out."""
    permissions: str = "rw"
    """Some of `r` (read), `w` (write), `m` (make nodes)."""
    optional: bool = False
    """Left out where the host has no such node."""


class MountPoint(Struct, frozen=True, forbid_unknown_fields=True):
    """A mount that a container gets; once for each device where a template uses `device`."""

    host: TemplateText
    """Absolute path on the host."""
    container: TemplateText | UnsetType = UNSET
    """The same path as `host` if left out."""
    read_only: bool = False
    """Whether the container may only read."""
    create: Literal["directory", "file"] | UnsetType = UNSET
    """What to make at the host path, at Allocate, where nothing is there yet."""
    optional: bool = False
    """Left out where the host has nothing there."""


class SideFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file written on the host at Allocate and mounted, read-only, into the container."""

    host: TemplateText
    """Absolute path on the host; different for different contents."""
    container: TemplateText
    """Absolute path in the container."""
    content: TemplateText
    """What is written."""
    mode: str = "0444"
    """Its permissions: three octal digits."""


class Allocate(Struct, frozen=True, forbid_unknown_fields=True):
    """What a container gets (`devices`, `ids`; in lists also `device`, and then once for each)."""

    env: Annotated[dict[str, TemplateText], Meta(max_length=256)] = {}
    """Environment variables."""
    devices: Annotated[list[DeviceNode], Meta(max_length=256)] = []
    """Device nodes."""
    mounts: Annotated[list[MountPoint], Meta(max_length=256)] = []
    """Directories and files of the host."""
    files: Annotated[list[SideFile], Meta(max_length=64)] = []
    """Files that are written for the container."""
    annotations: Annotated[dict[str, TemplateText], Meta(max_length=256)] = {}
    """Annotations for the container runtime."""
    cdi: Annotated[list[TemplateText], Meta(max_length=256)] = []
    """CDI devices, by names that a specification on the host knows: `vendor.example/class=name`."""


class CdiSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A CDI specification written for the resource's devices; Allocate then names them by it."""

    kind: str
    """VENDOR/CLASS"""
    name: TemplateText = "{{ device.id }}"
    """What a device is called in it."""
    directory: str = "/var/run/cdi"
    """Where on the host specifications are looked for."""
    env: Annotated[dict[str, TemplateText], Meta(max_length=256)] = {}
    """Environment variables."""
    devices: Annotated[list[DeviceNode], Meta(max_length=256)] = []
    """Device nodes."""
    mounts: Annotated[list[MountPoint], Meta(max_length=256)] = []
    """Directories and files of the host."""


class PreStart(Struct, frozen=True, forbid_unknown_fields=True):
    """A program run before a container starts, once for each device where it uses `device`."""

    exec: Command
    """The program, an absolute path, and its arguments; no shell is in between."""
    timeout: Duration = "20s"
    """It is killed then, and the container does not start; 28s at most."""


AnySource = (
    Files | Glob | Regex | Group | Static | Pci | Net | Infiniband | Drm | Kfd | Nvidia | Usb | Sysfs | Exec
)


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    """Where devices come from: a mapping with exactly one of these keys."""

    files: Files | UnsetType = UNSET
    """The regular files of a directory."""
    glob: Glob | UnsetType = UNSET
    """Paths that match patterns."""
    regex: Regex | UnsetType = UNSET
    """Entries of a directory that match a regular expression."""
    group: Group | UnsetType = UNSET
    """Several paths together."""
    static: Static | UnsetType = UNSET
    """Devices that are written down."""
    pci: Pci | UnsetType = UNSET
    """PCI functions."""
    net: Net | UnsetType = UNSET
    """Network functions and interfaces."""
    infiniband: Infiniband | UnsetType = UNSET
    """InfiniBand and RoCE devices."""
    drm: Drm | UnsetType = UNSET
    """Graphics cards."""
    kfd: Kfd | UnsetType = UNSET
    """AMD's compute nodes."""
    nvidia: Nvidia | UnsetType = UNSET
    """NVIDIA GPUs and MIG slices."""
    usb: Usb | UnsetType = UNSET
    """USB devices."""
    sysfs: Sysfs | UnsetType = UNSET
    """Directories of sysfs, by what their files say."""
    exec: Exec | UnsetType = UNSET
    """What a program prints."""


class Share(Struct, frozen=True, forbid_unknown_fields=True):
    """Each device is advertised several times, as `id::0`, `id::1`, …"""

    replicas: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET
    """How many times each device is advertised; left out: once, under its own id."""
    max_per_container: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    """More of them in one container are refused."""
    id: str | UnsetType = UNSET
    """How a replica is called (`id`, the device's, and `n`); `{{ id }}::{{ n }}` if left out."""
    first: Literal[0, 1] = 0
    """The first replica's number."""


class Resource(Struct, frozen=True, forbid_unknown_fields=True):
    """One extended resource, or several where its name uses `device`."""

    name: TemplateText
    """DOMAIN/NAME, as pods ask for it. A template that uses `device` makes a resource of each name that
    comes of it (`device` without id and NUMA).
    """
    discover: Annotated[list[Source], Meta(min_length=1, max_length=64)]
    """Where its devices come from: one source or several."""
    match: TemplateText | UnsetType = UNSET
    """Keeps the devices for which it renders as true (`device` without id and NUMA)."""
    id: TemplateText | UnsetType = UNSET
    """The device's id (`device` without id and NUMA); its name if left out."""
    numa: str | int | bool = "auto"
    """`auto`: by sysfs; `off`; or the number of the NUMA node of every device."""
    share: Share = Share()
    """Devices that several containers may have."""
    health: Annotated[list[Probe], Meta(max_length=64)] = []
    """What must hold for a device to be healthy, beside that its source finds it: every probe."""
    prefer: Literal["none", "packed", "spread", "numa"] = "none"
    """Which free devices the kubelet is told to give out first: those of one NUMA node, of physical devices
    that are in use already (`packed`), or of those that are used least (`spread`).
    """
    allocate: Allocate = Allocate()
    """What a container gets."""
    cdi: CdiSpec | UnsetType = UNSET
    """A CDI specification to write for the devices."""
    pre_start: PreStart | UnsetType = UNSET
    """A program to run before a container starts."""
    exclusive: bool = True
    """A device that another exclusive resource has found first is left to it."""
    advertise_empty: bool = False
    """Register although there is no device yet."""


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole configuration file."""

    version: Literal[1]
    """The version of this language."""
    resources: Annotated[list[Resource], Meta(min_length=1, max_length=256)]
    """What the plugin serves."""
