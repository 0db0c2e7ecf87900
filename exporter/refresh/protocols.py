"""The parts that the refresh loop works with, as Protocols, and the triggers of a refresh.

Pod identities and plugin reports are collected beside the loop, each at its own pace. The loop reads what is
there and never waits for them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Protocol

from exporter.mapping.dra import NO_DRA, CdiDevice, ClaimName, DraView, SourceStatus
from exporter.mapping.holdings import HoldingChanges
from exporter.mapping.identity import EMPTY_VIEW, PodView, Poll
from exporter.mapping.model import NO_REPORTS, PluginReports
from exporter.mapping.state import State
from kubelet.podresources import Raw


class Trigger(Enum):
    """Why a refresh is made."""

    START = "start"
    TIMER = "timer"
    ALLOCATION = "allocation"
    """The device manager wrote its checkpoint."""
    REGISTRATION = "registration"
    """The socket of a plugin or of the kubelet appeared or vanished."""
    SOCKET = "socket"
    """The PodResources socket appeared or vanished."""
    PODS = "pods"
    """The pod source reported that a pod started or ended."""
    CGROUP = "cgroup"
    """The cgroup of a pod was removed."""
    PLUGIN = "plugin"
    """A plugin's report changed."""
    SETTLING = "settling"
    """A moment after a registration."""
    RETRY = "retry"


class Phase(Enum):
    """Where a refresh spends its time. The phases follow one another without a gap."""

    KUBELET = "kubelet"
    """The kubelet answers, once or twice; with the pause between two calls."""
    MAPPING = "mapping"
    """The answer becomes a mapping."""
    RENDERING = "rendering"
    """The preparers make what readers need."""
    PUBLISHING = "publishing"
    """The event loop publishes the state, and the observers follow it."""


class RefreshRequests(Protocol):
    """The refresh loop, for those who cause refreshes. No method blocks."""

    def trigger(self, cause: Trigger, /) -> None:
        """Request a refresh."""
        ...

    def reconsider(self) -> None:
        """Request that the last answer is read again, with the present pod identities and plugin reports."""
        ...


class NoRequests:
    """Ignores requests: used until the loop is bound."""

    def trigger(self, cause: Trigger) -> None:
        """Do nothing."""

    def reconsider(self) -> None:
        """Do nothing."""


class KubeletSource(Protocol):
    """The kubelet's PodResources API."""

    async def fetch_raw(self, *, allocatable: bool) -> Raw:
        """Call List, and GetAllocatableResources if `allocatable`. Raises KubeletError."""
        ...

    async def reset(self) -> None:
        """Close the connection."""
        ...


class Observer(Protocol):
    """Follows the refreshes: the counters and history."""

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:
        """A refresh ended, with or without success, after `seconds`."""
        ...

    def failed(self, method: str, code: str) -> None:
        """A call to the kubelet failed."""
        ...

    def changed(self, state: State, changes: HoldingChanges, /) -> None:
        """A refresh published `state` with these changes of holdings."""
        ...

    def reread(self) -> None:
        """The last answer was read again and a new state published."""
        ...


class PhaseObserver(Protocol):
    """Follows where refreshes spend their time."""

    def timed(self, seconds: Mapping[Phase, float], /) -> None:
        """A refresh ended, observers included, after the sum of these `seconds`."""
        ...


class Preparer(Protocol):
    """Makes what readers need of a state before they see the state."""

    def prepare(self, state: State, /) -> None:
        """`state` is about to be published. Called in the refresh loop's thread, not in the event loop's."""
        ...


class PodSource(Protocol):
    """Pod identities."""

    @property
    def name(self) -> str:
        """The value of `--pods.source` that selects this source."""
        ...

    @property
    def view(self) -> PodView:
        """The present view."""
        ...

    def polled(self, state: State, poll: Poll, /) -> None:
        """`state` was published by the List of `poll`."""
        ...


class NoPods:
    """The pod source of --pods.source=none."""

    name = "none"
    view = EMPTY_VIEW

    def polled(self, state: State, poll: Poll) -> None:
        """Do nothing."""


class PluginSource(Protocol):
    """Reports of device plugins."""

    @property
    def advertised(self) -> PluginReports:
        """The present reports."""
        ...


class NoPlugins:
    """No --plugin.url is given."""

    advertised = NO_REPORTS


class DraSource(Protocol):
    """Facts of Dynamic Resource Allocation."""

    @property
    def view(self) -> DraView:
        """The present view; the same object until a fact changes."""
        ...

    def want(self, names: Collection[ClaimName], /) -> None:
        """Pods of this node use these claims, and no others."""
        ...

    async def known(self, names: Collection[ClaimName], within: float, /) -> None:
        """Return when each of these claims was read or has failed, at the latest after `within` seconds.
        Returns at once where claims cannot be read. A claim that is known is read again: List contradicts it.
        """
        ...


class NoDra:
    """The source of --dra.source=none."""

    view = NO_DRA

    def want(self, names: Collection[ClaimName]) -> None:
        """Do nothing."""

    async def known(self, names: Collection[ClaimName], within: float) -> None:
        """Do nothing."""


class CdiSource(Protocol):
    """What CDI specifications on the node say, a part of a DraSource."""

    @property
    def devices(self) -> Mapping[str, CdiDevice]:
        """By CDI device name; the same object until a specification changes."""
        ...

    @property
    def status(self) -> SourceStatus:
        """Whether the specifications can be read."""
        ...

    def bind(self, changed: Callable[[], None], /) -> None:
        """Set what is called after `devices` or `status` changed."""
        ...

    async def run(self) -> None:
        """Follow the specifications until cancelled."""
        ...


class NoteSource(Protocol):
    """Notes about a state, shown with those about the kubelet."""

    def notes(self, state: State) -> tuple[str, ...]:
        """The notes about `state`. Called in the refresh loop's thread."""
        ...
