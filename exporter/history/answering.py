"""What a store and a book answer to a question: the rows, and which times nobody looked at."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from exporter.core.history_book import Book
from exporter.core.history_query import Found, Question
from exporter.core.history_watch import Gap, Times, Watch, unseen
from exporter.history.store import Store

_WATCHES: Final = 1000
"""Times without gaps that are looked into; of more, the latest."""


@dataclass(frozen=True, slots=True)
class Now:
    """The moment of a question: the last good look, whether the kubelet answers since, the time (unix), and
    the seconds for which a look counts as of the present.
    """

    last: Times | None
    failing: bool
    time: float
    patience: float

    @property
    def fresh(self) -> bool:
        """Whether what the last look showed counts as of the present."""
        return self.last is not None and not self.failing and self.time - self.last.answered <= self.patience


def answer(store: Store, book: Book, question: Question, now: Now) -> Found:
    """The answer, all of it as it is written. Raises as the store does."""
    rows, more = store.find(question)
    watches = store.watches(question.since, question.until, _WATCHES)
    since = question.since
    if len(watches) == _WATCHES and since != question.until:
        since = max(since or 0.0, watches[0].since)
    latest, looked_at, after = _up_to_now(book, watches, store.latest(), now)
    until = now.time if question.until is None else question.until
    return Found(
        rows=rows,
        next=more,
        earliest=store.earliest(),
        latest=latest,
        unseen=tuple(unseen(looked_at, since, until, after)),
        resources=store.resources(),
        kept_in="file" if store.path is not None else "memory",
    )


def _up_to_now(
    book: Book, watches: Sequence[Watch], written: float | None, now: Now
) -> tuple[float | None, Sequence[Watch], Gap]:
    """When the last look was that is written, the times that were looked at, the present one up to that look,
    and why nobody has looked since.
    """
    present = book.watch
    if present is None or now.last is None:
        return written, watches, Gap.SILENT if now.failing else Gap.DOWN
    if book.pending.changes:
        return written, watches, Gap.LOST
    latest = max(present.until, now.last.asked)
    # What the last look showed holds until the next one is due.
    end = max(latest, now.time) if now.fresh else latest
    after = Gap.LATER if now.fresh else Gap.SILENT if now.failing else Gap.PAUSED
    lengthened = [replace(w, until=max(w.until, end)) if w.id == present.id else w for w in watches]
    return latest, lengthened, after
