"""Which of the devices are asked for. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from exporter.web.api.schema import DeviceEntry, DevicesDocument
from exporter.web.matching import folded
from exporter.web.words import listed, spelled


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


def select(document: DevicesDocument, question: Question) -> tuple[DeviceEntry, ...]:
    """The devices that `question` is about.

    Raises NothingMatches if there are none, unless everything is asked for, and Ambiguous.
    """
    found = list(document.devices)
    if question.resource:
        name = _resource(document, question.resource)
        found = [d for d in found if d.resource == name]
    if question.device:
        found = devices_like(found, question.device)
    if question.pod is not None:
        pod = question.pod
        found = [d for d in found if any(of_pod(h.namespace, h.pod, pod) for h in d.holders)]
    if not found and question.any:
        raise NothingMatches(nothing(question, document.node))
    return tuple(found)


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


def _resource(document: DevicesDocument, asked: str) -> str:
    known = {d.resource for d in document.devices}
    name = resource_among(known, asked)
    if name is not None:
        return name
    if any(same(d.device, asked) for d in document.devices):
        raise NothingMatches(
            f"there is no resource {spelled(asked)!r}, but a device: ask for ={spelled(asked)}"
        )
    raise NothingMatches(f"no resource {spelled(asked)!r} on {spelled(document.node)}: {there_are(known)}")


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
