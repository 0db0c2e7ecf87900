"""A second reading of the kubelet's answers: the wire format walked by hand, one field after another.

Slow and plain on purpose, and without protobuf: what it reads is compared with what the exporter says. It
takes messages that protobuf takes; what it says of others means nothing.
"""

from collections.abc import Iterator

Value = int | bytes
Held = tuple[str, str, str, str, str]
"""Resource, device, namespace, pod, container."""

_VARINT, _FIXED64, _BYTES, _GROUP, _END, _FIXED32 = range(6)


def fields(data: bytes) -> Iterator[tuple[int, int, Value]]:
    """Number, wire type and value of each field of one message; groups are passed over."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = (tag & 0xFFFFFFFF) >> 3, tag & 7
        if kind == _GROUP:
            at = _after_group(data, at)
            continue
        value, at = _value(data, at, kind)
        yield number, kind, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & (2**64 - 1), at


def _value(data: bytes, at: int, kind: int) -> tuple[Value, int]:
    if kind == _VARINT:
        return _varint(data, at)
    if kind == _BYTES:
        size, at = _varint(data, at)
    else:
        size = 8 if kind == _FIXED64 else 4
    return data[at : at + size], at + size


def _after_group(data: bytes, at: int) -> int:
    depth = 1
    while depth:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind in {_GROUP, _END}:
            depth += 1 if kind == _GROUP else -1
        else:
            _, at = _value(data, at, kind)
    return at


def messages(data: bytes, number: int) -> list[bytes]:
    """Every value of a repeated message, or the parts of a single one."""
    return [
        value
        for found, kind, value in fields(data)
        if found == number and kind == _BYTES and isinstance(value, bytes)
    ]


def texts(data: bytes, number: int) -> list[str]:
    """Every value of a repeated string."""
    return [value.decode() for value in messages(data, number)]


def text(data: bytes, number: int) -> str:
    """The last value of a string: that is the one that counts."""
    return (texts(data, number) or [""])[-1]


def number_of(data: bytes, number: int) -> int:
    """The last value of an int64."""
    found = [value for field, kind, value in fields(data) if field == number and kind == _VARINT]
    value = found[-1] if found else 0
    assert isinstance(value, int)
    return value - 2**64 if value >= 2**63 else value


def holders(listed: bytes) -> set[Held]:
    """Every device that a List says is held, and by whom."""
    return {
        (text(entry, 1), device, text(pod, 2), text(pod, 1), text(container, 1))
        for pod in messages(listed, 1)
        for container in messages(pod, 3)
        for entry in messages(container, 2)
        for device in texts(entry, 2)
    }


def claimed(listed: bytes) -> set[tuple[str, ...]]:
    """Driver, pool, device, share, the claim's namespace and name, the holder's three names."""
    return {
        (
            *(text(device, 2), text(device, 3), text(device, 4), text(device, 5)),
            *(text(claim, 3), text(claim, 2), text(pod, 2), text(pod, 1), text(container, 1)),
        )
        for pod in messages(listed, 1)
        for container in messages(pod, 3)
        for claim in messages(container, 5)
        for device in messages(claim, 4)
    }


def placed(entries: list[bytes]) -> dict[tuple[str, str], set[int]]:
    """The NUMA nodes of each device of these entries."""
    found: dict[tuple[str, str], set[int]] = {}
    for entry in entries:
        nodes = {number_of(node, 1) for topology in messages(entry, 3) for node in messages(topology, 1)}
        for device in texts(entry, 2):
            found.setdefault((text(entry, 1), device), set()).update(node for node in nodes if node >= 0)
    return found


def held_entries(listed: bytes) -> list[bytes]:
    """Every entry of devices that a List has."""
    return [
        entry
        for pod in messages(listed, 1)
        for container in messages(pod, 3)
        for entry in messages(container, 2)
    ]


def pod_of_event(event: bytes) -> tuple[int, str, str, str]:
    """The type of a WatchPods event, and its pod's namespace, name and uid. The parts of `metadata` that come
    one after another are one.
    """
    pod = (messages(event, 2) or [b""])[-1]
    metadata = b"".join(messages(pod, 1))
    return number_of(event, 1), text(metadata, 3), text(metadata, 1), text(metadata, 5)
