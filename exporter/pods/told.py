"""What a source of identity tells, and how it fails."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from exporter.core.identity import Identity
from exporter.core.model import PodKey


@dataclass(frozen=True, slots=True)
class Opened:
    """It tells from here on. `anew`: what it told before does not count any more."""

    anew: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod came or changed. `known`: the kubelet has it, or has had it."""

    identity: Identity
    known: bool = True


@dataclass(frozen=True, slots=True)
class Gone:
    """The kubelet has done with a pod, or the API server has."""

    key: PodKey
    uid: str


@dataclass(frozen=True, slots=True)
class Listed:
    """All pods there are. `asked`: when the question was put, by the event loop's clock, where the answer
    is younger than that; None where it may be older.
    """

    pods: tuple[Seen, ...]
    begun: float
    asked: float | None


@dataclass(frozen=True, slots=True)
class Unchanged:
    """All pods that were told of are what they were at `asked`."""

    asked: float


@dataclass(frozen=True, slots=True)
class Unclear:
    """Something was told that cannot be understood: what there is must be listed."""

    reason: str


Told = Opened | Seen | Gone | Listed | Unchanged | Unclear


class SourceError(Exception):
    """A source fell silent: a `code` (gRPC's name, an HTTP status, or a word) and `message` for a person.

    `absent`: there is no such source on this node, which need not be a fault. `wait`: seconds for which
    it asked to be left alone.
    """

    def __init__(self, code: str, message: str, *, absent: bool = False, wait: float = 0.0) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.absent = absent
        self.wait = wait


class Source(Protocol):
    """Where identities come from. One `follow` at a time."""

    @property
    def name(self) -> str:
        """As --pods.source has it."""
        ...

    @property
    def words(self) -> str:
        """What it is, for a person."""
        ...

    @property
    def lasting(self) -> bool:
        """Whether what it told holds while it is silent: the kubelet's word is its own life's."""
        ...

    def follow(self) -> AsyncGenerator[Told]:
        """What it tells, until it fails. Raises SourceError."""
        ...

    async def confirm(self, *, thorough: bool) -> Listed | Unchanged | None:
        """Which pods there are at this moment; None if `follow` will tell. Raises SourceError.

        `thorough`: what it told last cannot be right.
        """
        ...

    def interrupt(self) -> None:
        """Have `follow` fail: its stream seems to hang."""
        ...
