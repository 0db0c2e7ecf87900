"""A past that a test writes, as the pages ask for it."""

from dataclasses import dataclass, field

from exporter.history.archive import Now
from exporter.history.coverage import Times
from exporter.history.historian import Unavailable
from exporter.history.query import Found, Question
from exporter.mapping.record import Facts, HoldingKey, Present
from harness.lives import PATIENCE, Life


@dataclass
class Past:
    """A HistorySource over a life. `asked` are the questions so far; with an `error` it cannot be asked."""

    life: Life
    error: str = ""
    asked: list[Question] = field(default_factory=list[Question])

    async def find(self, question: Question) -> Found:
        self.asked.append(question)
        if self.error:
            raise Unavailable(self.error)
        now = Now(self.life.sight.last, self.life.sight.failing, self.life.wall, PATIENCE)
        return self.life.archive.find(question, now)

    def look(self, *held: tuple[HoldingKey, Facts], after: float = 5.0) -> None:
        """Look so many seconds later, and see what is `held`."""
        life = self.life
        life.pass_time(after)
        found: Present = {key: (facts,) for key, facts in held}
        look = life.sight.look(Times(life.wall, life.wall, life.steady), found, told=False)
        life.archive.take([look], None)

    def silent(self, seconds: float) -> None:
        """Let the kubelet not answer for so long."""
        self.life.sight.fail()
        self.life.pass_time(seconds)
