"""What was true on a simulated node, and when; and what must therefore not be told at a moment.

Unix times. A kubelet in the test's own process is looked at as it changes, so both ends of a holding are
known to the moment; where it was down meanwhile, an end is known later than it was, which lets more pass.
"""

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kubelet.pb.podresources.v1 import api_pb2
from simulator import SimulatedKubelet
from simulator.model import Pod

CLOCKS = 0.1
"""Seconds by which the exporter's clock and the test's may differ, and for what is asked to be sent."""


class Owner(NamedTuple):
    """One device in one container's hands. `uid` is "" where nobody tells it."""

    resource: str
    device: str
    namespace: str
    pod: str
    container: str
    uid: str = ""


class Claimed(NamedTuple):
    """One claimed device in one container's hands."""

    driver: str
    pool: str
    device: str
    share_id: str
    claim_namespace: str
    claim: str
    namespace: str
    pod: str
    container: str


class Known(NamedTuple):
    """What is true of one device besides its holders."""

    parent: str
    numa_nodes: tuple[int, ...]
    healthy: bool | None


@dataclass
class Span:
    """When something was held; `end` is None while it is. `listed`: since when List has named it, as far as
    was looked.
    """

    begin: float
    end: float | None = None
    listed: float | None = None


def owners_of(
    listed: api_pb2.ListPodResourcesResponse, uids: dict[tuple[str, str], str] | None = None, node: str = ""
) -> frozenset[Owner]:
    """Every owner that a List of `node` names, read as plainly as can be."""
    known = uids or {}
    found: set[Owner] = set()
    for pod in listed.pod_resources:
        uid = known.get((pod.namespace, pod.name), "")
        for container in pod.containers:
            for entry in container.devices:
                for device in entry.device_ids:
                    found.add(
                        Owner(entry.resource_name, device, pod.namespace, pod.name, container.name, uid)
                    )
            for claim in container.dynamic_resources:
                for one in claim.claim_resources:
                    device = device_called(one.pool_name, one.device_name, node)
                    found.add(Owner(one.driver_name, device, pod.namespace, pod.name, container.name, uid))
    return frozenset(found)


def device_called(pool: str, device: str, node: str) -> str:
    """What a claimed device is called on `node`."""
    return device if pool == node else f"{pool}/{device}"


def claims_of(listed: api_pb2.ListPodResourcesResponse) -> frozenset[Claimed]:
    """Every claimed device and its holder that a List names."""
    return frozenset(
        Claimed(
            *(one.driver_name, one.pool_name, one.device_name, one.share_id),
            *(claim.claim_namespace, claim.claim_name, pod.namespace, pod.name, container.name),
        )
        for pod in listed.pod_resources
        for container in pod.containers
        for claim in container.dynamic_resources
        for one in claim.claim_resources
    )


def devices_of(
    listed: api_pb2.ListPodResourcesResponse, allocatable: api_pb2.AllocatableResourcesResponse
) -> dict[tuple[str, str], Known]:
    """Every device of a plugin that is allocatable or held: of one that is allocatable that answer tells the
    nodes.
    """
    offered = _nodes(allocatable.devices)
    held = _nodes(entry for pod in listed.pod_resources for one in pod.containers for entry in one.devices)
    return {
        key: Known(
            key[1].rpartition("::")[0], tuple(sorted(offered.get(key, held.get(key, set())))), key in offered
        )
        for key in offered.keys() | held.keys()
    }


def _nodes(entries: Iterable[api_pb2.ContainerDevices]) -> dict[tuple[str, str], set[int]]:
    found: dict[tuple[str, str], set[int]] = {}
    for entry in entries:
        for device in entry.device_ids:
            nodes = found.setdefault((entry.resource_name, device), set())
            nodes.update(node.ID for node in entry.topology.nodes if node.ID >= 0)
    return found


