"""The status page's rows: devices, claims, and containers with CPUs or memory of their own. Pure."""

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1
from typing import Final

from exporter.core.advertised import Advertised
from exporter.core.diff import Holding
from exporter.core.holdings import Since
from exporter.core.model import ClaimDevice, Container, Device, Holder
from exporter.core.state import State
from exporter.web.query import Filters, address
from exporter.web.words import Text, clock_time, counted, lasting, ranges, rfc3339, size, spelled, text

_NUMBER: Final = re.compile(r"([0-9]+)(?![0-9A-Za-z])")
_ID_LIMIT: Final = 52
"""Characters of an id that are shown: a share of a GPU, by UUID, is one line."""
_REMEMBERED_LENGTH: Final = 64
"""Characters of a name whose sort key is remembered: at most 4 KiB each, 1 KiB as ids usually are."""
HOLDERS_LIMIT: Final = 50
"""Holders shown of one device; the API has all."""


@dataclass(frozen=True, slots=True)
class When:
    """A moment: for a machine, for the clock, and how long ago. `exact` false: then or earlier."""

    iso: str
    clock: str
    ago: str
    exact: bool = True


@dataclass(frozen=True, slots=True)
class HolderLine:
    """One holder of a device, with the address that shows all that its pod holds.

    `workload` is what the pod belongs to, None where that is not known or nothing but the pod.
    """

    key: str
    namespace: Text
    pod: Text
    container: Text
    address: str
    since: When | None
    workload: Text | None


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device. Its id is `stem` and `tail`, where it begins with its parent's, else `tail` alone.

    `parent` is only there where the id does not show it. `state` is one of held, free, unhealthy,
    unknown; `words` say it, and `reason` says why it is unhealthy, where its plugin tells.
    """

    key: str
    stem: str
    tail: str
    whole: str
    parent: Text | None
    resource: Text
    state: str
    words: str
    reason: Text | None
    numa: str
    holders: tuple[HolderLine, ...]
    more: int


@dataclass(frozen=True, slots=True)
class ClaimLine:
    """One holder of a claimed device, and the claim."""

    key: str
    claim: Text
    namespace: Text
    pod: Text
    container: Text
    address: str


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """One claimed device (DRA)."""

    key: str
    device: Text
    share: Text | None
    pool: Text
    driver: Text
    cdi: tuple[Text, ...]
    holders: tuple[ClaimLine, ...]
    more: int


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """One container with exclusive CPUs or pinned memory."""

    key: str
    namespace: Text
    pod: Text
    container: Text
    address: str
    cpus: str
    cpu_count: str
    memory: tuple[Text, ...]
    numa: str


def device_row(device: Device, state: State, now: float) -> DeviceRow:
    """A device's row at unix time `now`."""
    complete = state.snapshot.complete
    healthy = device.allocatable or not complete
    stem, tail, parent = _id(device)
    return DeviceRow(
        key=row_key("device", device.key.resource, device.key.device),
        stem=stem,
        tail=tail.shown,
        whole=tail.whole,
        parent=parent,
        resource=text(device.key.resource, limit=_ID_LIMIT),
        state=("held" if device.holders else "free") if healthy else "unhealthy",
        words=_words(device, healthy=healthy),
        reason=None if healthy else _reason(device, state.advertised),
        numa=ranges(device.numa_nodes),
        holders=tuple(
            _holder_line(h, state, state.since.get(Holding(device.key, h)), now)
            for h in device.holders[:HOLDERS_LIMIT]
        ),
        more=max(0, len(device.holders) - HOLDERS_LIMIT),
    )


def _words(device: Device, *, healthy: bool) -> str:
    if not healthy:
        return "unhealthy, held" if device.holders else "unhealthy"
    if not device.holders:
        return "free"
    return "held" if len(device.holders) == 1 else f"held by {len(device.holders)}"


def _reason(device: Device, advertised: Advertised) -> Text | None:
    """Why it is not healthy, by its plugin; None where that tells nothing."""
    told, word = advertised.devices.get(device.key), advertised.resources.get(device.key.resource)
    if told is None or word is None:
        return None
    if not word.telling.answers:
        return Text("its plugin does not answer")
    if not told.healthy:
        return text(told.reason, limit=120) if told.reason else None
    return Text(
        "its plugin calls it healthy" if word.resource.served else "the kubelet does not follow its plugin"
    )


