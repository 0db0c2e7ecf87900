"""What is wrong, judged from one snapshot and from what plugins tell. judgement adds what takes time."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from exporter.core.advertised import NOTHING, Advertised
from exporter.core.ids import Kind, Reader, read
from exporter.core.model import Device, DeviceKey, Holder, PodKey, Snapshot

_NAMED: Final = 5
"""Names in a sentence; the facts have more."""
_FACTS: Final = 64
"""Names in the facts."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong: its `kind` (docs/messages.md), where, who is hit, and the evidence in
    words. `device` is "" and `holder` None where it concerns a whole resource or no pod.

    `since` is the unix time at which it was first seen, None where nobody watched. The facts behind the
    words: the `devices` and `pods` that are part of it, and the `numa_nodes` that could have served.
    """

    kind: str
    resource: str
    device: str = ""
    holder: Holder | None = None
    evidence: str = ""
    since: float | None = None
    devices: tuple[str, ...] = ()
    pods: tuple[PodKey, ...] = ()
    numa_nodes: tuple[int, ...] = ()


def find(
    snapshot: Snapshot,
    advertised: Advertised = NOTHING,
    *,
    reader: Reader = read,
    further: Iterable[Anomaly] = (),
) -> tuple[Anomaly, ...]:
    """The anomalies of `snapshot`, sorted: plugin_gone, unhealthy_held, double_held, and `further` ones.

    A resource whose plugin is gone is told once for the resource, not again for each device.
    Nothing is said of health while the kubelet cannot tell what is allocatable.
    """
    found: list[Anomaly] = list(further)
    gone: set[str] = set()
    if snapshot.complete:
        for resource, counts in snapshot.resources().items():
            # A plugin that the kubelet follows, and whose devices are all ill, is not gone.
            if counts.allocatable == 0 and counts.allocated > 0 and not advertised.serves(resource):
                gone.add(resource)
                found.append(_plugin_gone(resource, snapshot, advertised))
    parts: list[Device] = []
    for device in snapshot.devices:
        holders = device.holders
        if not holders:
            continue
        if not device.allocatable and device.key.resource not in gone:
            found.extend(_unhealthy_held(device, advertised))
        if device.parent:
            parts.append(device)
        if len(holders) > 1 and not _shared(device, advertised, reader):
            found.extend(_double_held(device))
    if parts:
        found.extend(_whole_and_parts(snapshot, parts))
    return tuple(sorted(set(found), key=order))


def order(anomaly: Anomaly) -> tuple[str, str, str, Holder]:
    """How anomalies are sorted."""
    return anomaly.kind, anomaly.resource, anomaly.device, anomaly.holder or Holder("", "", "")


def listed(names: Collection[str]) -> str:
    """`a, b, c`, and how many more there are."""
    shown = ", ".join(list(names)[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def pods_of(holders: Iterable[Holder]) -> tuple[PodKey, ...]:
    """The pods of `holders`, each once, sorted."""
    return tuple(sorted({(holder.namespace, holder.pod) for holder in holders}))


def _names(pods: Iterable[PodKey]) -> list[str]:
    return [f"{namespace}/{pod}" for namespace, pod in pods]


def _plugin_gone(resource: str, snapshot: Snapshot, advertised: Advertised) -> Anomaly:
    held = [device for device in snapshot.devices if device.key.resource == resource and device.holders]
    pods = pods_of(holder for device in held for holder in device.holders)
    evidence = f"none is allocatable, while {len(held)} of its devices are held by {listed(_names(pods))}"
    word = advertised.resources.get(resource)
    if word is not None and not word.telling.answers:
        evidence += f"; its plugin does not answer: {word.telling.problem}"
    elif word is not None:
        evidence += (
            "; its plugin answers, but the kubelet follows it no longer"
            if word.resource.registered
            else "; its plugin answers, but is not registered with the kubelet"
        )
    devices = tuple(device.key.device for device in held)[:_FACTS]
    return Anomaly("plugin_gone", resource, evidence=evidence, devices=devices, pods=pods[:_FACTS])


def _unhealthy_held(device: Device, advertised: Advertised) -> Iterator[Anomaly]:
    key = device.key
    evidence = "it is held but not allocatable"
    told = advertised.devices.get(key)
    if told is not None:
        when = "says" if advertised.answers(key.resource) else "last said"
        if told.healthy:
            evidence += f"; its plugin {when} that it is healthy"
        else:
            evidence += f"; its plugin {when} why: {told.reason or 'it is not healthy'}"
    for holder in device.holders:
        yield Anomaly(
            *("unhealthy_held", key.resource, key.device, holder, evidence),
            devices=(key.device,),
            pods=pods_of((holder,)),
        )


def _double_held(device: Device) -> Iterator[Anomaly]:
    """The kubelet gives an id to one container at a time, and a pod's containers may hand it on."""
    if not _of_several(device.holders):
        return
    pods = pods_of(device.holders)
    alike = "" if len(pods) > 1 else " under one name"
    count = max(len(pods), len({holder.pod_uid for holder in device.holders}))
    evidence = f"{count} pods hold it{alike}: {listed(_names(pods))}"
    key = device.key
    for holder in device.holders:
        yield Anomaly(
            *("double_held", key.resource, key.device, holder, evidence),
            devices=(key.device,),
            pods=pods[:_FACTS],
        )


def _of_several(holders: Iterable[Holder]) -> bool:
    """Whether they are of several pods: other names, or two uids that are both known."""
    pods: dict[PodKey, set[str]] = {}
    for holder in holders:
        pods.setdefault((holder.namespace, holder.pod), set()).update({holder.pod_uid} - {""})
    return len(pods) > 1 or any(len(uids) > 1 for uids in pods.values())


def _shared(device: Device, advertised: Advertised, reader: Reader) -> bool:
    """Whether it is one of several shares, by its id or by its plugin."""
    key = device.key
    told = advertised.devices.get(key)
    return reader(key.device, key.resource).kind is Kind.REPLICA or (told is not None and bool(told.parent))


def _whole_and_parts(snapshot: Snapshot, parts: Iterable[Device]) -> Iterator[Anomaly]:
    """Devices that one pod holds as a whole while another one holds a part: what a plugin leaves behind that
    was told to divide what it had given out already.
    """
    of_parent: dict[DeviceKey, list[Device]] = {}
    for part in parts:
        of_parent.setdefault(DeviceKey(_plain(part.key.resource), part.parent), []).append(part)
    wholes = (
        (device, of_parent.get(DeviceKey(_plain(device.key.resource), device.key.device)))
        for device in snapshot.devices
        if device.holders
    )
    for whole, held in wholes:
        if held is None:
            continue
        holders = [*whole.holders, *(holder for part in held for holder in part.holders)]
        if not _of_several(holders):
            continue
        pods = pods_of(holder for part in held for holder in part.holders)
        evidence = (
            f"{listed(_names(pods_of(whole.holders)))} holds it as a whole, "
            f"{listed(_names(pods))} a part of it: {listed([part.key.device for part in held])}"
        )
        ids = (whole.key.device, *(part.key.device for part in held))[:_FACTS]
        for holder in whole.holders:
            yield Anomaly(
                *("double_held", whole.key.resource, whole.key.device, holder, evidence),
                devices=ids,
                pods=pods_of(holders)[:_FACTS],
            )


def _plain(resource: str) -> str:
    """NVIDIA's plugin calls a resource that it shares `….shared`: the same devices under another name."""
    return resource.removesuffix(".shared")
