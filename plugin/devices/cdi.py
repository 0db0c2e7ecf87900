"""CDI specifications: what a container runtime adds to a container that has a device's CDI name.

The rules are those that the Go package of the Container Device Interface checks when a runtime reads a
file: a specification has at least one device, a device has at least one edit, names consist of certain
characters and are unique, and `cdiVersion` is at least the version that introduced a feature in use.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from plugin import names
from plugin.config.plan import CdiPlan, Entry, MountEntry, NodeEntry, ResourcePlan
from plugin.devices.device import Device
from plugin.devices.rendering import ContainerNode, Mount, Renderer, distinct

_BASE: Final = "0.3.0"
_HOST_PATHS_AND_DIGITS: Final = "0.5.0"
_DOTS_IN_CLASSES: Final = "0.6.0"

_EACH: Final = frozenset({"device", "node"})


class Edits(Struct, frozen=True):
    """What a runtime adds to a container."""

    env: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[ContainerNode, ...] = ()
    mounts: tuple[Mount, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.env or self.nodes or self.mounts)


def qualified(kind: str, name: str) -> str:
    """The qualified name of a device."""
    return f"{kind}={name}"


def name_of(plan: CdiPlan, resource: str, device: Device) -> str:
    """A device's name in the specification. Raises RenderError."""
    renderer = Renderer("cdi", resource, [device])
    (variables,) = renderer.scopes(plan.name)
    return renderer.render(plan.name, variables, "name", names.cdi_device_problem)


def names_of(plan: ResourcePlan, devices: Sequence[Device]) -> tuple[str, ...]:
    """The qualified names of `devices` in the resource's own specification. Raises RenderError."""
    if plan.cdi is None:
        return ()
    own = plan.cdi
    return distinct(qualified(own.kind, name_of(own, plan.name, device)) for device in devices)


def edits_of(plan: CdiPlan, resource: str, device: Device) -> Edits:
    """The edits of one device, with optional ones. Raises RenderError."""
    return _edits(plan, Renderer("cdi", resource, [device]), own=True)


def common_edits(plan: CdiPlan, resource: str) -> Edits:
    """The edits that apply once, whichever devices a container has. Raises RenderError."""
    return _edits(plan, Renderer("cdi", resource, []), own=False)


def _edits(plan: CdiPlan, renderer: Renderer, *, own: bool) -> Edits:
    # Filtered rather than split: error messages have the index of an entry in the document.
    def mine(entry: Entry | NodeEntry | MountEntry) -> bool:
        templates = (entry.name, entry.value) if isinstance(entry, Entry) else (entry.host, entry.container)
        return any(template.uses & _EACH for template in templates) is own

    return Edits(
        env=renderer.entries("env", filter(mine, plan.env), names.variable_problem),
        nodes=renderer.nodes(plan.devices, mine),
        mounts=renderer.mounts(plan.mounts, mine),
    )


def document(kind: str, devices: Mapping[str, Edits], common: Edits) -> bytes | None:
    """The specification's JSON, None where it has no device, since that is invalid.

    `devices`: edits by name. CDI requires edits for each device: one without any gets the common ones, and
    is left out where there are none either.
    """
    entries = [
        {"name": name, "containerEdits": _written(devices[name] or common)}
        for name in listed(devices, common)
    ]
    if not entries:
        return None
    spec: dict[str, Any] = {
        "cdiVersion": _version(kind, devices, common),
        "kind": kind,
        "devices": entries,
    }
    if common:
        spec["containerEdits"] = _written(common)
    return msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n"


def listed(devices: Mapping[str, Edits], common: Edits) -> tuple[str, ...]:
    """The names of the devices in the specification."""
    return tuple(name for name, edits in devices.items() if edits or common)


def file_name(kind: str, resource: str) -> str:
    """The name of the file: VENDOR-CLASS_ID.json, the convention of other CDI producers."""
    return f"{kind.replace('/', '-')}_devicelens_{resource.replace('/', '_')}.json"


def _version(kind: str, devices: Mapping[str, Edits], common: Edits) -> str:
    """The lowest version with all features in use: an older container runtime refuses a newer one."""
    if "." in kind.partition("/")[2]:
        return _DOTS_IN_CLASSES
    nodes = (node for edits in (common, *devices.values()) for node in edits.nodes)
    if any(name[0].isdigit() for name in devices) or any(node.host != node.container for node in nodes):
        return _HOST_PATHS_AND_DIGITS
    return _BASE


def _written(edits: Edits) -> dict[str, Any]:
    parts: dict[str, Iterable[Any]] = {
        "env": [f"{name}={value}" for name, value in edits.env.items()],
        "deviceNodes": [_node(node) for node in edits.nodes],
        "mounts": [_mount(mount) for mount in edits.mounts],
    }
    return {key: value for key, value in parts.items() if value}


def _node(node: ContainerNode) -> dict[str, str]:
    # Without type and numbers: the runtime reads them from the host when the container starts.
    written = {"path": node.container, "permissions": node.permissions}
    if node.host != node.container:
        written["hostPath"] = node.host
    return written


def _mount(mount: Mount) -> dict[str, Any]:
    options = ["rbind", "rprivate", "ro" if mount.read_only else "rw"]
    return {"hostPath": mount.host, "containerPath": mount.container, "options": options}
