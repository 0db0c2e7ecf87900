import base64
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.recordings import RECORDINGS
from kubelet.checkpoint import (
    MAX_CHECKPOINT_BYTES,
    CheckpointError,
    DeviceAssignment,
    decode_checkpoint,
    read_checkpoint,
)
from kubelet.pb.deviceplugin.v1beta1.api_pb2 import (
    CDIDevice,
    ContainerAllocateResponse,
    DeviceSpec,
    Mount,
)


def checkpoint(*entries: object) -> bytes:
    return json.dumps({"Data": {"PodDeviceEntries": entries or None}, "Checksum": 1}).encode()


def entry(response: bytes) -> dict[str, object]:
    encoded = base64.b64encode(response).decode()
    return {"ResourceName": "a.b/c", "DeviceIDs": {"-1": ["x"], "0": ["y"]}, "AllocResp": encoded}


def test_a_recorded_checkpoint() -> None:
    assignments = read_checkpoint(RECORDINGS / "kubelet_internal_checkpoint.json")
    assert {a.resource for a in assignments} == {"held.example/foo"}
    assert {i for a in assignments for i in a.ids} == {f"dev-{n}" for n in (0, 2, 3, 4, 5, 6, 7)}


def test_identifiers_are_paths_cdi_names_and_pci_addresses() -> None:
    response = ContainerAllocateResponse(
        devices=[DeviceSpec(host_path="/dev/x", container_path="/dev/y")],
        mounts=[Mount(host_path="/etc/x", container_path="/etc/y")],
        cdi_devices=[CDIDevice(name="a.b/c=x")],
        envs={"PATH_OF_X": "/sys/x", "PCI": "0000:3b:00.0,0000:3b:00.1", "OTHER": "x"},
    )
    names = {"/dev/x", "/etc/x", "a.b/c=x", "/sys/x", "0000:3b:00.0", "0000:3b:00.1"}
    (assignment,) = decode_checkpoint(checkpoint(entry(response.SerializeToString())))
    assert assignment == DeviceAssignment("a.b/c", frozenset({"x", "y"}), frozenset(names))


def test_an_answer_that_does_not_decode_identifies_nothing() -> None:
    (assignment,) = decode_checkpoint(checkpoint(entry(b"\xff")))
    assert assignment == DeviceAssignment("a.b/c", frozenset({"x", "y"}), frozenset())


def test_a_kubelet_that_never_allocated(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "none") == decode_checkpoint(checkpoint()) == ()


def test_a_file_that_is_too_large_or_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Is a directory"):
        read_checkpoint(tmp_path)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(MAX_CHECKPOINT_BYTES + 1)
    with pytest.raises(CheckpointError, match="expected at most"):
        read_checkpoint(large)


@settings(max_examples=50)
@given(st.binary(max_size=100))
def test_any_bytes_decode_or_raise(content: bytes) -> None:
    try:
        decode_checkpoint(content)
    except CheckpointError:
        return