@dataclass
class Truth:
    """Follows the owners on a node. Give its `told` to the kubelet as `on_event`."""

    kubelet: SimulatedKubelet | None = None
    node: str = ""
    """Its name as the exporter has it."""
    present: frozenset[Owner] = frozenset()
    spans: dict[Owner, list[Span]] = field(default_factory=lambda: defaultdict(list))
    changes: int = 0
    listing_since: float = 0.0
    """Since when List names every pod, as far as was looked; inf while it does not."""
    shared: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """The claimed devices that several pods have had at once: none of them contradicts another."""

    def told(self, _event: str, **_fields: object) -> None:
        """Something happened to the kubelet."""
        self.look()

    def followed(self, _kind: str, _pod: Pod) -> None:
        """Something happened to a pod."""
        self.look()

    def uids(self) -> dict[tuple[str, str], str]:
        """Of the pods that count."""
        assert self.kubelet is not None
        return {(pod.spec.namespace, pod.spec.name): pod.uid for pod in self.kubelet.pods() if pod.active}

    def look(self) -> None:
        """Take the present moment down."""
        if self.kubelet is None:
            return
        now = time.time()
        present = owners_of(self.kubelet.pod_resources(), self.uids(), self.node)
        if not self.kubelet.is_up:
            # It has forgotten more than is true, and may have told of more than was looked at before it died.
            present |= self.present
        for owner in present - self.present:
            self.spans[owner].append(Span(now))
            self.changes += 1
        for owner in self.present - present:
            self.spans[owner][-1].end = now
            self.changes += 1
        if self.present != present:
            pods = Counter(key for key, _ in {(owner[:2], owner[2:4]) for owner in present})
            self.shared |= {key for key, count in pods.items() if count > 1}
        self.present = present
        if not self.kubelet.lists_all_pods:
            self.listing_since = math.inf
        else:
            self.listing_since = now if self.listing_since == math.inf else self.listing_since
            for owner in present:
                span = self.spans[owner][-1]
                span.listed = now if span.listed is None else span.listed

    def held(self, owner: Owner, since: float, until: float) -> bool:
        """Whether it held the device at any time from `since` to `until`; whoever it was, if without uid."""
        return any(
            span.begin <= until + CLOCKS and (span.end is None or span.end >= since - CLOCKS)
            for span in self.of(owner)
        )

    def may_hold(self, owner: Owner, taken: float) -> bool:
        """Whether it is right to name it as unconfirmed: it held the device before `taken`, and List named no
        other holder then.
        """
        if not any(span.begin <= taken + CLOCKS for span in self.of(owner)):
            return False
        return (
            owner[:2] in self.shared
            or self.listing_since >= taken - CLOCKS
            or not any(
                span.listed is not None
                and span.listed < taken - CLOCKS
                and (span.end is None or span.end >= taken)
                for other, spans in self.spans.items()
                if other[:2] == owner[:2] and other[2:5] != owner[2:5]
                for span in spans
            )
        )

    def of(self, owner: Owner) -> list[Span]:
        """When it held the device; without uid: anybody of that name."""
        if owner.uid:
            return self.spans.get(owner, [])
        return [span for one, spans in self.spans.items() if one[:5] == owner[:5] for span in spans]


@dataclass
class FormerOwners:
    """Finds former owners that an exporter still names after it had a List with another holder.

    An exporter calls List again only when it is done with the answer before: of two more refreshes that were
    answered, the second began after the first of these scrapes.
    """

    truth: Truth
    _first: dict[tuple[Owner, float, float], float] = field(
        default_factory=dict[tuple[Owner, float, float], float]
    )
    """The answers that the exporter had by the first scrape after List named the owner."""
    _answers: float = 0.0

    def named(self, scrape: "Scrape", asked: float) -> list[str]:
        """Those that a scrape names; give it one after the other."""
        listing_since = self.truth.listing_since
        holders: dict[tuple[str, str], dict[Owner, tuple[Owner, float, float]]] = defaultdict(dict)
        for owner in self.truth.present:
            if owner[:2] in self.truth.shared:
                continue
            span = self.truth.spans[owner][-1]
            # A kubelet that restarts names it again later.
            if span.listed is not None and max(span.listed, listing_since) < asked:
                holders[owner[:2]][owner] = (owner, span.begin, listing_since)
        found = [
            f"{owner} although List names {other}"
            for owner in sorted(scrape.owners())
            for other, key in holders[owner[:2]].items()
            if other[2:4] != owner[2:4] and self._answers >= self._first.get(key, math.inf) + 2
        ]
        self._answers = scrape.answers()
        known = [key for keys in holders.values() for key in keys.values()]
        self._first = {key: self._first.get(key, self._answers) for key in known}
        return found


