"""Which of the devices are asked for. Pure."""

from dataclasses import dataclass

from exporter.web.matching import folded
from exporter.web.schema import DeviceEntry, DevicesDocument
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
        found = _devices(found, question.device)
    if question.pod is not None:
        pod = question.pod
        found = [d for d in found if any(of_pod(h.namespace, h.pod, pod) for h in d.holders)]
    if not found and question.any:
        raise NothingMatches(_nothing(question, document.node))
    return tuple(found)


def of_pod(namespace: str, name: str, pod: Pod) -> bool:
    """Whether a holder is of `pod`, as it is or as it is shown."""
    return _same(namespace, pod.namespace) and _same(name, pod.name)


def _same(raw: str, asked: str) -> bool:
    return raw == asked or spelled(raw) == asked


def _resource(document: DevicesDocument, asked: str) -> str:
    known = sorted({d.resource for d in document.devices})
    for name in known:
        if _same(name, asked):
            return name
    short = [name for name in known if _same(name.rpartition("/")[2], asked)]
    if len(short) > 1:
        raise Ambiguous(f"{spelled(asked)!r} may be {listed([spelled(s) for s in short])}: say which")
    if short:
        return short[0]
    if any(_same(d.device, asked) for d in document.devices):
        raise NothingMatches(
            f"there is no resource {spelled(asked)!r}, but a device: ask for ={spelled(asked)}"
        )
    there = f"there are {listed([spelled(n) for n in known], 10)}" if known else "there are none at all"
    raise NothingMatches(f"no resource {spelled(asked)!r} on {spelled(document.node)}: {there}")


def _devices(devices: list[DeviceEntry], asked: str) -> list[DeviceEntry]:
    whole = [d for d in devices if _same(d.device, asked) or (d.parent and _same(d.parent, asked))]
    return whole or [d for d in devices if folded(asked) in folded(d.device)]


def _nothing(question: Question, node: str) -> str:
    parts = ["no device"]
    if question.device:
        parts.append(f"like {spelled(question.device)!r}")
    if question.resource:
        parts.append(f"of {spelled(question.resource)}")
    parts.append(f"on {spelled(node)}")
    if question.pod is not None:
        parts.append(f"is held by {question.pod}")
    return " ".join(parts)
