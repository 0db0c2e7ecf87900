"""What a dry run found, in the shape that scripts rely on: fields may be added, none is ever renamed."""

import msgspec


class DeviceDocument(msgspec.Struct, frozen=True):
    """One physical device. `ids`: what it is advertised by; `reason` is empty while it is healthy."""

    id: str
    ids: tuple[str, ...]
    name: str
    path: str
    nodes: tuple[str, ...]
    numa_nodes: tuple[int, ...]
    attributes: dict[str, str]
    health: str
    """`Healthy` or `Unhealthy`, as the kubelet would be told."""
    reason: str


class LeftOut(msgspec.Struct, frozen=True):
    """Something that was found and is not advertised: its path or name, and why."""

    device: str
    reason: str


class Conflict(msgspec.Struct, frozen=True):
    """A device, or an advertised id, that another resource has."""

    device: str
    resource: str


class MountAnswer(msgspec.Struct, frozen=True):
    """A mount, as the device plugin API has it."""

    container_path: str
    host_path: str
    read_only: bool


class NodeAnswer(msgspec.Struct, frozen=True):
    """A device node, as the device plugin API has it."""

    container_path: str
    host_path: str
    permissions: str


class CdiAnswer(msgspec.Struct, frozen=True):
    """A CDI name, as the device plugin API has it."""

    name: str


class Answer(msgspec.Struct, frozen=True):
    """One ContainerAllocateResponse, field by field."""

    envs: dict[str, str]
    mounts: tuple[MountAnswer, ...]
    devices: tuple[NodeAnswer, ...]
    annotations: dict[str, str]
    cdi_devices: tuple[CdiAnswer, ...]


class Refused(msgspec.Struct, frozen=True):
    """What Allocate would refuse with: a gRPC code's name and its message."""

    code: str
    message: str


class Made(msgspec.Struct, frozen=True):
    """What would be made where nothing is: a `directory` or a `file`."""

    path: str
    kind: str


class Written(msgspec.Struct, frozen=True):
    """A file that would be written; `mode` in octal digits."""

    path: str
    mode: str
    content: str


class Allocation(msgspec.Struct, frozen=True):
    """What one container would get that is given `ids`: `answer`, or `refused`.

    `dropped`: optional paths that the host does not have. `pre_start`: the programs that would be run.
    """

    ids: tuple[str, ...]
    answer: Answer | None = None
    refused: Refused | None = None
    dropped: tuple[str, ...] = ()
    makes: tuple[Made, ...] = ()
    writes: tuple[Written, ...] = ()
    pre_start: tuple[tuple[str, ...], ...] = ()


class Specification(msgspec.Struct, frozen=True):
    """The CDI specification that would be written; `content` None: none, for it would have no device.

    `left_out`: devices that cannot be in it.
    """

    path: str
    content: dict[str, object] | None
    left_out: tuple[LeftOut, ...] = ()


class ResourceDocument(msgspec.Struct, frozen=True):
    """One resource. `family`: the template of its name, where devices name it.

    `problem`: why nothing could be found out; `notes`: why there may be less than one would think.
    `conflicts`: devices that an earlier resource keeps; `clashes`: ids that another one advertises too.
    """

    name: str
    family: str | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()
    registers: bool = False
    """Whether it would be registered now; else it waits for devices."""
    devices: tuple[DeviceDocument, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    clashes: tuple[Conflict, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    cdi: Specification | None = None


class DiscoverDocument(msgspec.Struct, frozen=True):
    """A dry run."""

    version: int
    host_root: str
    resources: tuple[ResourceDocument, ...]
