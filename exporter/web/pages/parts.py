"""View models that several pages share: the frame, freshness, holders, facts, findings, links. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha1
from typing import Final

from msgspec import Struct

from exporter.mapping.chosen_devices import KUBELETS, Choice
from exporter.mapping.device_health import NOT_OFFERED
from exporter.mapping.device_status import DeviceStatus
from exporter.mapping.holdings import Holding
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import Anomaly, ClaimHolding, Device, DeviceKey, Doubt, Holder, PodKey
from exporter.mapping.state import Freshness, Moment
from exporter.views.claimed import administrators, holdings
from exporter.views.query import TEXT_LIMIT, Filters, address, device_link, pod_link
from exporter.views.wording import AGEING, Text, lasting, listed, reason, spelled, text
from exporter.web.pages.times import NOW, Stamp, optional, stamp

ID_LENGTH: Final = 200
"""Characters of an id that its own page shows."""
UNHEALTHY_HELD: Final = "unhealthy, held"
"""The state of a held device that is not allocatable."""
_FINDINGS: Final = 100
"""Findings on a page; the API has all."""
_NUMBER: Final = re.compile(r"([0-9]+)(?![0-9A-Za-z])")
_KEPT_LENGTH: Final = 64
"""Characters of a name whose sort key is cached: at most 3 KiB each, 0.1 KiB for usual ids."""
_DIGITS: Final = 18
"""Digits of the longest number that sorts by value."""
_NAME_END: Final = r"(?![\w/-]|[.:]+\w)"
"""After a name: no character that continues it."""
_KINDS: Final = {
    "unhealthy_held": UNHEALTHY_HELD,
    "plugin_gone": "plugin gone",
    "double_held": "held twice",
    "tainted_held": "tainted, held",
    "unattributed": "held by no pod",
    "unprepared": "claim not prepared",
    "numa_split": "split across NUMA nodes",
    "no_longer_offered": NOT_OFFERED,
}


class FreshnessBanner(Struct, frozen=True):
    """The mapping's freshness: `level` is ok, warn or bad; `headline` is steady while nothing changes.
    `failing` is the failing kubelet method ("" for none), `since` when, `problem` why.
    """

    level: str
    sign: str
    headline: str
    explanation: str
    taken: Stamp | None
    failing: str = ""
    since: Stamp | None = None
    problem: str = ""

    @property
    def trusted(self) -> bool:
        """Whether the mapping still describes the present."""
        return self.level != "bad"


class Frame(Struct, frozen=True):
    """What every page has, and what its template asks about the moment. `seconds` as in `stamp`."""

    moment: Moment
    title: str
    tag: str
    path: str
    freshness: FreshnessBanner
    seconds: bool = True
    now: str = NOW

    @property
    def node(self) -> str:
        """The node, as it is shown."""
        return spelled(self.moment.node)

    def stamp(self, at: float | None) -> Stamp | None:
        """A unix time; None for None."""
        return optional(at, self.moment.now, seconds=self.seconds)

    def since(self, held: DeviceKey, holder: Holder) -> Stamp | None:
        """Since when `holder` holds `held`; None where unknown."""
        since = self.moment.state.since.get(Holding(held, holder))
        return (
            None
            if since is None
            else stamp(since.at, self.moment.now, exact=since.exact, seconds=self.seconds)
        )

    def doubt(self, holder: Holder) -> Doubt | None:
        """Why what the holder holds is not confirmed; None if it is."""
        return self.moment.state.snapshot.doubt(holder)

    def choice(self, held: DeviceKey, holder: Holder) -> Choice:
        """The physical device that another scheduler chose for a holder of `held`."""
        return self.moment.state.choices.get(held, {}).get(holder, KUBELETS)

    def workload(self, holder: Holder) -> str:
        """The owner of the holder's pod: `Deployment llama`; "" where unknown, or the pod itself."""
        return workload(self.moment.state.pods, holder)


class PageChoice(Struct, frozen=True):
    """One of several links or options: its address or value, and its label."""

    value: str
    label: str
    selected: bool = False


class Fact(Struct, frozen=True):
    """A name and a value, with a link, a source, and the text to copy, each "" for none; `at` for a time."""

    name: str
    value: Text
    href: str = ""
    source: str = ""
    copied: str = ""
    at: Stamp | None = None


class Suggestion(Struct, frozen=True):
    """An object with a similar name."""

    name: Text
    href: str
    of: str = ""


class NotFound(Struct, frozen=True):
    """Nothing has this name: why, and objects with similar names."""

    headline: str
    name: Text
    words: str
    others: tuple[Suggestion, ...] = ()


NOT_YET: Final = "Not known yet: the kubelet has not answered since the exporter started"


def not_known_yet(name: str) -> NotFound:
    """Before the first answer of the kubelet nothing is known to be absent."""
    return NotFound("Not known yet", text(name, limit=ID_LENGTH), "The kubelet has not answered yet.")


