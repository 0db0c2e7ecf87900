"""The device manager's checkpoint: `kubelet_internal_checkpoint` in device-plugins.

The layout is the real one's. Only the checksum differs: a kubelet hashes Go's
own print of the structure; here it is the CRC-32 of the data, and it is not checked when read.
"""

import base64
import binascii
import json
import os
import random
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

NO_NODE: Final = -1
"""The NUMA node of devices without topology."""

LARGEST: Final = 64 * 1024 * 1024
"""Bytes of a checkpoint that are read at most."""


class CorruptCheckpointError(Exception):
    """The checkpoint cannot be read; says where and why. A kubelet goes on without it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one container holds of one resource. `response`: a serialized ContainerAllocateResponse."""

    pod_uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...]]
    response: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that the device manager keeps over a restart. `registered`: healthy devices by resource."""

    entries: tuple[Entry, ...] = ()
    registered: Mapping[str, tuple[str, ...]] | None = None


def encode(checkpoint: Checkpoint) -> bytes:
    """The file's content. As in Go's JSON, no entries at all read as null."""
    entries = [
        {
            "PodUID": entry.pod_uid,
            "ContainerName": entry.container,
            "ResourceName": entry.resource,
            "DeviceIDs": {str(node): list(ids) for node, ids in sorted(entry.devices.items())},
            "AllocResp": base64.b64encode(entry.response).decode(),
        }
        for entry in checkpoint.entries
    ]
    registered = {name: list(ids) for name, ids in (checkpoint.registered or {}).items()}
    data = _dump({"PodDeviceEntries": entries or None, "RegisteredDevices": registered})
    checksum = zlib.crc32(data.encode())
    return f'{{"Data":{data},"Checksum":{checksum}}}'.encode()


def decode(content: bytes) -> Checkpoint:
    """What a checkpoint file says. Raises CorruptCheckpointError."""
    try:
        data: Any = json.loads(content)["Data"]
        entries = tuple(_entry(raw) for raw in data["PodDeviceEntries"] or ())
        registered = {
            str(name): tuple(map(str, ids or ())) for name, ids in (data["RegisteredDevices"] or {}).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise CorruptCheckpointError(f"{type(error).__name__}: {error}") from error
    return Checkpoint(entries, registered)


def read(path: Path) -> Checkpoint | None:
    """The checkpoint at `path`, None where there is none. Raises CorruptCheckpointError."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CorruptCheckpointError(error.strerror or str(error)) from error
    if len(content) > LARGEST:
        raise CorruptCheckpointError(f"larger than {LARGEST} bytes")
    return decode(content)


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Put it in place as a kubelet does: a file `.NNNN` beside it, mode 0600, then a rename."""
    content = encode(checkpoint)
    while True:
        # Not security: an unused name, as Go's os.CreateTemp makes it.
        temporary = path.with_name(f".{random.randrange(10**9, 10**10)}")  # noqa: S311 -- a file's name
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        break
    with open(descriptor, "wb") as file:  # noqa: PTH123 -- it is a descriptor
        file.write(content)
    temporary.rename(path)


def _entry(raw: Mapping[str, Any]) -> Entry:
    devices: Mapping[str, Iterable[str] | None] = raw["DeviceIDs"] or {}
    return Entry(
        pod_uid=str(raw["PodUID"]),
        container=str(raw["ContainerName"]),
        resource=str(raw["ResourceName"]),
        devices={int(node): tuple(map(str, ids or ())) for node, ids in devices.items()},
        response=base64.b64decode(raw["AllocResp"] or "", validate=True),
    )


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
