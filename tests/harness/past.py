"""A past that a test writes, as the pages ask for it."""

from dataclasses import dataclass, field

from exporter.history.archive import QueryMoment
from exporter.history.coverage import PollTimes
from exporter.history.query import HistoryQuery, HistoryResult
from exporter.history.record import HoldingFacts, HoldingKey, Present
from exporter.history.recorder import HistoryUnavailable
from harness.lives import PATIENCE, Life


@dataclass
class Past:
    """A HistorySource over a life. `asked` are the questions so far; with an `error` it cannot be asked."""

    life: Life
    error: str = ""
    asked: list[HistoryQuery] = field(default_factory=list[HistoryQuery])

    async def find(self, question: HistoryQuery) -> HistoryResult:
        self.asked.append(question)
        if self.error:
            raise HistoryUnavailable(self.error)
        now = QueryMoment(self.life.sight.last, self.life.sight.failing, self.life.wall, PATIENCE)
        return self.life.archive.find(question, now)

    def look(self, *held: tuple[HoldingKey, HoldingFacts], after: float = 5.0) -> None:
        """Look so many seconds later, and see what is `held`."""
        life = self.life
        life.pass_time(after)
        found: Present = {key: (facts,) for key, facts in held}
        times = PollTimes(life.wall, life.wall, life.steady)
        look = life.sight.add(times, found, by_event=False, devices=life.recorded)
        life.archive.take([look], None)

    def silent(self, seconds: float) -> None:
        """Let the kubelet not answer for so long."""
        self.life.sight.fail()
        self.life.pass_time(seconds)
