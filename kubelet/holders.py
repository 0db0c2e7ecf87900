"""Who holds devices: read from the kubelet's PodResources answers and from its checkpoint.

The plugin needs a device's ids alone, so the four messages of package v1 are described here by their
field numbers, in a pool of their own: generated stubs of that API belong to the exporter.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

Held = Mapping[str, frozenset[str]]
"""Device ids by resource name."""

LIST_METHOD: Final = "/v1.PodResourcesLister/List"
ALLOCATABLE_METHOD: Final = "/v1.PodResourcesLister/GetAllocatableResources"

_Field = descriptor_pb2.FieldDescriptorProto
_FIELDS: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    "ContainerDevices": {"resource_name": (1, "text"), "device_ids": (2, "texts")},
    "ContainerResources": {"devices": (2, "ContainerDevices")},
    "PodResources": {"containers": (3, "ContainerResources")},
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources")},
    "AllocatableResourcesResponse": {"devices": (1, "ContainerDevices")},
    "DeviceSpec": {"host_path": (2, "text")},
    "ContainerAllocateResponse": {"devices": (3, "DeviceSpec")},
}


def _messages() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="holders.proto", package="v1", syntax="proto3")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            if kind in _FIELDS:
                described.field.add(
                    name=name,
                    number=number,
                    type=_Field.TYPE_MESSAGE,
                    label=_Field.LABEL_REPEATED,
                    type_name=f".v1.{kind}",
                )
            else:
                label = _Field.LABEL_REPEATED if kind == "texts" else _Field.LABEL_OPTIONAL
                described.field.add(name=name, number=number, type=_Field.TYPE_STRING, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {m: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{m}")) for m in _FIELDS}


_MESSAGES: Final = _messages()


class UnreadableError(ValueError):
    """Not an answer, or not a checkpoint: it does not decode."""


def from_list(answer: bytes) -> Held:
    """The held ids in a serialized ListPodResourcesResponse. Raises UnreadableError."""
    decoded = _decode("ListPodResourcesResponse", answer)
    return _gather(
        (entry.resource_name, entry.device_ids)
        for pod in decoded.pod_resources
        for container in pod.containers
        for entry in container.devices
    )


def from_allocatable(answer: bytes) -> Held:
    """The healthy ids in a serialized AllocatableResourcesResponse. Raises UnreadableError."""
    decoded = _decode("AllocatableResourcesResponse", answer)
    return _gather((entry.resource_name, entry.device_ids) for entry in decoded.devices)


class _Entry(msgspec.Struct):
    ResourceName: str
    DeviceIDs: dict[str, list[str]] | None = None
    AllocResp: bytes | None = None


class _Data(msgspec.Struct):
    PodDeviceEntries: list[_Entry] | None = None


class _Checkpoint(msgspec.Struct):
    Data: _Data


def _entries(content: bytes) -> list[_Entry]:
    try:
        checkpoint = msgspec.json.decode(content, type=_Checkpoint)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UnreadableError(str(error)) from None
    return checkpoint.Data.PodDeviceEntries or []


def nodes_from_checkpoint(content: bytes) -> Mapping[tuple[str, str], frozenset[str]]:
    """By resource and id: the host's device nodes that its containers were given, with others of theirs.

    An answer that cannot be read has none. Raises UnreadableError.
    """
    nodes: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in _entries(content):
        try:
            given = _decode("ContainerAllocateResponse", entry.AllocResp or b"")
        except UnreadableError:
            continue
        paths = {device.host_path for device in given.devices}
        for ids in (entry.DeviceIDs or {}).values():
            for device_id in ids:
                nodes[entry.ResourceName, device_id] |= paths
    return {holding: frozenset(paths) for holding, paths in nodes.items()}


def from_checkpoint(content: bytes) -> Held:
    """The ids in the device manager's checkpoint, those of pods that ended since it was written as well.

    kubelet: it is rewritten at an allocation, not at a release. Unlike List it also knows what ordinary
    init containers hold. Raises UnreadableError.
    """
    return _gather(
        (entry.ResourceName, ids) for entry in _entries(content) for ids in (entry.DeviceIDs or {}).values()
    )


def union(*parts: Held) -> Held:
    """Everything that any of `parts` holds."""
    return _gather(item for part in parts for item in part.items())


def _decode(message: str, answer: bytes) -> Any:
    try:
        return _MESSAGES[message].FromString(answer)
    except DecodeError as error:
        raise UnreadableError(str(error)) from None


def _gather(entries: Iterable[tuple[str, Iterable[str]]]) -> Held:
    held: defaultdict[str, set[str]] = defaultdict(set)
    for resource, ids in entries:
        held[resource].update(ids)
    return {resource: frozenset(ids) for resource, ids in held.items()}
