"""How far the mapping can be trusted, in words: for the page, /-/ready and `devicelens who`. Pure."""

from dataclasses import dataclass

from exporter.core.state import Failure, Freshness, State
from exporter.web.words import clock_time, lasting, rfc3339, spelled


@dataclass(frozen=True, slots=True)
class Standing:
    """`headline` is steady while nothing changes, so that it may be read aloud; ages are in `detail` and
    `error` ("" where nothing failed).
    """

    freshness: Freshness
    headline: str
    detail: str
    error: str = ""

    @property
    def line(self) -> str:
        """All of it in one line."""
        return "; ".join(part for part in (self.headline, self.detail, self.error) if part)


def judge(state: State, now: float, stale_after: float) -> Standing:
    """How `state` stands at unix time `now`; `stale_after` in seconds."""
    freshness = state.freshness(now, stale_after)
    error = "" if state.failure is None else failing(state.failure, now)
    if state.taken_at is None:
        return Standing(freshness, "no mapping yet", "the kubelet has not answered", error)
    age = lasting(now - state.taken_at)
    taken = clock_time(state.taken_at, now)
    if freshness is Freshness.FRESH:
        return Standing(freshness, "the mapping is fresh", f"the kubelet answered {age} ago")
    if freshness is Freshness.AGEING:
        return Standing(
            freshness,
            "the kubelet does not answer as it should",
            f"this is the mapping of {taken} UTC, {age} old",
            error,
        )
    return Standing(
        freshness,
        "the mapping is stale, do not trust it",
        f"it is of {taken} UTC, {age} old, and more than {lasting(stale_after)} is too old",
        error,
    )


def failing(failure: Failure, now: float) -> str:
    """`List fails since 2026-11-20T22:41:03.250Z (12 s): UNAVAILABLE: …`"""
    since = f"{rfc3339(failure.since)} ({lasting(now - failure.since)})"
    return f"{spelled(failure.method)} fails since {since}: {reason(failure)}"


def reason(failure: Failure) -> str:
    """`UNAVAILABLE: there is no socket …`: the gRPC code's name, and what it means here."""
    return ": ".join(spelled(part) for part in (failure.code, failure.message) if part)
