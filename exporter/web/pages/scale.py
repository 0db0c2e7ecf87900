"""Times as places across a drawing, in percent of its width. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the width, in percent, as text."""

    x: str
    width: str


class Scale:
    """Times as percent of the width."""

    def __init__(self, since: float, until: float) -> None:
        self.since, self.until = since, max(until, since + 1e-3)

    def at(self, time: float) -> float:
        """Where a time is, within the drawing."""
        share = (time - self.since) / (self.until - self.since)
        return 100.0 * min(1.0, max(0.0, share))

    def inside(self, time: float) -> bool:
        """Whether a time is in the range."""
        return self.since <= time <= self.until

    def span(self, first: float, last: float) -> Span:
        """The part between two times."""
        x, end = self.at(first), self.at(last)
        return Span(percent(x), percent(max(0.0, end - x)))


def percent(value: float) -> str:
    """`12.5%`, to a hundred-thousandth of the width."""
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"
