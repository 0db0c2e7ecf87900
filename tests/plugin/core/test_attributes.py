"""Names of attributes in templates: checked when a file is loaded, against what sources really give."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.hosttree import HostTree
from harness.machines import Machine
from harness.reference import SOURCES
from harness.usb import UsbBus
from plugin.config import model
from plugin.config.attributes import attributes_of
from plugin.config.load import load
from plugin.discovery.host import HostRoot
from plugin.discovery.registry import source_of
from runtime.config_file import ConfigError

RESOURCE = """\
version: 1
resources:
  - name: example.com/x
    discover: [{discover}]
    {key}
"""


def refusal(discover: str, key: str) -> str:
    try:
        load(RESOURCE.format(discover=discover, key=key).encode(), "x")
    except ConfigError as error:
        return error.problem
    return ""


@pytest.mark.parametrize(
    ("discover", "text", "words"),
    [
        (
            "{nvidia: {}}",
            "{{ device.attrs.modle }}",
            "device.attrs.modle, which devices of these sources do not",
        ),
        ("{nvidia: {}}", "{{ device.attrs.modle }}", "did you mean 'model'?"),
        ("{nvidia: {}}", "{{ device.attrs['modle'] }}", "did you mean 'model'?"),
        ("{nvidia: {}}", "{{ device['attrs'].modle }}", "did you mean 'model'?"),
        ("{nvidia: {}}", "{{ device.attrs.model }}", ""),
        ("{nvidia: {}}", "{{ device.attrs.get('modle', '') }}", ""),
        ("{nvidia: {}}", "{{ device.attrs | tojson }}", ""),
        ("{nvidia: {}}, {usb: {}}", "{{ device.attrs.serial or device.attrs.uuid }}", ""),
        ("{files: {directory: /x}}", "{{ device.attrs.x }}", "they have no attributes"),
        ("{exec: {command: [/x]}}", "{{ device.attrs.anything }}", ""),
        ("{regex: {pattern: '(?P<bus>a)'}}", "{{ device.attrs.bus }}{{ device.attrs.major }}", ""),
        ("{regex: {pattern: '(?P<bus>a)'}}", "{{ device.attrs.buss }}", "did you mean 'bus'?"),
        ("{group: {members: [{path: /a}, {path: /b, name: b}]}}", "{{ device.attrs.member0 }}", ""),
        ("{group: {members: [{path: /a}, {path: /b, name: b}]}}", "{{ device.attrs.member1 }}", "'member0'?"),
        ("{static: {devices: [{name: a, attrs: {slot: '1'}}]}}", "{{ device.attrs.slot }}", ""),
        ("{static: {devices: [{name: a}]}}", "{{ device.attrs.slot }}", "they have no attributes"),
        (
            "{sysfs: {paths: [/x], pattern: '/(?P<a>x)', attrs: {b: c}, locate: {d: e}}}",
            "{{ device.attrs.a ~ device.attrs.b ~ device.attrs.d }}",
            "",
        ),
        ("{sysfs: {paths: [/x], attrs: {b: c}}}", "{{ device.attrs.c }}", "expected one of b"),
        ("{infiniband: {}}", "{{ device.attrs.devices }}", "did you mean 'device'?"),
        ("{infiniband: {together: true}}", "{{ device.attrs.devices }}", ""),
    ],
)
def test_an_attribute_that_no_source_gives_is_refused_when_the_file_is_loaded(
    discover: str, text: str, words: str
) -> None:
    problem = refusal(discover, f'id: "{text}"')
    assert words in problem
    assert bool(words) == bool(problem)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ devices[0].attrs.modle }}", "did you mean 'model'?"),
        ("{{ (devices | first).attrs.modle }}", "did you mean 'model'?"),
        ("{% for d in devices %}{{ d.attrs.modle }}{% endfor %}", "did you mean 'model'?"),
        ("{{ devices | map(attribute='attrs.modle') | join }}", "did you mean 'model'?"),
        ("{{ devices | map(attribute='attrs.model') | join }}", ""),
        ("{{ devices | selectattr('attrs.migg') | list | length }}", "did you mean 'mig'?"),
    ],
)
def test_attributes_of_several_devices_are_checked_as_well(text: str, words: str) -> None:
    problem = refusal("{nvidia: {}}", f'allocate: {{env: {{A: "{text}"}}}}')
    assert words in problem
    assert bool(words) == bool(problem)


@pytest.mark.parametrize("struct", SOURCES, ids=lambda struct: struct.__name__)
def test_the_reference_names_each_attribute(struct: type[msgspec.Struct]) -> None:
    """As far as they have names of their own: those of `pci` and `drm` are told by reference."""
    needed: dict[str, Any] = {
        "Files": {"directory": "/x"},
        "Glob": {"paths": ["/x"]},
        "Regex": {"pattern": "x"},
        "Group": {"members": []},
        "Static": {"devices": []},
        "Sysfs": {"paths": ["/x"]},
        "Exec": {"command": ["/x"]},
    }
    source = struct(**needed.get(struct.__name__, {}))
    assert isinstance(source, model.AnySource)
    names = attributes_of([source]) or frozenset()
    inherited = attributes_of([model.Drm()]) if struct is model.Kfd else attributes_of([model.Pci()])
    told = set(re.findall(r"`([a-z0-9_]+)`", (struct.__doc__ or "").partition("Attributes")[2]))
    others = (inherited or frozenset()) if issubclass(struct, model.Pci.__mro__[1]) else frozenset[str]()
    if struct is model.Pci:
        others = frozenset()
    assert names - others <= told


def test_buses_give_the_attributes_that_are_declared(host: Path) -> None:
    machine = Machine(HostTree(host))
    machine.routes()
    path = machine.function("0000:3b:00.0", "1002", "101e", "020000")
    machine.interface("ens3f0", path)
    machine.rdma("mlx5_0", path, 0)
    machine.card(0, path)
    machine.compute_node(1, drm_render_minor=128, location_id=0x3B00, simd_count=4, gfx_target_version=90402)
    found_by: dict[str, model.AnySource] = {
        "pci": model.Pci(),
        "net": model.Net(),
        "infiniband": model.Infiniband(),
        "together": model.Infiniband(together=True),
        "drm": model.Drm(),
        "kfd": model.Kfd(),
    }
    for name, written in found_by.items():
        found = source_of(written).scan(HostRoot(host)).found
        assert found, name
        for item in found:
            assert frozenset(item.attrs) == attributes_of([written]), name


def test_usb_gives_the_attributes_that_are_declared(host: Path) -> None:
    UsbBus(HostTree(host)).plug("1-1", "0403", "6001")
    (item,) = source_of(model.Usb()).scan(HostRoot(host)).found
    assert frozenset(item.attrs) == attributes_of([model.Usb()])


def test_nvidia_gives_the_attributes_that_are_declared(host: Path) -> None:
    tree = HostTree(host)
    tree.file(
        "/proc/driver/nvidia/gpus/0000:3b:00.0/information",
        "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-1\nDevice Minor: \t 0\n",
    )
    source = model.Nvidia(library="/none.so")
    found = source_of(source).scan(HostRoot(host)).found
    assert found
    for item in found:
        assert frozenset(item.attrs) == attributes_of([source])
