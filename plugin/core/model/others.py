"""Sources of their own kind: nvidia, usb, sysfs, exec."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from daemon.durations import parse_duration
from plugin.core import names, patterns, selectors
from plugin.core.errors import Path, quoted
from plugin.core.model.common import Command, Duration, Texts, unfit

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
