"""Whom the refresh loop works with: why it asks, whom it asks, and who is told.

The loop knows them by what it needs of them alone. Who the pods are and what plugins tell is learned beside
it, each at its own pace, and never waited for.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Protocol

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
    """A plugin's or the kubelet's socket came or went."""
    SOCKET = "socket"
    """The PodResources socket came or went."""
    PODS = "pods"
    """A pod ended, went or came, as a source of identity tells."""
    PLUGIN = "plugin"
    """A plugin tells something else of its devices."""
    SETTLING = "settling"
    RETRY = "retry"


class KubeletSource(Protocol):
    """The kubelet, as the loop needs it."""

    async def fetch_raw(self, *, allocatable: bool) -> Raw:
        """Its answers. Raises KubeletError."""
        ...

    async def reset(self) -> None:
        """Forget the connection."""
        ...


class Observer(Protocol):
    """Who counts what the loop does."""

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:
        """A refresh that `triggers` asked for ended, well or badly, after `seconds`."""
        ...

    def failed(self, method: str, code: str) -> None:
        """A refresh failed."""
        ...

    def stepped(self, state: State, step: HoldingChanges) -> None:
        """A good refresh brought these changes and led to this state."""
        ...

    def reread(self) -> None:
        """The last answer was read anew, as something more is known: the states has what came of it."""
        ...


class PodSource(Protocol):
    """Who knows the pods."""

    @property
    def view(self) -> PodView:
        """What is known of them at this moment."""
        ...

    def looked(self, state: State, look: Poll) -> None:
        """`state` is published, of the List of `look`."""
        ...


class NoPods:
    """The witness of a node without a source of identity."""

    view = EMPTY_VIEW

    def looked(self, state: State, look: Poll) -> None:
        """Nothing follows from it."""


class PluginSource(Protocol):
    """Who asks plugins."""

    @property
    def advertised(self) -> PluginReports:
        """What they tell at this moment."""
        ...


class NoPlugins:
    """Of a node whose plugins are not asked."""

    advertised = NO_REPORTS
