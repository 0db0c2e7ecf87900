"""Every source is registered, documented and mounted."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest

import plugin.discovery
from harness.manifests import container, mounts, pod_of
from harness.reference import SOURCES
from plugin.config.load import load
from plugin.discovery.exec import Exec
from plugin.discovery.files import Files
from plugin.discovery.glob import Glob
from plugin.discovery.group import Group, GroupMember
from plugin.discovery.net import Net
from plugin.discovery.nvidia import Nvidia
from plugin.discovery.pci import PCI_ATTRIBUTES, Pci, PciSelection
from plugin.discovery.regex import Regex
from plugin.discovery.source import STANDARD_DIRECTORIES, SourceConfig
from plugin.discovery.static import Static, StaticDevice
from plugin.discovery.usb import Usb
from plugin.presets import PRESETS

REQUIRED: dict[str, Any] = {
    "Files": {"directory": "/x"},
    "Glob": {"paths": ["/x"]},
    "Regex": {"pattern": "x"},
    "Group": {"members": []},
    "Static": {"devices": []},
    "Sysfs": {"paths": ["/x"]},
    "Exec": {"command": ["/x"]},
}


def subclasses(struct: type[SourceConfig]) -> Iterator[type[SourceConfig]]:
    for below in struct.__subclasses__():
        yield below
        yield from subclasses(below)


def test_every_source_is_registered() -> None:
    for module in pkgutil.iter_modules(plugin.discovery.__path__, "plugin.discovery."):
        importlib.import_module(module.name)
    declared = {struct for struct in subclasses(SourceConfig) if struct.__module__.startswith("plugin.")}
    assert declared - {PciSelection} == set(SOURCES), (
        "a source needs its line in plugin/discovery/registry.py"
    )


@pytest.mark.parametrize("struct", SOURCES, ids=lambda struct: struct.__name__)
def test_every_attribute_is_in_the_reference(struct: type[msgspec.Struct]) -> None:
    source = struct(**REQUIRED.get(struct.__name__, {}))
    assert isinstance(source, SourceConfig)
    documented = set(re.findall(r"`([a-z0-9_]+)`", (struct.__doc__ or "").partition("Attributes")[2]))
    if struct is not Pci and isinstance(source, PciSelection):
        documented |= set(PCI_ATTRIBUTES)  # "those of `pci`"
    if struct.__name__ == "Kfd":
        documented |= {"card", "render", "render_minor", "device_name"}  # "those of `drm`"
    assert (source.attributes() or frozenset()) <= documented


@pytest.mark.parametrize(
    ("source", "directories"),
    [
        (Files("/etc/colas"), set()),
        (Regex("video.*"), {"/dev"}),
        (Glob(["/dev/video*", "/devices/x"]), {"/dev"}),
        (Glob(["/sys/class/hwmon/*"]), {"/sys/class", "/sys/devices"}),
        (Glob(["/sys/devices/virtual/*"]), {"/sys/devices"}),
        (Group([GroupMember("/dev/a"), GroupMember("/srv/b")]), {"/dev"}),
        (Static([StaticDevice("a"), StaticDevice("b", path="/dev/b")]), {"/dev"}),
        (Pci(), {"/sys/bus", "/sys/devices"}),
        (Usb(), {"/sys/bus", "/sys/devices"}),
        (Net(), {"/sys/bus", "/sys/class", "/sys/devices", "/proc/1/net"}),
        (Net(default_route=True), {"/sys/bus", "/sys/class", "/sys/devices"}),
        (Nvidia(), {"/dev", "/sys/bus", "/sys/devices", "/proc/driver"}),
        (Exec(["/bin/x"]), set()),
    ],
)
def test_host_directories_of_a_source(source: SourceConfig, directories: set[str]) -> None:
    assert source.host_directories() == directories


def test_every_linux_has_the_standard_directories() -> None:
    assert [directory for directory in STANDARD_DIRECTORIES if not Path(directory).is_dir()] == []


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_component_for_hardware_mounts_what_a_preset_scans(name: str) -> None:
    pod = pod_of("hardware")
    assert container(pod, "plugin")
    mounted = [PurePosixPath(mount["mountPath"]) for part, mount, _ in mounts(pod) if part == "plugin"]
    for plan in load(PRESETS[name].read_bytes(), name):
        for directory in {directory for source in plan.sources for directory in source.host_directories()}:
            inside = PurePosixPath(f"/host{directory}")
            assert any(inside.is_relative_to(mount) for mount in mounted), f"{directory} is not mounted"
