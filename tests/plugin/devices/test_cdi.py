"""CDI specifications, against the rules by which container runtimes read them."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugin.config.load import load
from plugin.config.plan import ResourcePlan
from plugin.devices import cdi
from plugin.devices.allocation import render
from plugin.devices.cdi import Edits
from plugin.devices.device import Device
from plugin.devices.rendering import ContainerNode, Mount, RenderError

CAMERA = """\
version: 1
resources:
  - name: example.com/camera
    discover: [{glob: {paths: ["/dev/video*"]}}]
    allocate: {cdi: ["vendor.example/control=all"]}
    cdi:
      kind: vendor.example/camera
      name: "{{ device.id }}"
      env: {"CAMERA_{{ device.id | upper }}": "{{ device.path }}", CAMERAS: "by {{ resource }}"}
      devices:
        - {host: "{{ node }}"}
        - {host: "{{ device.path }}", container: "/dev/cam/{{ device.id }}", permissions: r}
        - {host: /dev/mediactl, optional: true}
      mounts: [{host: /etc/cameras, read_only: true}, {host: "/run/{{ device.id }}"}]
"""


def plan(text: str = CAMERA) -> ResourcePlan:
    (made,) = load(text.encode(), "x")
    return made


def camera(name: str) -> Device:
    return Device(name, name, f"/dev/{name}", nodes=(f"/dev/{name}", f"/dev/sub-{name}"))


def problem(content: bytes) -> str | None:
    """What a container runtime would say of a specification; None where it takes it.

    The rules of the Go package that they read it with: unknown keys are refused, so is a version below
    what is used, a device without edits, a name twice, no device at all.
    """
    return next(_problems(msgspec.json.decode(content)), None)


def _problems(spec: dict[str, Any]) -> Iterator[str]:
    yield from _unknown(spec, {"cdiVersion", "kind", "annotations", "devices", "containerEdits"})
    vendor, _, class_ = spec["kind"].partition("/")
    for name in (vendor, class_):
        if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?", name):
            yield f"invalid kind: {name}"
    names = [device["name"] for device in spec["devices"]]
    if not names or len(set(names)) < len(names):
        yield "no devices, or one twice"
    for device in spec["devices"]:
        yield from _unknown(device, {"name", "annotations", "containerEdits"})
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", device["name"]):
            yield f"invalid device name: {device['name']}"
        if not any(device["containerEdits"].values()):
            yield "empty device edits"
    all_edits = [spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])]
    for edits in all_edits:
        yield from _wrong(edits)
    digits = any(name[0].isdigit() for name in names)
    hosts = any("hostPath" in node for edits in all_edits for node in edits.get("deviceNodes", []))
    least = "0.6.0" if "." in class_ else "0.5.0" if digits or hosts else "0.3.0"
    if spec["cdiVersion"] != least:
        yield f"version {spec['cdiVersion']}, needed is {least}"


def _unknown(mapping: dict[str, Any], known: set[str]) -> Iterator[str]:
    yield from (f"unknown: {key}" for key in mapping.keys() - known)


def _wrong(edits: dict[str, Any]) -> Iterator[str]:
    yield from _unknown(edits, {"env", "deviceNodes", "mounts"})
    for variable in edits.get("env", []):
        if variable.find("=") <= 0:
            yield f"invalid environment variable: {variable}"
    for node in edits.get("deviceNodes", []):
        yield from _unknown(node, {"path", "hostPath", "permissions"})
        if not node["path"] or node["permissions"].strip("rwm"):
            yield f"invalid node: {node}"
    for mount in edits.get("mounts", []):
        yield from _unknown(mount, {"hostPath", "containerPath", "options"})
        if not (mount["hostPath"] and mount["containerPath"] and "rbind" in mount["options"]):
            yield f"invalid mount: {mount}"


def specification(made: ResourcePlan, *devices: Device) -> bytes:
    assert made.cdi is not None
    content = cdi.document(
        made.cdi.kind,
        {cdi.name_of(made.cdi, made.name, d): cdi.edits_of(made.cdi, made.name, d) for d in devices},
        cdi.common_edits(made.cdi, made.name),
    )
    assert content is not None
    return content


def test_edits_of_a_device_and_common_edits() -> None:
    content = specification(plan(), camera("video2"), camera("video10"))
    assert problem(content) is None
    spec = msgspec.json.decode(content)
    assert spec == {
        "cdiVersion": "0.5.0",
        "kind": "vendor.example/camera",
        "devices": [
            {
                "name": name,
                "containerEdits": {
                    "env": [f"CAMERA_{name.upper()}=/dev/{name}"],
                    "deviceNodes": [
                        {"path": f"/dev/{name}", "permissions": "rw"},
                        {"path": f"/dev/sub-{name}", "permissions": "rw"},
                        {"path": f"/dev/cam/{name}", "hostPath": f"/dev/{name}", "permissions": "r"},
                    ],
                    "mounts": [
                        {
                            "hostPath": f"/run/{name}",
                            "containerPath": f"/run/{name}",
                            "options": ["rbind", "rprivate", "rw"],
                        }
                    ],
                },
            }
            for name in ("video2", "video10")
        ],
        "containerEdits": {
            "env": ["CAMERAS=by example.com/camera"],
            "deviceNodes": [{"path": "/dev/mediactl", "permissions": "rw"}],
            "mounts": [
                {
                    "hostPath": "/etc/cameras",
                    "containerPath": "/etc/cameras",
                    "options": ["rbind", "rprivate", "ro"],
                }
            ],
        },
    }


def test_allocate_names_the_devices_by_it() -> None:
    made = render(plan(), ["video2", "video3"], [camera("video2"), camera("video3")])
    assert made.cdi == (
        "vendor.example/control=all",
        "vendor.example/camera=video2",
        "vendor.example/camera=video3",
    )
    assert (made.devices, made.mounts) == ((), ())


def test_a_device_without_edits_of_its_own_gets_the_common_ones() -> None:
    assert cdi.document("a/b", {"x": Edits()}, Edits()) is None
    content = cdi.document("a/b", {"x": Edits(), "y": Edits({"B": "2"})}, Edits({"A": "1"}))
    assert content is not None
    assert problem(content) is None
    first, second = msgspec.json.decode(content)["devices"]
    assert first["containerEdits"] == {"env": ["A=1"]}
    assert second["containerEdits"] == {"env": ["B=2"]}


def test_a_name_that_cdi_does_not_take_is_reported() -> None:
    made = plan().cdi
    assert made is not None
    with pytest.raises(RenderError, match=r"^cdi\.name: rendered 'a/b', expected letters, digits"):
        cdi.name_of(made, "example.com/camera", camera("a/b"))


def test_the_file_is_named_after_the_kind_and_the_resource() -> None:
    assert (
        cdi.file_name("nvidia.com/gpu", "example.com/gpu") == "nvidia.com-gpu_devicelens_example.com_gpu.json"
    )


_paths = st.builds("/dev/{}".format, st.text("abc", min_size=1, max_size=3))
_nodes = st.builds(ContainerNode, _paths, _paths, st.sampled_from(["r", "rw", "rwm"]))
_mounts = st.builds(Mount, _paths, _paths, st.booleans(), st.none())
_edits = st.builds(
    Edits,
    st.dictionaries(st.text("AB_", min_size=1, max_size=3), st.text(max_size=5), max_size=2),
    st.lists(_nodes, max_size=2).map(tuple),
    st.lists(_mounts, max_size=2).map(tuple),
)


@settings(max_examples=50)
@given(
    st.sampled_from(["a/b", "a.b/c-d", "a.b/c.d"]),
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", fullmatch=True), _edits, max_size=4
    ),
    _edits,
)
def test_a_runtime_takes_every_specification(kind: str, devices: dict[str, Edits], common: Edits) -> None:
    content = cdi.document(kind, devices, common)
    if content is None:
        assert not cdi.listed(devices, common)
    else:
        assert problem(content) is None
        names = [device["name"] for device in msgspec.json.decode(content)["devices"]]
        assert tuple(names) == cdi.listed(devices, common)
