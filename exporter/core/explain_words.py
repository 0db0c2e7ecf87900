"""What is known of a device in plain sentences: what it is, who has it, who says so, and how fresh it is."""

from collections.abc import Iterator, Sequence
from typing import Final

from daemon.text import visible
from exporter.core.anomalies import listed, pods_of
from exporter.core.diff import Holding
from exporter.core.explain import Findings, Subject
from exporter.core.ids import Kind, Reading
from exporter.core.model import Device, Holder
from exporter.core.state import Freshness, State
from exporter.core.times import utc

_LENGTH: Final = 8192
"""Characters of a sentence."""
NO_PLUGIN: Final = "No plugin is asked what it tells of its devices (--plugin.url)."

_HOLDERS: Final = 10
"""Holders of one device that are named, each in a sentence."""


def sentences(found: Findings, state: State, *, now: float, stale_after: float) -> tuple[str, ...]:
    """Everything in words, the most important first, with nothing hidden in them. `now` is unix time,
    `stale_after` in seconds.
    """
    words = (
        _what(found),
        *_family(found),
        *_who(found, state),
        *_allocatable(found, state),
        *_numa(found),
        *_plugin(found, state),
        *_wrong(found),
        _fresh(state, now, stale_after),
    )
    return tuple(visible(sentence, limit=_LENGTH) for sentence in words)


def why_nobody(found: Findings, state: State) -> str:
    """Why no pod is named as the device's holder, "" where one is."""
    device = found.device
    if device is None or device.holders:
        return ""
    if state.failure is not None:
        return "no pod lists it in the last good answer, and the kubelet fails since: that may have changed"
    if any(anomaly.kind == "unattributed" for anomaly in found.anomalies):
        return (
            "its plugin gave it out, yet no pod lists it: an init container has it, whose devices the "
            "kubelet does not list, or the pod was refused, or it leaked"
        )
    gave = None if found.told is None else found.told.last_allocated
    last = "" if gave is None else f"; its plugin last gave it out at {utc(gave)}"
    if not state.snapshot.complete:
        return f"no pod lists it{last}"
    if not device.allocatable:
        return f"no pod lists it, and the kubelet would not give it out{last}"
    return f"no pod lists it: it is free{last}"


def _what(found: Findings) -> str:
    name = found.key.device
    match found.subject:
        case Subject.PARENT:
            count = len(found.parts)
            known = (
                f"{count} that it knows are parts of it" if count > 1 else "one that it knows is a part of it"
            )
            return f"{name} is no device that the kubelet knows by itself: {known}."
        case Subject.CLAIMED:
            return f"{name} is given through ResourceClaims by a DRA driver, not by a device plugin."
        case _:
            elsewhere = f" {listed(found.elsewhere)} has a device of this id too." if found.elsewhere else ""
            return f"{name} of {found.key.resource} is {_read(found)}.{elsewhere}"


def _read(found: Findings) -> str:
    reading = found.reading
    if reading.kind is Kind.WHOLE:
        if found.parent:
            return f"a share of {found.parent}, as its plugin says: its id does not tell"
        by = (
            f" (id rule {reading.rule})" if reading.rule != "whole" else ": no id rule reads its id otherwise"
        )
        return f"a whole device{by}"
    further = found.parent_reading
    itself = ""
    if further is not None and further.kind is not Kind.WHOLE:
        itself = f", which is itself {_kind(further, further.parent)}"
    return f"{_kind(reading, found.parent)}{itself} (id rule {reading.rule})"


def _kind(reading: Reading, parent: str) -> str:
    of = f" of {parent}" if parent else ", of a device that its id does not name"
    if reading.kind is Kind.REPLICA:
        partition = f" of partition {reading.partition}" if reading.partition else ""
        return f"share {reading.replica}{partition}{of}" if reading.replica else f"a share{of}"
    if reading.kind is Kind.PARTITION:
        return f"partition {reading.partition}{of}" if reading.partition else f"a partition{of}"
    return "a whole device"


def _family(found: Findings) -> Iterator[str]:
    if found.siblings:
        yield f"Of {found.parent} there are also {_summary(found.siblings)}."
    if found.parts:
        also = " also" if found.subject is Subject.DEVICE else ""
        yield f"Of {found.key.device} there are{also} {_summary(found.parts)}."


def _summary(devices: Sequence[Device]) -> str:
    """`a::1, a::2, a::3, of which 2 are held, by n/p, n/q`."""
    held = [device for device in devices if device.holders]
    names = listed([device.key.device for device in devices])
    if not held:
        return f"{names}, which nobody holds"
    pods = pods_of(holder for device in held for holder in device.holders)
    by = listed([f"{namespace}/{pod}" for namespace, pod in pods])
    count = "all" if len(held) == len(devices) else str(len(held))
    return f"{names}, of which {count} {'is' if count == '1' else 'are'} held, by {by}"


