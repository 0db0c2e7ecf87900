"""What a registration needs next, decided from what can be seen of it.

kubelet: a restart deletes every socket in device-plugins and makes a new kubelet.sock; a stream that
ends makes all devices unhealthy; when a plugin registers while its own older stream is open, and that
stream then ends, the kubelet stops the new endpoint too. So an open stream is ended before registering.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

NO_STREAM: Final = 5.0
"""Seconds after which a registration that the kubelet accepted, but opened no stream for, is repeated."""
LOST_STREAM: Final = 1.0
"""Seconds after which a registration whose stream ended is repeated."""
FIRST_RETRY: Final = 0.01
LAST_RETRY: Final = 1.0
"""Seconds between attempts that found nobody listening: doubled from the first to the last."""
LAST_RETRY_REFUSED: Final = 30.0
"""The same for attempts that the kubelet answered with an error."""


@dataclass(frozen=True, slots=True)
class SocketIdentity:
    """Which socket file this is: a new one of the same name differs."""

    device: int
    inode: int
    modified_ns: int


class Step(Enum):
    """What to do next."""

    WAIT = "wait"
    REGISTER = "register"
    RENEW = "renew"
    """End this incarnation with its streams, and begin a new one on a fresh socket."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What can be seen of a registration. Times are steady, in seconds.

    `own_socket`: ours is there; `kubelet`: its socket, None where there is none; `accepted_by`: the one
    that accepted our registration; `quiet_since`: since when no stream is open; `had_stream`: one was
    open since the registration; `retry_at`: no attempt before.
    """

    own_socket: bool
    kubelet: SocketIdentity | None
    accepted_by: SocketIdentity | None = None
    streams: int = 0
    quiet_since: float = 0.0
    had_stream: bool = False
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """A step; with WAIT the steady time at which to look again, None: when something changes."""

    step: Step
    until: float | None = None


def decide(situation: Situation, now: float) -> Decision:
    """The next step."""
    if not situation.own_socket:
        return Decision(Step.RENEW)
    if situation.kubelet is None:
        return Decision(Step.WAIT)
    if situation.accepted_by != situation.kubelet:
        if situation.accepted_by is not None and situation.streams:
            return Decision(Step.RENEW)
        return _at(situation.retry_at, now)
    if situation.streams:
        return Decision(Step.WAIT)
    patience = LOST_STREAM if situation.had_stream else NO_STREAM
    return _at(max(situation.quiet_since + patience, situation.retry_at), now)


def _at(time: float, now: float) -> Decision:
    return Decision(Step.REGISTER) if now >= time else Decision(Step.WAIT, time)


def retry_delay(failures: int, *, refused: bool) -> float:
    """Seconds to wait after the given number of failed attempts in a row (1, 2, …)."""
    last = LAST_RETRY_REFUSED if refused else LAST_RETRY
    return min(FIRST_RETRY * 2.0 ** min(failures - 1, 32), last)
