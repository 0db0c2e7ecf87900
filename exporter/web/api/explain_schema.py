"""The shape of /api/v1/explain. `devicelens explain` decodes and writes the same."""

from typing import Annotated

from msgspec import Struct

from exporter.web.api.schema import AnomalyEntry, ClaimEntry, DeviceEntry, Envelope, NumaNodes, one_of


class ReadingEntry(Struct, frozen=True):
    """How an id was read: by which rule, as whole, replica or partition; as which one, and of what."""

    rule: str
    kind: Annotated[str, one_of("whole", "replica", "partition")]
    parent: str | None
    replica: str | None
    partition: str | None


class NumaEntry(Struct, frozen=True):
    """NUMA nodes, and who tells: kubelet, plugin, or null for nobody."""

    nodes: NumaNodes
    told_by: Annotated[str | None, one_of("kubelet", "plugin", None)]


class ExplainDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/explain?device=ID&resource=NAME: one device, in `sentences` first and in facts after.

    `subject` is device, parent (what is behind shares or parts, and no device that the kubelet knows by
    itself) or claimed (given through ResourceClaims); `entry`, `numa` and `resource` are null for the last
    two. `siblings` are the other devices of its parent, `parts` those whose parent it is; 100 of each at
    most. `elsewhere` are further resources that have a device of this id. `why_nobody` says why no pod is
    named as its holder, null where one is.
    """

    sentences: tuple[str, ...]
    subject: Annotated[str, one_of("device", "parent", "claimed")]
    resource: str | None
    device: str
    reading: ReadingEntry
    parent: str | None
    parent_reading: ReadingEntry | None
    elsewhere: tuple[str, ...]
    entry: DeviceEntry | None
    numa: NumaEntry | None
    attributed: bool
    why_nobody: str | None
    siblings: tuple[DeviceEntry, ...]
    parts: tuple[DeviceEntry, ...]
    claims: tuple[ClaimEntry, ...]
    anomalies: tuple[AnomalyEntry, ...]
