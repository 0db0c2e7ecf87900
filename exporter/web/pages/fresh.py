"""How far the mapping can be trusted, for the pages of one device, pod or claim. Pure."""

from dataclasses import dataclass
from typing import Final

from exporter.core.state import Freshness
from exporter.web.api.documents import Moment
from exporter.web.pages.told import Stamp, optional
from exporter.web.standing import judge
from exporter.web.words import text

_LEVELS: Final = {
    Freshness.FRESH: ("ok", "✓"),
    Freshness.AGEING: ("warn", "!"),
    Freshness.STALE: ("bad", "✕"),
    Freshness.UNKNOWN: ("bad", "✕"),
}


@dataclass(frozen=True, slots=True)
class Fresh:
    """`level` is ok, warn or bad; `headline` is steady while nothing changes. `taken`: when the kubelet was
    asked, None if it has not answered. `problem` says what fails, "" while nothing does.
    """

    level: str
    sign: str
    headline: str
    taken: Stamp | None
    problem: str

    @property
    def trusted(self) -> bool:
        """Whether what is shown counts as of the present."""
        return self.level != "bad"


def fresh(moment: Moment) -> Fresh:
    """How the mapping stands at `moment`."""
    state, now = moment.state, moment.now
    standing = judge(state, now, moment.stale_after)
    level, sign = _LEVELS[standing.freshness]
    headline = f"{standing.headline[0].upper()}{standing.headline[1:]}."
    return Fresh(level, sign, headline, optional(state.taken_at, now), text(standing.error, limit=600).shown)