_SERIES = re.compile(r"^devicelens_device_owner_info\{(.*)\} 1(?:\.0)?$", re.MULTILINE)
_UNCONFIRMED = re.compile(r"^devicelens_device_owner_unconfirmed\{(.*)\} 1(?:\.0)?$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TAKEN = re.compile(r"^devicelens_last_refresh_success_timestamp_seconds (\S+)$", re.MULTILINE)
_REFRESHES = re.compile(r'^devicelens_refresh_duration_seconds_count\{phase="kubelet"\} (\S+)$', re.MULTILINE)
_FAILED = re.compile(
    r'^devicelens_refresh_errors_total\{code="(?!UNSETTLED)\w+",method="List"\} (\S+)$', re.MULTILINE
)
_COUNTED = re.compile(r"^(devicelens_(?:allocations|releases)_total\{.*\}) (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Scrape:
    """One scrape, read quickly: the text's own escapes are not in any name that a test uses."""

    text: str

    def series(self) -> list[dict[str, str]]:
        """The labels of each owner."""
        return [dict(_LABEL.findall(match[1])) for match in _SERIES.finditer(self.text)]

    def owners(self) -> frozenset[Owner]:
        """The owners that it names."""
        names = ("resource", "device", "namespace", "pod", "container", "pod_uid")
        return frozenset(Owner(*(labels[name] for name in names)) for labels in self.series())

    def unconfirmed(self) -> frozenset[tuple[str, ...]]:
        """The owners that it names as unconfirmed, without their uids."""
        found = (dict(_LABEL.findall(match[1])) for match in _UNCONFIRMED.finditer(self.text))
        return frozenset(tuple(labels[name] for name in Owner._fields[:5]) for labels in found)

    def taken_at(self) -> float | None:
        """When the kubelet was asked for what it names."""
        match = _TAKEN.search(self.text)
        return None if match is None else float(match[1])

    def answers(self) -> float:
        """How many refreshes had a List answer, believed or not."""
        refreshes = _REFRESHES.search(self.text)
        assert refreshes is not None, self.text
        return float(refreshes[1]) - sum(float(found[1]) for found in _FAILED.finditer(self.text))

    def counters(self) -> dict[str, float]:
        """Allocations and releases by series."""
        return {match[1]: float(match[2]) for match in _COUNTED.finditer(self.text)}


def lies(scrape: Scrape, truth: Truth, *, asked: float, answered: float, stale_after: float) -> list[str]:
    """What a scrape named that was not true at any moment that it may tell of.

    It may tell of the moments from when the kubelet was asked to when the scrape was answered; and not of a
    kubelet that was asked longer ago than the stale limit. An unconfirmed owner may be a former one.
    """
    owners = scrape.owners()
    if not owners:
        return []
    taken = scrape.taken_at()
    if taken is None:
        return [f"owners although the kubelet never answered: {sorted(owners)}"]
    found: list[str] = []
    if taken < asked - stale_after - CLOCKS:
        found.append(f"owners although the mapping was {asked - taken:.3f} s old")
    doubtful = scrape.unconfirmed()
    for owner in sorted(owners):
        if owner[:5] in doubtful and truth.may_hold(owner, taken):
            continue
        if not truth.held(owner, taken, answered):
            spans = [
                (round(span.begin - taken, 3), None if span.end is None else round(span.end - taken, 3))
                for span in truth.of(owner)
            ]
            found.append(
                f"{owner} by a mapping of {taken:.3f}, scraped {asked - taken:.3f} to "
                f"{answered - taken:.3f} s later; it held it (seconds from there): {spans}"
            )
    return found
