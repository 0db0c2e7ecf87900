"""Reads CDI specifications: what a container runtime adds to a container that has a CDI device name. Pure.

A specification describes containers, not devices, so only texts that name a physical device without doubt
count (physical_ids). DRA drivers and runtimes write, for example (read in November 2026):

- NVIDIA: device nodes, hooks that link `/dev/dri/by-path/pci-ADDRESS-card`, and for all devices
  `NVIDIA_VISIBLE_DEVICES=void`; the NVIDIA Container Toolkit names devices by index or UUID;
- Intel: mounts of `/dev/dri/by-path/pci-ADDRESS-card`;
- dra-example-driver: variables such as `GPU_DEVICE_0_RESOURCE_CLAIM`, the claim's uid.

A plain UUID counts only in a variable or annotation that calls it one: uids of claims and pods have the same
form. What a specification adds for all its devices tells them not apart, and is left out.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from exporter.mapping.dra import CdiDevice
from exporter.mapping.physical_ids import gpu_uuid, pci_addresses_in, uuid
from runtime.text import quoted, visible

MAX_BYTES: Final = 1 << 20
"""Bytes of a specification."""
MAX_DEVICES: Final = 16_384
"""Devices of all specifications."""

_NAMES: Final = 64
"""UUIDs or PCI addresses of a device that are kept: `all` has those of every GPU."""
_NODES: Final = 32
_PATH: Final = 256
_NAME: Final = 253
_DEPTH: Final = 32
_YAML_EVENTS: Final = 262_144
_KIND: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_LOOKS_LIKE_JSON: Final = re.compile(rb"\s*\{")


class CdiSpecError(ValueError):
    """A specification that cannot be used. The text is one line: the file and the problem."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(f"{visible(source)}: {visible(problem, 256)}")


class _Node(Struct):
    path: str = ""
    host_path: str = field(default="", name="hostPath")


class _Mount(Struct):
    host_path: str = field(default="", name="hostPath")
    container_path: str = field(default="", name="containerPath")


class _Hook(Struct):
    args: list[str] | None = None


class _Edits(Struct):
    env: list[str] | None = None
    nodes: list[_Node] | None = field(default=None, name="deviceNodes")
    mounts: list[_Mount] | None = None
    hooks: list[_Hook] | None = None


class _Device(Struct):
    name: str
    edits: _Edits = field(default_factory=_Edits, name="containerEdits")
    annotations: dict[str, str] | None = None


class _Spec(Struct):
    kind: str
    devices: list[_Device] | None = None


_DECODER: Final = msgspec.json.Decoder(_Spec)


def read_spec(content: bytes, source: str) -> Mapping[str, CdiDevice]:
    """The devices of the specification `content`, JSON or YAML, by their names `vendor/class=name`.

    `source` names the file. Raises CdiSpecError for what is no specification, and for more than MAX_BYTES or
    MAX_DEVICES. Unknown members are allowed: CDI adds some with each version.
    """
    if len(content) > MAX_BYTES:
        raise CdiSpecError(source, f"the file has more than {MAX_BYTES} bytes")
    try:
        if _LOOKS_LIKE_JSON.match(content) is not None:
            spec = _DECODER.decode(content)
        else:
            spec = msgspec.convert(_from_yaml(content, source), _Spec)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CdiSpecError(source, f"not a CDI specification: {error}") from None
    devices = spec.devices or []
    if len(spec.kind) > _NAME or _KIND.fullmatch(spec.kind) is None:
        raise CdiSpecError(source, f"the kind {quoted(spec.kind)} is not VENDOR/CLASS")
    if len(devices) > MAX_DEVICES:
        raise CdiSpecError(source, f"there are more than {MAX_DEVICES} devices")
    found: dict[str, CdiDevice] = {}
    for device in devices:
        if len(device.name) > _NAME or _DEVICE.fullmatch(device.name) is None:
            raise CdiSpecError(source, f"{quoted(device.name)} is not the name of a CDI device")
        name = f"{spec.kind}={device.name}"
        if name in found:
            raise CdiSpecError(source, f"the device {quoted(device.name)} is there twice")
        found[name] = _read(device)
    return MappingProxyType(found)


def combined(directories: Iterable[Iterable[Mapping[str, CdiDevice]]]) -> Mapping[str, CdiDevice]:
    """The devices of all specifications, by directory, of which a later one overrides the earlier ones.

    CDI: a name that two files of one directory have is a conflict, and no runtime injects that device.
    At most MAX_DEVICES are kept, the first by name.
    """
    devices: dict[str, CdiDevice] = {}
    for specifications in directories:
        seen: dict[str, CdiDevice | None] = {}
        for one in specifications:
            seen |= {name: None if name in seen else device for name, device in one.items()}
        for name, device in seen.items():
            if device is None:
                devices.pop(name, None)
            else:
                devices[name] = device
    return MappingProxyType({name: devices[name] for name in sorted(devices)[:MAX_DEVICES]})


def _read(device: _Device) -> CdiDevice:
    edits = device.edits
    pairs = [(name, value) for name, _, value in [pair.partition("=") for pair in edits.env or ()]]
    pairs += (device.annotations or {}).items()
    nodes = [node.host_path or node.path for node in edits.nodes or ()]
    texts = [*[value for _, value in pairs], *nodes]
    texts += [text for one in edits.mounts or () for text in (one.host_path, one.container_path)]
    texts += [text for hook in edits.hooks or () for text in hook.args or () if "/" in text]
    return CdiDevice(
        uuids=_kept([gpu_uuid(device.name), *_uuids(pairs)], _NAMES),
        pci_addresses=_kept([one for text in texts for one in pci_addresses_in(text)], _NAMES),
        device_nodes=_kept([one for one in nodes if len(one) <= _PATH and one.isprintable()], _NODES),
    )


def _kept(texts: Sequence[str], limit: int) -> tuple[str, ...]:
    """The first texts that are not empty, each once, sorted."""
    return tuple(sorted(list(dict.fromkeys(filter(None, texts)))[:limit]))


def _uuids(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in pairs:
        words = re.split(r"[^A-Z]+", name.upper()[:_NAME])
        plain = "UUID" in words and not {"CLAIM", "POD"} & set(words)
        for part in value.split(",", _NAMES):
            yield (uuid if plain else gpu_uuid)(part.strip())


def _from_yaml(content: bytes, source: str) -> Any:
    """The document, all scalars as text. Aliases and deep nesting are refused: small files can expand."""
    import yaml  # noqa: PLC0415 -- 3 MiB that only a file in YAML needs

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    depth = 0
    try:
        for number, event in enumerate(yaml.parse(content, loader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > _DEPTH or number > _YAML_EVENTS:
                raise CdiSpecError(source, "the YAML has aliases, or is too large or too deeply nested")
        return yaml.load(content, loader)  # noqa: S506 -- a BaseLoader makes nothing but texts, lists and mappings
    except yaml.YAMLError as error:
        raise CdiSpecError(source, f"not YAML: {' '.join(str(error).split())}") from None