def _who(found: Findings, state: State) -> Iterator[str]:
    for claim in found.claimed:
        for through in claim.holders[:_HOLDERS]:
            key, named = claim.key, f"{through.claim_namespace}/{through.claim}"
            share = f", share {key.share_id}" if key.share_id else ""
            when = _since(Holding(claim.held(through), through.holder), state)
            yield (
                f"{_name(through.holder)} holds {key.device} of the driver {key.driver} "
                f"(pool {key.pool}{share}) through the claim {named}{when}."
            )
    device = found.device
    if device is None:
        return
    for holder in device.holders[:_HOLDERS]:
        when = _since(Holding(device.key, holder), state)
        yield f"{_name(holder)} holds it{when}, as the kubelet's List says."
    if len(device.holders) > _HOLDERS:
        yield f"{len(device.holders) - _HOLDERS} more hold it."
    nobody = why_nobody(found, state)
    if nobody:
        yield f"{nobody[0].upper()}{nobody[1:]}."


def _since(holding: Holding, state: State) -> str:
    since = state.since.get(holding)
    if since is None:
        return ""
    return f" since {utc(since.at)}" if since.exact else f" since before {utc(since.at)}"


def _name(holder: Holder) -> str:
    uid = f", uid {holder.pod_uid}" if holder.pod_uid else ""
    return f"{holder.namespace}/{holder.pod} (container {holder.container}{uid})"


def _allocatable(found: Findings, state: State) -> Iterator[str]:
    device, told, word = found.device, found.told, found.word
    if device is None:
        return
    not_so = "It is not allocatable, as the kubelet says"
    if not state.snapshot.complete:
        yield "Whether it is allocatable this kubelet does not tell."
    elif device.allocatable:
        yield "It is allocatable, as the kubelet says: its plugin is there and calls it healthy."
    elif word is not None and not word.telling.answers:
        yield f"{not_so}, and its plugin does not answer: {word.telling.problem}."
    elif told is not None and not told.healthy:
        yield f"{not_so}, for its plugin calls it unhealthy: {told.reason or 'it gives no reason'}."
    elif word is not None and not word.resource.served:
        yield f"{not_so}: it does not follow the plugin at present."
    else:
        yield f"{not_so}: its plugin calls it unhealthy, or is gone."


def _numa(found: Findings) -> Iterator[str]:
    device = found.device
    if device is None:
        return
    if not device.numa_nodes:
        yield "On which NUMA node it is nobody tells."
        return
    nodes = (
        f"NUMA node{'s' if len(device.numa_nodes) > 1 else ''} {listed([str(n) for n in device.numa_nodes])}"
    )
    who = "its plugin tells; the kubelet does not" if found.numa_by_plugin else "the kubelet tells"
    yield f"It is on {nodes}, as {who}."


def _plugin(found: Findings, state: State) -> Iterator[str]:
    if found.device is None:
        return
    tellings = state.advertised.tellings
    if found.told is None:
        if not tellings:
            yield NO_PLUGIN
        elif found.word is None:
            asked = listed([telling.source for telling in tellings])
            yield f"None of the plugins that are asked ({asked}) tells of its resource."
        else:
            yield f"Its plugin ({found.word.telling.source}) does not tell of it."
        return
    telling = None if found.word is None else found.word.telling
    told = "Healthy" if found.told.healthy else "Unhealthy"
    since = "" if found.told.since is None else f" since {utc(found.told.since)}"
    source = "" if telling is None else f" ({telling.source})"
    if telling is None or telling.answers:
        yield f"Its plugin{source} says that it is {told}{since}."
    else:
        silent = "" if telling.silent_since is None else f" since {utc(telling.silent_since)}"
        yield f"Its plugin{source} is silent{silent}: {telling.problem}; it last said {told}{since}."


def _wrong(found: Findings) -> Iterator[str]:
    for anomaly in found.anomalies:
        since = "" if anomaly.since is None else f" since {utc(anomaly.since)}"
        who = "" if anomaly.holder is None else f" ({_name(anomaly.holder)})"
        yield f"Wrong{since}: {anomaly.kind}{who}: {anomaly.evidence}."


def _fresh(state: State, now: float, stale_after: float) -> str:
    if state.taken_at is None:
        return "The kubelet has not answered yet."
    taken = f"All this is of {utc(state.taken_at)}, {now - state.taken_at:.0f} s ago"
    freshness = state.freshness(now, stale_after)
    failure = state.failure
    why = (
        ""
        if failure is None
        else f": {failure.method} fails since {utc(failure.since)}: {failure.code}: {failure.message}"
    )
    match freshness:
        case Freshness.STALE:
            return f"{taken}, which is too old to be trusted{why}."
        case Freshness.AGEING:
            return f"{taken}; it is the last good answer{why}."
        case _:
            return f"{taken}, and fresh."
