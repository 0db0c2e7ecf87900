"""Reads the device manager's checkpoint: which ids containers were given, and the Allocate answers for them.

The checkpoint is the only place that keeps Allocate answers. Rules of the kubelet (1.20 to 1.36):

- The file is replaced at each allocation, not when a pod ends: entries of ended pods stay in it.
- It lists the devices of ordinary init containers, which the PodResources List leaves out.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from kubelet.pb.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse

MAX_CHECKPOINT_BYTES: Final = 64 * 1024 * 1024
PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


class CheckpointError(Exception):
    """The checkpoint cannot be read or decoded; the message says why."""


class DeviceAssignment(msgspec.Struct, frozen=True):
    """Device ids of one resource that one container was given.

    `identifiers` name the physical devices behind them: host paths of device nodes and mounts, CDI device
    names, and the paths and PCI addresses in environment variables. Empty for an answer that does not decode.
    `pod_uid` is empty where the checkpoint has none.
    """

    resource: str
    ids: frozenset[str]
    identifiers: frozenset[str]
    pod_uid: str = ""


class _Entry(msgspec.Struct):
    ResourceName: str
    PodUID: str = ""
    DeviceIDs: dict[str, list[str]] | None = None
    AllocResp: bytes | None = None


class _Data(msgspec.Struct):
    PodDeviceEntries: list[_Entry] | None = None


class _Checkpoint(msgspec.Struct):
    Data: _Data


def read_checkpoint(path: Path) -> tuple[DeviceAssignment, ...]:
    """The assignments in the file at `path`, none where the kubelet never allocated. Blocking.

    Raises CheckpointError.
    """
    try:
        if path.stat().st_size > MAX_CHECKPOINT_BYTES:
            raise CheckpointError(f"{path}: expected at most {MAX_CHECKPOINT_BYTES} bytes")
        return decode_checkpoint(path.read_bytes())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error


def decode_checkpoint(content: bytes) -> tuple[DeviceAssignment, ...]:
    """The assignments in a checkpoint's JSON. Raises CheckpointError."""
    try:
        entries = msgspec.json.decode(content, type=_Checkpoint).Data.PodDeviceEntries
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CheckpointError(str(error)) from None
    return tuple(
        DeviceAssignment(
            entry.ResourceName,
            frozenset(i for ids in (entry.DeviceIDs or {}).values() for i in ids),
            frozenset(_identifiers(entry.AllocResp or b"")),
            entry.PodUID,
        )
        for entry in entries or ()
    )


def _identifiers(response: bytes) -> Iterator[str]:
    try:
        answer = ContainerAllocateResponse.FromString(response)
    except DecodeError:
        return
    yield from (node.host_path for node in answer.devices)
    yield from (mount.host_path for mount in answer.mounts)
    yield from (device.name for device in answer.cdi_devices)
    for value in answer.envs.values():
        if value.startswith("/"):
            yield value
        yield from PCI_ADDRESS.findall(value)
