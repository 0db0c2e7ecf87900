"""Paths and readers of the kubelet recordings in tests/data/recordings."""

from pathlib import Path

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"


def recorded(kind: str) -> list[bytes]:
    """The serialized responses of one kind: `list` or `allocatable`."""
    return [path.read_bytes() for path in sorted(RECORDINGS.glob(f"*.{kind}.binpb"))]


def watch_messages() -> list[bytes]:
    """The serialized events of the recorded WatchPods stream."""
    data = (RECORDINGS / "pods-api.watch.binpb").read_bytes()
    messages: list[bytes] = []
    while data:
        size = int.from_bytes(data[:4], "big")
        messages.append(data[4 : 4 + size])
        data = data[4 + size :]
    return messages