class Finding(Struct, frozen=True):
    """An anomaly as a sentence: texts, each with the address of the object that it names ("" for none).
    `address` shows the affected rows; `key` is stable while the anomaly lasts.
    """

    key: str
    kind: str
    pieces: tuple[tuple[str, str], ...]
    address: str
    since: Stamp | None = None

    @property
    def sentence(self) -> str:
        """The whole sentence."""
        return "".join(shown for shown, _ in self.pieces)


class FindingList(Struct, frozen=True):
    """Findings, and how many are left out."""

    shown: tuple[Finding, ...] = ()
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.shown) + self.left_out


NO_FINDINGS: Final = FindingList()


def freshness_banner(moment: Moment, *, seconds: bool = True) -> FreshnessBanner:
    """The mapping's freshness at `moment`; `seconds` as in `stamp`."""
    state, limit = moment.state, lasting(moment.stale_after)
    failure = state.failure
    level, sign, headline, explanation = {
        Freshness.FRESH: ("ok", "✓", "The mapping is fresh.", ""),
        Freshness.AGEING: (
            *("warn", "!", f"{AGEING[0].upper()}{AGEING[1:]}."),
            f"Holders may have changed since. It is withdrawn from Prometheus once older than {limit}.",
        ),
        Freshness.STALE: (
            *("bad", "✕", "Do not trust this mapping."),
            f"Holders may have changed since. It is older than {limit}, and withdrawn from Prometheus.",
        ),
        Freshness.UNKNOWN: (
            *("bad", "✕", "There is no mapping yet."),
            "The kubelet has not answered since the exporter started.",
        ),
    }[moment.freshness]
    return FreshnessBanner(
        level=level,
        sign=sign,
        headline=headline,
        explanation=explanation,
        taken=optional(state.taken_at, moment.now, seconds=seconds),
        failing="" if failure is None else text(failure.method).shown,
        since=None if failure is None else stamp(failure.since, moment.now, seconds=seconds),
        problem="" if failure is None else text(reason(failure.code, failure.message), limit=600).shown,
    )


def frame(moment: Moment, name: str, *, tag: str, path: str) -> Frame:
    """The frame of the page of the object `name`."""
    title = f"{text(name, limit=40).shown} · {text(moment.node).shown} · devicelens"
    return Frame(moment, title, tag, path, freshness_banner(moment))


def resource_address(resource: str) -> str:
    """The status page with the devices of a resource."""
    return address(Filters(resource=spelled(resource)[:TEXT_LIMIT]))


def life_id(uid: str) -> str:
    """The anchor of the pod with this uid on the page of its name."""
    return f"uid-{row_key('uid', uid)}"


def life_link(namespace: str, pod: str, uid: str) -> str:
    """The page of a pod, at the anchor of this uid where it is known."""
    link = pod_link(namespace, pod)
    return f"{link}#{life_id(uid)}" if uid and link.startswith("/pods/") else link


def workload(pods: Mapping[PodKey, PodIdentity], holder: Holder) -> str:
    """The owner of the holder's pod: `Deployment llama`; "" where unknown, or the pod itself."""
    identity = pods.get((holder.namespace, holder.pod))
    if identity is None or identity.workload.kind in {"", "Pod"}:
        return ""
    return f"{identity.workload.kind} {identity.workload.name}"


def device_state(status: DeviceStatus) -> str:
    """held, free, alternative, reserved, unhealthy, UNHEALTHY_HELD, or NOT_OFFERED."""
    device = status.device
    if device.no_longer_offered_since is not None and not device.holders:
        return NOT_OFFERED
    if status.healthy is False:
        return UNHEALTHY_HELD if device.holders else "unhealthy"
    if device.holders:
        return "held"
    if device.alternative:
        return "alternative"
    return "reserved" if device.reserved else "free"


class HolderLine(Struct, frozen=True):
    """One container that holds a device, or uses it for administration (`admin`). `claims` are the names and
    shares of the claims of a claimed device, `requested_as` what the container asked by where that is not the
    resource.
    """

    holder: Holder
    claims: tuple[tuple[str, str], ...] = ()
    requested_as: str = ""
    admin: bool = False


def holder_lines(device: Device, holders: Iterable[Holder]) -> list[HolderLine]:
    """The lines of `holders`, and of those who use the device for administration."""
    if device.claimed is None:
        return [HolderLine(holder) for holder in holders]
    found: list[HolderLine] = []
    for holder in holders:
        asked = device.requested_as(holder)
        claims = [_claim(one) for one in holdings(device.claimed) if one.holder == holder]
        found.append(HolderLine(holder, tuple(claims), "" if asked == device.key.resource else asked))
    return found + [HolderLine(one.holder, (_claim(one),), admin=True) for one in administrators(device)]


def _claim(one: ClaimHolding) -> tuple[str, str]:
    """The name of a claim, with its namespace where that is unexpectedly not the pod's, and the share."""
    own = one.claim_namespace == one.holder.namespace
    return one.claim if own else f"{one.claim_namespace}/{one.claim}", one.share_id


def row_key(*parts: str | tuple[str, ...]) -> str:
    """A short, stable name for an element, by which the page's module finds it again."""
    texts = (text for part in parts for text in ((part,) if isinstance(part, str) else part))
    joined = "\0".join(texts).encode(errors="surrogatepass")
    return sha1(joined, usedforsecurity=False).hexdigest()[:12]