def _id(device: Device) -> tuple[str, Text, Text | None]:
    """The id with what it shares with its parent set apart, or the parent beside it."""
    raw, parent = device.key.device, device.parent
    shown = text(raw, limit=_ID_LIMIT)
    if not parent:
        return "", shown, None
    stem = spelled(parent)
    if not shown.whole and shown.shown.startswith(stem) and shown.shown != stem:
        return stem, Text(shown.shown.removeprefix(stem), shown.shown), None
    return "", shown, text(parent, limit=_ID_LIMIT)


def _holder_line(holder: Holder, state: State, since: Since | None, now: float) -> HolderLine:
    identity = state.pods.get((holder.namespace, holder.pod))
    work = None if identity is None or identity.workload.kind in {"", "Pod"} else identity.workload
    return HolderLine(
        key=row_key(holder.namespace, holder.pod, holder.container, holder.pod_uid),
        namespace=text(holder.namespace),
        pod=text(holder.pod),
        container=text(holder.container),
        address=_of_pod(holder),
        since=None if since is None else when(since.at, now, exact=since.exact),
        workload=None if work is None else text(f"{work.kind} {work.name}"),
    )


def when(at: float, now: float, *, exact: bool = True) -> When:
    """Unix time `at`, seen at `now`."""
    return When(rfc3339(at), clock_time(at, now), lasting(now - at), exact)


def claim_row(claim: ClaimDevice) -> ClaimRow:
    """A claimed device's row."""
    key = claim.key
    return ClaimRow(
        key=row_key("claim", key.driver, key.pool, key.device, key.share_id),
        device=text(key.device),
        share=text(key.share_id) if key.share_id else None,
        pool=text(key.pool),
        driver=text(key.driver),
        cdi=tuple(text(name, limit=120) for name in claim.cdi_devices[:HOLDERS_LIMIT]),
        holders=tuple(
            ClaimLine(
                key=row_key(through.claim_namespace, through.claim, *_names(through.holder)),
                claim=text(_claim_name(through.claim_namespace, through.claim, through.holder)),
                namespace=text(through.holder.namespace),
                pod=text(through.holder.pod),
                container=text(through.holder.container),
                address=_of_pod(through.holder),
            )
            for through in claim.holders[:HOLDERS_LIMIT]
        ),
        more=max(0, len(claim.holders) - HOLDERS_LIMIT),
    )


def _claim_name(namespace: str, claim: str, holder: Holder) -> str:
    """A claim is in its pod's namespace; should it not be, that is told."""
    return claim if namespace == holder.namespace else f"{namespace}/{claim}"


def container_row(container: Container) -> ContainerRow:
    """The row of a container with exclusive CPUs or pinned memory."""
    holder = container.holder
    return ContainerRow(
        key=row_key("container", *_names(holder)),
        namespace=text(holder.namespace),
        pod=text(holder.pod),
        container=text(holder.container),
        address=_of_pod(holder),
        cpus=text(ranges(container.cpu_ids), limit=120).shown,
        cpu_count=counted(len(container.cpu_ids), "CPU"),
        memory=tuple(
            text(f"{size(m.size_bytes)} {m.memory_type}{_on(m.numa_nodes)}") for m in container.memory[:20]
        ),
        numa=ranges(container.numa_nodes),
    )


def _on(nodes: tuple[int, ...]) -> str:
    return f" on NUMA {ranges(nodes)}" if nodes else ""


def _of_pod(holder: Holder) -> str:
    return address(Filters(namespace=spelled(holder.namespace)[:512], pod=spelled(holder.pod)[:512]))


def _names(holder: Holder) -> tuple[str, str, str, str]:
    return holder.namespace, holder.pod, holder.container, holder.pod_uid


def order(device: Device) -> tuple[str, tuple[tuple[int, str], ...], tuple[tuple[int, str], ...]]:
    """The page's order: by resource, shares and slices beside their device, dev-2 before dev-10."""
    return device.key.resource, _natural(device.parent or device.key.device), _natural(device.key.device)


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Numbers by value, the rest by letters. Digits before a letter count as letters, for they may be part of
    a hexadecimal number; so do more than 18 of them.
    """
    return _remembered(name) if len(name) <= _REMEMBERED_LENGTH else _split(name[:512])


def _split(name: str) -> tuple[tuple[int, str], ...]:
    return tuple(
        (int(part), part) if part.isascii() and part.isdigit() and len(part) <= 18 else (-1, part)
        for part in _NUMBER.split(name)
    )


_remembered = lru_cache(maxsize=16_384)(_split)


def row_key(*parts: str) -> str:
    """A short name for a row by which the page's module finds it again."""
    joined = "\0".join(parts).encode(errors="surrogatepass")
    return sha1(joined, usedforsecurity=False).hexdigest()[:12]
