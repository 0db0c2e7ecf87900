"""What a registration needs next, decided from what can be seen of it.

kubelet: a restart deletes every socket in device-plugins and makes a new kubelet.sock; a stream that
ends makes all devices unhealthy; when a plugin registers while its own older stream is open, and that
stream then ends, the kubelet stops the new endpoint too. So an open stream is ended before registering.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

FIRST_RETRY: Final = 0.01
LAST_RETRY: Final = 1.0
"""Seconds between attempts that found nobody listening: doubled from the first to the last."""
LAST_RETRY_REFUSED: Final = 30.0
"""The same for attempts that the kubelet answered with an error."""
LAST_RENEWAL: Final = 60.0
"""Seconds between sockets made anew that the kubelet does not follow: doubled up to this."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds after which a registration that the kubelet accepted is repeated.

    `no_stream`: the kubelet never opened one for it; `lost_stream`: the last one ended; `refused`: it said
    no to a socket that it found by itself.
    """

    no_stream: float = 5.0
    lost_stream: float = 1.0
    refused: float = 5.0


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
    open since the registration; `retry_at`: no attempt before; `renew`: a new incarnation is asked for.
    """

    own_socket: bool
    kubelet: SocketIdentity | None
    accepted_by: SocketIdentity | None = None
    streams: int = 0
    quiet_since: float = 0.0
    had_stream: bool = False
    retry_at: float = 0.0
    renew: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """A step; with WAIT the steady time at which to look again, None: when something changes."""

    step: Step
    until: float | None = None


def decide(situation: Situation, now: float, patience: Patience) -> Decision:
    """The next step."""
    if not situation.own_socket or situation.renew:
        return Decision(Step.RENEW)
    if situation.kubelet is None:
        return Decision(Step.WAIT)
    if situation.accepted_by != situation.kubelet:
        if situation.accepted_by is not None and situation.streams:
            return Decision(Step.RENEW)
        return _at(situation.retry_at, now)
    if situation.streams:
        return Decision(Step.WAIT)
    wait = patience.lost_stream if situation.had_stream else patience.no_stream
    return _at(max(situation.quiet_since + wait, situation.retry_at), now)


@dataclass(frozen=True, slots=True)
class DirectorySituation:
    """What can be seen of a registration by directory. Times are steady, in seconds.

    `own_socket`: ours is there; `kubelet`: its own socket, None where there is none; `quiet_since`: since
    when no stream is open, this socket is there and so is this kubelet; `had_stream`: this kubelet had
    one; `refused`: it said no, and `retry_at` is when to ask again; `renewals`: how many incarnations in
    a row found no stream; `renew`: a new one is asked for.
    """

    own_socket: bool
    kubelet: SocketIdentity | None
    streams: int = 0
    quiet_since: float = 0.0
    had_stream: bool = False
    refused: bool = False
    retry_at: float = 0.0
    renewals: int = 0
    renew: bool = False


def decide_by_directory(situation: DirectorySituation, now: float, patience: Patience) -> Decision:
    """The next step where the kubelet finds the socket by itself: to wait, or to make it anew.

    kubelet: it looks once a second for what is new in the directory, and does not open a stream again
    that broke, unless the socket is made anew.
    """
    if not situation.own_socket or situation.renew:
        return Decision(Step.RENEW)
    if situation.streams or situation.kubelet is None:
        return Decision(Step.WAIT)
    wait = patience.lost_stream if situation.had_stream else patience.no_stream
    again = min(wait * 2.0 ** min(situation.renewals, 16), LAST_RENEWAL)
    until = situation.retry_at if situation.refused else situation.quiet_since + again
    return Decision(Step.RENEW) if now >= until else Decision(Step.WAIT, until)


def _at(time: float, now: float) -> Decision:
    return Decision(Step.REGISTER) if now >= time else Decision(Step.WAIT, time)


def retry_delay(failures: int, *, refused: bool) -> float:
    """Seconds to wait after the given number of failed attempts in a row (1, 2, …)."""
    last = LAST_RETRY_REFUSED if refused else LAST_RETRY
    return min(FIRST_RETRY * 2.0 ** min(failures - 1, 32), last)
