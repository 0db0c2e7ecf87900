"""How fresh the mapping is: the first thing on the status page. Pure."""

from dataclasses import dataclass

from exporter.core.state import Freshness
from exporter.web.api.documents import Moment
from exporter.web.pages.whens import When, later
from exporter.web.standing import reason
from exporter.web.words import lasting, text


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the last refresh failed: the kubelet's `method`, since when, and the reason in words."""

    method: str
    since: When
    reason: str


@dataclass(frozen=True, slots=True)
class Banner:
    """`level` is ok, warn or bad; `headline` is steady while nothing changes."""

    level: str
    sign: str
    headline: str
    explanation: str
    taken: When | None
    problem: Problem | None


def banner(moment: Moment) -> Banner:
    """How fresh the mapping is at `moment`."""
    state, now = moment.state, moment.now
    failure = state.failure
    level, sign, headline = {
        Freshness.FRESH: ("ok", "✓", "The mapping is fresh."),
        Freshness.AGEING: ("warn", "!", "The kubelet does not answer as it should."),
        Freshness.STALE: ("bad", "✕", "Do not trust this mapping."),
        Freshness.UNKNOWN: ("bad", "✕", "There is no mapping yet."),
    }[moment.freshness]
    explanation = {
        Freshness.FRESH: "",
        Freshness.AGEING: f"What you see is older than it should be; after {lasting(moment.stale_after)} "
        "it is no longer told to Prometheus.",
        Freshness.STALE: f"It is older than {lasting(moment.stale_after)}: "
        "pods and devices may have changed hands since. It is no longer told to Prometheus.",
        Freshness.UNKNOWN: "The kubelet has not answered since the exporter started.",
    }[moment.freshness]
    return Banner(
        level=level,
        sign=sign,
        headline=headline,
        explanation=explanation,
        taken=None if state.taken_at is None else later(state.taken_at, now),
        problem=None
        if failure is None
        else Problem(
            text(failure.method).shown,
            later(failure.since, now),
            text(reason(failure), limit=600).shown,
        ),
    )
