"""exporter.mapping.cdi_spec: which physical devices a CDI specification names."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping import cdi_spec
from exporter.mapping.cdi_spec import MAX_BYTES, CdiSpecError, combined, read_spec
from exporter.mapping.dra import CdiDevice, all_of

GPU = "GPU-955ef018-3bd9-5f27-80b3-fa20ee8d19c5"
MIG = "MIG-2f8a3a0b-65d2-5a5e-9b0c-6d38f8e0c9a1"
CLAIM = "1664ac86-2f95-4cdc-a4db-f3d80d0ff6c8"


def _spec(edits: dict[str, Any], name: str = "one", **more: Any) -> bytes:
    device = {"name": name, "containerEdits": edits, **more}
    return json.dumps({"cdiVersion": "0.6.0", "kind": "vendor.example/gpu", "devices": [device]}).encode()


def _one(edits: dict[str, Any], name: str = "one", **more: Any) -> CdiDevice:
    return read_spec(_spec(edits, name, **more), "spec.json")[f"vendor.example/gpu={name}"]


def test_environment_names_gpus_by_uuid() -> None:
    assert _one({"env": [f"NVIDIA_VISIBLE_DEVICES={GPU},{MIG}"]}).uuids == (GPU, MIG)
    assert _one({"env": [f"X={GPU.upper().replace('GPU-', 'GPU-')}"]}).uuids == (GPU,)


@pytest.mark.parametrize(
    "value", ["all", "void", "none", "0", "0,1", "", "GPU-1", "gpu-0", f"x{GPU}", f"{GPU}0"]
)
def test_what_is_no_uuid_names_no_device(value: str) -> None:
    assert _one({"env": [f"NVIDIA_VISIBLE_DEVICES={value}"]}) == CdiDevice()


def test_a_plain_uuid_counts_only_where_its_name_says_so() -> None:
    uuid = "8fff74a1-0000-1000-80d3-e75ce8d4ab7e"
    assert _one({"env": [f"AMD_GPU_UUID={uuid.upper()}"]}).uuids == (uuid,)
    assert _one({}, annotations={"vendor.example/uuid": uuid}).uuids == (uuid,)
    claims = [
        f"GPU_DEVICE_0_RESOURCE_CLAIM={CLAIM}",
        f"CLAIM_UUID={CLAIM}",
        f"POD_UUID={CLAIM}",
        f"ID={CLAIM}",
    ]
    assert _one({"env": claims}, f"claim-{CLAIM}") == CdiDevice()


def test_the_name_of_a_device_counts_if_it_is_a_gpu_uuid() -> None:
    assert _one({}, GPU).uuids == (GPU,)
    assert _one({}, CLAIM) == CdiDevice()


def test_pci_addresses_of_variables_paths_and_links() -> None:
    assert _one({"env": ["PCIDEVICE_A_B=0000:3b:02.0,0000:3B:02.1"]}).pci_addresses == (
        "0000:3b:02.0",
        "0000:3b:02.1",
    )
    info = '{"0000:3b:02.0":{"generic":{"deviceID":"0000:3b:02.0"},"vfio":{"mount":"/dev/vfio/9"}}}'
    assert _one({"env": [f"PCIDEVICE_A_B_INFO={info}"]}).pci_addresses == ("0000:3b:02.0",)
    assert _one({"env": ["BUS=00000000:1B:00.0"]}).pci_addresses == ("0000:1b:00.0",)
    by_path = "/dev/dri/by-path/pci-0000:03:00.0-card"
    assert _one({"mounts": [{"hostPath": by_path, "containerPath": by_path}]}).pci_addresses == (
        "0000:03:00.0",
    )
    hook = {"hookName": "createContainer", "path": "/h", "args": ["h", "--link", f"../card1::{by_path}"]}
    assert _one({"hooks": [hook]}).pci_addresses == ("0000:03:00.0",)
    sysfs = "/sys/devices/pci0000:00/0000:00:02.0/0000:03:00.0"
    assert _one({"mounts": [{"hostPath": sysfs, "containerPath": "/x"}]}).pci_addresses == ("0000:03:00.0",)
    assert _one({}, annotations={"pci": "0000:03:00.0"}).pci_addresses == ("0000:03:00.0",)


@pytest.mark.parametrize(
    "path",
    [
        "/dev/v4l/by-path/pci-0000:00:14.0-usb-0:1:1.0-video-index0",
        "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-1",
        "/dev/disk/by-path/pci-0000:00:1f.2-ata-1",
        "/dev/x0000:00:1f.9",
    ],
)
def test_the_address_of_a_controller_is_not_that_of_a_device_behind_it(path: str) -> None:
    assert _one({"deviceNodes": [{"path": path}]}).pci_addresses == ()


def test_device_nodes_are_those_of_the_host() -> None:
    nodes = [
        {"path": "/dev/b", "hostPath": "/host/b"},
        {"path": "/dev/a"},
        {"path": "/dev/\x1b[2J"},
        {"path": "/" * 999},
    ]
    assert _one({"deviceNodes": nodes}).device_nodes == ("/dev/a", "/host/b")


def test_common_edits_belong_to_no_device() -> None:
    spec = {
        "kind": "a/b",
        "devices": [{"name": "x"}],
        "containerEdits": {"env": [f"NVIDIA_VISIBLE_DEVICES={GPU}"]},
    }
    assert read_spec(json.dumps(spec).encode(), "f") == {"a/b=x": CdiDevice()}


def test_yaml_and_json_say_the_same() -> None:
    content = _spec({"env": [f"A={GPU}"], "deviceNodes": [{"path": "/dev/x", "major": 195, "minor": 0}]})
    written = yaml.safe_dump({"newMember": [1, None, True], **json.loads(content)}).encode()
    assert read_spec(written, "s.yaml") == read_spec(content, "s.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a CDI specification"),
        (b"{", "not a CDI specification"),
        (b"\xff\xff", "not YAML"),
        (b"just text", "not a CDI specification"),
        (b'{"devices": []}', "kind"),
        (b'{"kind": "gpu", "devices": []}', "'gpu' is not VENDOR/CLASS"),
        (b'{"kind": "a/b", "devices": [{"name": "-"}]}', "is not the name of a CDI device"),
        (b'{"kind": "a/b", "devices": [{"name": "x"}, {"name": "x"}]}', "is there twice"),
        (
            b'{"kind": "a/b", "devices": [{"name": "x", "containerEdits": {"env": [1]}}]}',
            "not a CDI specification",
        ),
        (b'{"kind": "a/b", "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not a CDI specification"),
        (b"kind: a/b\ndevices: [{name: &x y, b: *x}]", "aliases"),
        (b"kind: a/b\nmore: " + b"[" * 9999, "deeply nested"),
        (b"kind: a/b\n\tx", "not YAML"),
        (b"!!python/object/apply:os.system [x]", "not a CDI specification"),
        (b" " * (MAX_BYTES + 1), "more than 1048576 bytes"),
    ],
)
def test_what_is_no_specification_is_named_in_one_line(content: bytes, words: str) -> None:
    with pytest.raises(CdiSpecError, match="^a\\\\nb.json: .*" + words) as caught:
        read_spec(content, "a\nb.json")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_there_are_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_spec, "MAX_DEVICES", 2)
    devices = [{"name": f"d{n}", "containerEdits": {}} for n in range(3)]
    with pytest.raises(CdiSpecError, match="more than 2 devices"):
        read_spec(json.dumps({"kind": "a/b", "devices": devices}).encode(), "f")
    one = {f"a/b={n}": CdiDevice() for n in range(3)}
    assert list(combined([[one]])) == ["a/b=0", "a/b=1"]
    many = ",".join(f"GPU-{n:08x}-0000-0000-0000-000000000000" for n in range(200))
    assert len(_one({"env": [f"A={many}"]}).uuids) == 64


_TEXTS = st.sampled_from(
    ["", "/", GPU, CLAIM, "A=", f"A={GPU}", "0000:3b:00.0", "=", "\x00", "a/b"]
) | st.text(max_size=9)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "kind",
                    "devices",
                    "name",
                    "containerEdits",
                    "env",
                    "deviceNodes",
                    "hooks",
                    "args",
                    "annotations",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(_JSON, st.booleans())
def test_whatever_a_file_says_there_is_one_kind_of_error(document: Any, as_yaml: bool) -> None:
    content = (yaml.safe_dump(document, allow_unicode=True) if as_yaml else json.dumps(document)).encode()
    try:
        found = read_spec(content, "f")
    except CdiSpecError:
        return
    assert all(isinstance(device, CdiDevice) for device in found.values())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=60))
def test_whatever_bytes_a_file_has_there_is_one_kind_of_error(content: bytes) -> None:
    with pytest.raises(CdiSpecError, match=r"^f: "):
        read_spec(content, "f")


def test_a_later_directory_overrides_and_a_conflict_within_one_tells_nothing() -> None:
    first, second = CdiDevice(uuids=(GPU,)), CdiDevice(uuids=(MIG,))
    assert combined([[{"a/b=x": first, "a/b=y": first}], [{"a/b=x": second}]]) == {
        "a/b=x": second,
        "a/b=y": first,
    }
    assert combined([[{"a/b=x": first}, {"a/b=x": second}]]) == {}
    assert combined([[{"a/b=x": first}], [{"a/b=x": first}, {"a/b=x": second}]]) == {}


def test_names_of_one_device_are_taken_together() -> None:
    one, other = CdiDevice((GPU,), (), ("/dev/b",)), CdiDevice((), ("0000:3b:00.0",), ("/dev/a", "/dev/b"))
    assert all_of([one, other]) == CdiDevice((GPU,), ("0000:3b:00.0",), ("/dev/a", "/dev/b"))
    assert all_of([one]) is one
    assert all_of([]) is None