def natural(name: str) -> str:
    """A sort key: numbers by value, the rest by letters, so that dev-2 is before dev-10.

    Digits before a letter count as letters, because they may belong to a hexadecimal number; so do more than
    18 digits. One string, because Python compares strings ten times faster than tuples.
    """
    return _natural_kept(name) if len(name) <= _KEPT_LENGTH else _natural(name[:512])


def _natural(name: str) -> str:
    parts = _NUMBER.split(name)
    parts[1::2] = [f"{one:0>{_DIGITS}}{one}" if len(one) <= _DIGITS else f" {one}" for one in parts[1::2]]
    return "\0".join(parts)


_natural_kept = lru_cache(maxsize=16_384)(_natural)


def device_order(device: Device) -> tuple[str, str, str]:
    """Sorts devices by resource, with shares, slices and partitions below their parent."""
    resource, name = device.key
    own = natural(name)
    return (resource, natural(device.parent), own) if device.parent else (resource, own, "")


def findings(anomalies: Iterable[Anomaly], now: float, *, seconds: bool = True) -> FindingList:
    """Anomalies as sentences, one for each device, where several holders are affected alike."""
    groups: dict[tuple[str, str, str, Holder | None], list[Anomaly]] = {}
    for anomaly in anomalies:
        holder = None if anomaly.device else anomaly.holder
        groups.setdefault((anomaly.kind, anomaly.resource, anomaly.device, holder), []).append(anomaly)
    shown = tuple(_finding(group, now, seconds=seconds) for group in list(groups.values())[:_FINDINGS])
    return FindingList(shown, len(groups) - len(shown))


def _finding(group: list[Anomaly], now: float, *, seconds: bool) -> Finding:
    first = group[0]
    holder = None if first.device else first.holder
    since = min((anomaly.since for anomaly in group if anomaly.since is not None), default=None)
    filters = Filters(
        resource=spelled(first.resource)[:TEXT_LIMIT] if not first.device else "",
        device=spelled(first.device)[:TEXT_LIMIT],
        namespace="" if holder is None else spelled(holder.namespace),
        pod="" if holder is None else spelled(holder.pod),
    )
    return Finding(
        key=row_key(first.kind, first.resource, first.device, *(holder or ())),
        kind=_KINDS.get(first.kind, text(first.kind).shown),
        pieces=tuple(_pieces(_sentence(group), group)),
        address=address(filters),
        since=optional(since, now, seconds=seconds),
    )


def _sentence(group: list[Anomaly]) -> str:
    first = group[0]
    resource, device = text(first.resource).shown, text(first.device).shown
    holders = [_holder(a.holder) for a in group if a.holder is not None]
    who = listed(holders, limit=3)
    evidence = text(first.evidence, limit=300).shown
    match first.kind:
        case "unhealthy_held" | "tainted_held":
            why = evidence.partition("; ")[2]
            verb = "holds" if len(holders) == 1 else "hold"
            state = first.kind.partition("_")[0]
            return f"{who} {verb} {resource} {device}, which is {state}{f'; {why}' if why else ''}."
        case "plugin_gone":
            guess = "" if "; " in evidence else " Its plugin is gone, or none of its devices is healthy."
            return f"{resource}: {evidence}.{guess}"
        case "double_held" if len(first.devices) < 2:
            return f"{resource} {device} is not shared, but {who} hold it."
        case "double_held":
            return f"{resource} {device}: {evidence}."
        case "numa_split":
            return f"{', '.join(part for part in (who, resource) if part)}: {evidence}."
        case _:
            return " ".join(part for part in (f"{resource} {device}:", who, f"{evidence}.") if part)


def _pieces(sentence: str, group: list[Anomaly]) -> Iterator[tuple[str, str]]:
    """`sentence` with links: each pod, and the device after its resource, because an id may be any word."""
    first = group[0]
    pages: dict[str, str] = {}
    for anomaly in group:
        own = () if anomaly.holder is None else (anomaly.holder[:2],)
        for namespace, pod in (*own, *anomaly.pods):
            for name in (f"{text(namespace).shown}/{text(pod).shown}", spelled(f"{namespace}/{pod}")):
                pages[name] = pod_link(namespace, pod)
    patterns = [rf"(?<![^\s(]){re.escape(name)}" for name in sorted(pages, key=len, reverse=True)]
    if first.device:
        device = text(first.device).shown
        pages[device] = device_link(first.resource, first.device)
        patterns.append(rf"(?<={re.escape(text(first.resource).shown)} ){re.escape(device)}")
    at = 0
    for found in re.finditer(rf"(?:{'|'.join(patterns)}){_NAME_END}", sentence) if patterns else ():
        if found.start() > at:
            yield sentence[at : found.start()], ""
        yield found[0], pages[found[0]]
        at = found.end()
    if at < len(sentence):
        yield sentence[at:], ""


def _holder(holder: Holder) -> str:
    return f"{text(holder.namespace).shown}/{text(holder.pod).shown} ({text(holder.container).shown})"
