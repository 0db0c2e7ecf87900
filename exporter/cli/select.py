"""Which of the devices are asked for. Pure.

What every source answers with, whether one node's or a fleet's. Pure.

A node's mapping is in the shape of the exporter's own documents, whoever told it: what selects, shows and
follows knows no sources.

Times as people write them on a command line. Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import Final, Protocol, TypeVar

import click
import msgspec
from msgspec import Struct
from msgspec import field as member

from exporter.views import wording
from exporter.views.matching import folded
from exporter.views.schema import AnomalyEntry, ClaimEntry, DeviceEntry, DevicesDocument, PastEntry
from exporter.views.wording import listed, spelled

CPU: Final = "cpu"
"""What exclusive CPUs are called where a resource is: as in a container's requests."""


class CpusEntry(Struct, frozen=True):
    """A container with CPUs that are its alone. `cpu_ids` is null where only their number is told."""

    namespace: str
    pod: str
    container: str
    pod_uid: str | None
    count: int
    cpu_ids: tuple[int, ...] | None
    numa_nodes: tuple[int, ...] = ()


class MappingDocument(DevicesDocument, frozen=True, kw_only=True):
    """One node's devices, claimed devices and exclusive CPUs."""

    claims: tuple[ClaimEntry, ...] = ()
    cpus: tuple[CpusEntry, ...] = ()


class NodeDocument(MappingDocument, frozen=True, kw_only=True):
    """A node of a fleet. `labels` tell it from others of its name (its cluster, say). `generation` is 0, for
    Prometheus does not know it.
    """

    labels: dict[str, str] = member(default_factory=dict[str, str])
    anomalies: tuple[AnomalyEntry, ...] = ()


class FleetDocument(Struct, frozen=True):
    """What Prometheus answered: as of `at`; `notes` are what must be known of it."""

    prometheus: str
    at: str
    notes: tuple[str, ...]
    nodes: tuple[NodeDocument, ...]


class FleetPastEntry(PastEntry, frozen=True, kw_only=True):
    """A holding; `labels` tell its node from others of its name."""

    labels: dict[str, str] = member(default_factory=dict[str, str])


class FleetHistoryDocument(Struct, frozen=True, kw_only=True):
    """What Prometheus knows of a time range, newest first: looked at every `step_seconds`, scraped about
    every `scrape_seconds` (null where that cannot be told). `complete` false: there are more than these.
    """

    prometheus: str
    since: str
    until: str
    step_seconds: float
    scrape_seconds: float | None
    notes: tuple[str, ...]
    holdings: tuple[FleetPastEntry, ...]
    complete: bool


