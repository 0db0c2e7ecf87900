"""Reads which physical devices another scheduler chose, from a pod's annotations. Pure.

HAMi and Volcano share a GPU among pods: their plugins offer many ids of one GPU, the kubelet allocates any of
them, and the annotation names the GPU that the container uses. Formats:

- HAMi (docs/develop/protocol.md): `hami.io/<vendor>-devices-allocated`, one annotation for each vendor. Each
  container's devices end with `;`, each device with `:`. A device is `UUID,type,memory,cores`. The containers
  are the pod's init containers and its containers, in this order; before HAMi 2.9 its containers alone.
- Volcano (vgpu): `volcano.sh/vgpu-ids-new`. A device is the same; `;` separates the containers that ask for a
  vGPU. Which do is known only where all containers do: else the annotation counts as unreadable.
- Volcano (GPU share and GPU number): `volcano.sh/gpu-index`, the indexes of cards. An index names no physical
  device, so the annotation counts as unreadable.

An annotation in another form is unreadable: nothing is guessed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from exporter.mapping.dra import ChosenDevice

_VGPU: Final = "volcano.sh/vgpu-ids-new"
_INDEX: Final = "volcano.sh/gpu-index"
_ALLOCATED: Final = "-devices-allocated"
_PREFIXES: Final = ("hami.io/", "volcano.sh/")

_LENGTH: Final = 64 * 1024
"""Characters of an annotation. Kubernetes limits all annotations of an object to 256 KiB."""
_NAME: Final = 317
_UUID: Final = 128
_DEVICES: Final = 256
"""Devices of one pod."""

# The type names a product, so it may have spaces. HAMi before 2.10 appends the slot of a MIG partition to the
# UUID, in brackets.
_DEVICE: Final = re.compile(
    rf"([0-9A-Za-z][0-9A-Za-z._/-]{{0,{_UUID - 1}}})(?:\[\d{{1,4}}-\d{{1,4}}\])?"
    r",[^,:;]{0,256},-?\d{1,12},-?\d{1,12}(?:,[^,:;]{0,256}){0,8}",
    re.ASCII,
)


def is_choice(annotation: str) -> bool:
    """Whether the annotation of this name says which devices a scheduler chose."""
    return annotation.endswith((_ALLOCATED, _VGPU, _INDEX)) and annotation.startswith(_PREFIXES)


def chosen_devices(
    annotations: Mapping[str, str], init_containers: Sequence[str], containers: Sequence[str]
) -> tuple[tuple[ChosenDevice, ...], str]:
    """The devices that other schedulers chose, and the name of the first annotation that cannot be read, ""
    without any. The sequences are the names of the pod's containers, in the order of its spec.
    """
    chosen: list[ChosenDevice] = []
    for name in sorted(filter(is_choice, annotations)):
        text = annotations[name]
        found: list[ChosenDevice] | None = None
        if len(text) > _LENGTH:
            pass
        elif name == _VGPU:
            found = _devices("Volcano", text.split(";") if text else [], [containers])
        elif name.endswith(_ALLOCATED) and text.endswith(";"):
            found = _devices("HAMi", text[:-1].split(";"), [[*init_containers, *containers], containers])
        if found is None or len(chosen) + len(found) > _DEVICES:
            return (), name[:_NAME]
        chosen += found
    return tuple(chosen), ""


def _devices(
    scheduler: str, entries: Sequence[str], containers: Sequence[Sequence[str]]
) -> list[ChosenDevice] | None:
    """The devices of one annotation; None if it cannot be read. Its entries belong to those of `containers`
    that are as many.
    """
    if not entries:
        return []  # Volcano: no container uses a vGPU
    named = next((names for names in containers if len(names) == len(entries)), None)
    if named is None:
        return None
    found: list[ChosenDevice] = []
    for container, entry in zip(named, entries, strict=True):
        for device in entry.removesuffix(":").split(":") if entry else ():
            match = _DEVICE.fullmatch(device)
            if match is None or len(found) == _DEVICES:
                return None
            found.append(ChosenDevice(scheduler, container, match[1]))
    return found