NO_LABELS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Told:
    """One node's mapping; `labels` are what tells it from other nodes of its name."""

    document: MappingDocument
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    anomalies: tuple[AnomalyEntry, ...] = ()

    @property
    def place(self) -> str:
        """The node, with its labels where it has any."""
        return placed(self.document.node, self.labels)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a source told: of one node, or of a `fleet` (then `told` may be empty), as of unix time `at`
    (None: the document's own). `notes` are sentences that must be known to understand it. `origin` is where
    it comes from, in words.
    """

    told: tuple[Told, ...]
    origin: str
    fleet: bool = False
    notes: tuple[str, ...] = ()
    at: float | None = None

    @property
    def place(self) -> str:
        """Where nothing was found, in words."""
        if len(self.told) == 1:
            return self.told[0].place
        return f"any of {len(self.told)} nodes" if self.told else "any node"


def placed(node: str, labels: Mapping[str, str]) -> str:
    """`worker-3`, or `worker-3 (cluster a)`."""
    if not labels:
        return node
    return f"{node} ({', '.join(f'{name} {value}' for name, value in sorted(labels.items()))})"


class NothingMatches(Exception):  # noqa: N818 -- an answer, not a failure
    """There is no such device; the message says what there is instead."""


class Ambiguous(ValueError):  # noqa: N818 -- a wrong use
    """A resource's short name that several have."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod by its namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return spelled(f"{self.namespace}/{self.name}")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for; "" and None: any.

    `resource` is a whole name or the part after its slash; `device` a whole id, a parent's, or a part of
    an id.
    """

    resource: str = ""
    device: str = ""
    pod: Pod | None = None

    @property
    def any(self) -> bool:
        """Whether anything in particular is asked for."""
        return bool(self.resource or self.device or self.pod)


def parse_what(text: str) -> tuple[str, str]:
    """Resource and device of `RESOURCE`, `RESOURCE=DEVICE` or `=DEVICE`. A device's id may have a `=` too.

    Raises ValueError for `RESOURCE=`.
    """
    resource, equals, device = text.partition("=")
    if equals and not device:
        raise ValueError(f"found {spelled(text)!r}, expected RESOURCE or RESOURCE=DEVICE")
    return resource, device


def parse_pod(text: str) -> Pod:
    """The pod of `NAMESPACE/NAME`. Raises ValueError for anything else."""
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise ValueError(f"found {spelled(text)!r}, expected NAMESPACE/NAME")
    return Pod(namespace, name)


def select(answer: Answer, question: Question) -> Answer:
    """What `question` is about: devices, claimed devices, and exclusive CPUs where no device is asked for.

    A node without any is left out, unless everything is asked for. Raises NothingMatches if there are none,
    unless everything is asked for, and Ambiguous.
    """
    if not question.any:
        return answer
    resource = _resource(answer, question.resource) if question.resource else None
    like = _like(answer, resource, question.device) if question.device else None
    kept = [_kept(told, question.pod, resource, like) for told in answer.told]
    found = tuple(
        told for told in kept if told.document.devices or told.document.claims or told.document.cpus
    )
    if not found:
        raise NothingMatches(nothing(question, answer.place))
    return replace(answer, told=found)


def narrow(answer: Answer, question: Question) -> Answer:
    """The same with every node, also those without any: for one who waits for what is not there yet.

    Raises Ambiguous.
    """
    if not question.any:
        return answer
    resource: str | None = None
    if question.resource:
        known = resource_among(resources_of(answer), question.resource)
        # Nothing is called so at present.
        resource = question.resource if known is None else known
    like = _like(answer, resource, question.device) if question.device else None
    return replace(answer, told=tuple(_kept(told, question.pod, resource, like) for told in answer.told))


def of_claim(claim: ClaimEntry) -> str:
    """A claimed device with its pool and share, as it is told where devices are."""
    named = f"{claim.pool}/{claim.device}"
    return f"{named} ({claim.share_id})" if claim.share_id else named


Like = Callable[[str, str | None, str], bool]
"""Whether a device is meant, by its id, its parent, and its id with what is around it."""


def _kept(told: Told, pod: Pod | None, resource: str | None, like: Like | None) -> Told:
    document = told.document
    devices: Sequence[DeviceEntry] = document.devices
    claims: Sequence[ClaimEntry] = document.claims
    cpus = document.cpus if like is None and resource in {None, CPU} else ()
    if resource is not None:
        devices = [d for d in devices if d.resource == resource]
        claims = [c for c in claims if c.driver == resource]
    if like is not None:
        devices = [d for d in devices if like(d.device, d.parent, d.device)]
        claims = [c for c in claims if like(c.device, None, of_claim(c))]
    if pod is not None:
        devices = [d for d in devices if any(of_pod(h.namespace, h.pod, pod) for h in d.holders)]
        claims = [c for c in claims if any(of_pod(h.namespace, h.pod, pod) for h in c.holders)]
        cpus = tuple(c for c in cpus if of_pod(c.namespace, c.pod, pod))
    found = msgspec.structs.replace(document, devices=tuple(devices), claims=tuple(claims), cpus=cpus)
    return replace(told, document=found)


def _like(answer: Answer, resource: str | None, asked: str) -> Like:
    """Whole ids and parents, wherever there are any; or else parts of ids."""

    def whole(device: str, parent: str | None, around: str) -> bool:
        return same(device, asked) or same(around, asked) or bool(parent and same(parent, asked))

    def part(device: str, parent: str | None, around: str) -> bool:  # noqa: ARG001 -- Like's
        return folded(asked) in folded(around)

    for told in answer.told:
        document = told.document
        if any(
            resource in {None, d.resource} and whole(d.device, d.parent, d.device) for d in document.devices
        ):
            return whole
        if any(resource in {None, c.driver} and whole(c.device, None, of_claim(c)) for c in document.claims):
            return whole
    return part


def of_pod(namespace: str, name: str, pod: Pod) -> bool:
    """Whether a holder is of `pod`, as it is or as it is shown."""
    return same(namespace, pod.namespace) and same(name, pod.name)


def same(raw: str, asked: str) -> bool:
    """Whether a text is the one that is asked for, as it is or as it is shown."""
    return raw == asked or spelled(raw) == asked


def resource_among(known: Iterable[str], asked: str) -> str | None:
    """The whole name of the resource that is asked for by it, or by the part after its slash.

    Raises Ambiguous.
    """
    names = sorted(known)
    for name in names:
        if same(name, asked):
            return name
    short = [name for name in names if same(name.rpartition("/")[2], asked)]
    if len(short) > 1:
        raise Ambiguous(f"{spelled(asked)!r} may be {listed([spelled(s) for s in short])}: say which")
    return short[0] if short else None


def there_are(known: Iterable[str]) -> str:
    """What there is instead."""
    names = sorted(known)
    return f"there are {listed([spelled(n) for n in names], 10)}" if names else "there are none at all"


def resources_of(answer: Answer) -> frozenset[str]:
    """Whatever can be asked for by name: resources, drivers of claimed devices, exclusive CPUs."""
    documents = [told.document for told in answer.told]
    return frozenset(
        [
            *(device.resource for document in documents for device in document.devices),
            *(claim.driver for document in documents for claim in document.claims),
            *([CPU] if any(document.cpus for document in documents) else []),
        ]
    )


def _resource(answer: Answer, asked: str) -> str:
    known = resources_of(answer)
    name = resource_among(known, asked)
    if name is not None:
        return name
    documents = [told.document for told in answer.told]
    ids = [device.device for document in documents for device in document.devices]
    ids += [claim.device for document in documents for claim in document.claims]
    if any(same(device, asked) for device in ids):
        raise NothingMatches(
            f"there is no resource {spelled(asked)!r}, but a device: ask for ={spelled(asked)}"
        )
    raise NothingMatches(f"no resource {spelled(asked)!r} on {spelled(answer.place)}: {there_are(known)}")


class Named(Protocol):
    """What has a device's id and its parent's."""

    @property
    def device(self) -> str:
        """The id."""
        ...

    @property
    def parent(self) -> str | None:
        """The device behind it."""
        ...


N = TypeVar("N", bound=Named)


def devices_like(devices: Sequence[N], asked: str) -> list[N]:
    """Those of a whole id or a parent's, or else those of which it is a part."""
    whole = [d for d in devices if same(d.device, asked) or (d.parent and same(d.parent, asked))]
    return whole or [d for d in devices if folded(asked) in folded(d.device)]


def nothing(question: Question, node: str, held: str = "is held", when: str = "") -> str:
    """`no device like 'x' of y on node is held by ns/pod`; `when` that was, or is meant to be."""
    parts = ["no device"]
    if question.device:
        parts.append(f"like {spelled(question.device)!r}")
    if question.resource:
        parts.append(f"of {spelled(question.resource)}")
    parts.append(f"on {spelled(node)}")
    if question.pod is not None:
        parts.append(f"{held} by {question.pod}")
    elif when:
        parts.append(held)
    return " ".join((*parts, when)).rstrip()


EXPECTED: Final = wording.LOOSELY.format(zone="this machine's zone")


def parse_time(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Unix time of `text`, as exporter.views.wording has it. Raises ValueError, with what was expected."""
    try:
        return wording.parse_time(text, now, zone)
    except ValueError as error:
        raise ValueError(f"{error}, expected {EXPECTED}") from None


def time_of(text: str | None, name: str, now: float) -> float | None:
    """The time of the flag `name`, None if it is not given. Raises BadParameter."""
    if text is None:
        return None
    try:
        return parse_time(text, now)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=name) from error
