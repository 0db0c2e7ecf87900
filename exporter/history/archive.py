"""The book kept in a store, through whatever happens to it. For one thread alone.

What cannot be written waits in memory, within bounds, and is written when it can be. Where the file cannot
be used at all, history is kept in memory until it can; then both are joined. A damaged file is moved aside.

What a store and a book answer to a question: the rows, and which times nobody looked at.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from exporter.history.coverage import CoveredSpan, GapReason, PollRecord, PollTimes, coverage_gaps
from exporter.history.journal import Journal, StoredHistory
from exporter.history.query import HistoryQuery, HistoryResult
from exporter.history.record import HoldingRow
from exporter.history.sql import DamagedError
from exporter.history.store import STEPS, FileLocked, HistoryFile, Pruned, Store, StoreError, prune
from runtime.log import Episode, Log

_WATCHES: Final = 1000
"""Times without gaps that are looked into; of more, the latest."""


@dataclass(frozen=True, slots=True)
class QueryMoment:
    """The moment of a question: the last good look, whether the kubelet answers since, the time (unix), and
    the seconds for which a look counts as of the present.
    """

    last: PollTimes | None
    failing: bool
    time: float
    patience: float

    @property
    def fresh(self) -> bool:
        """Whether what the last look showed counts as of the present."""
        return self.last is not None and not self.failing and self.time - self.last.answered <= self.patience


def answer(store: Store, book: Journal, question: HistoryQuery, now: QueryMoment) -> HistoryResult:
    """The answer, all of it as it is written. Raises as the store does."""
    rows, more = store.find(question)
    watches = store.watches(question.since, question.until, _WATCHES)
    since = question.since
    if len(watches) == _WATCHES and since != question.until:
        since = max(since or 0.0, watches[0].since)
    latest, looked_at, after = _up_to_now(book, watches, store.latest(), now)
    until = now.time if question.until is None else question.until
    return HistoryResult(
        rows=rows,
        next=more,
        earliest=store.earliest(),
        latest=latest,
        unseen=tuple(coverage_gaps(looked_at, since, until, after)),
        resources=store.resources(),
        kept_in="file" if store.path is not None else "memory",
    )


def _up_to_now(
    book: Journal, watches: Sequence[CoveredSpan], written: float | None, now: QueryMoment
) -> tuple[float | None, Sequence[CoveredSpan], GapReason]:
    """When the last look was that is written, the times that were looked at, the present one up to that look,
    and why nobody has looked since.
    """
    present = book.watch
    if present is None or now.last is None:
        return written, watches, GapReason.SILENT if now.failing else GapReason.DOWN
    if book.pending.changes:
        return written, watches, GapReason.LOST
    latest = max(present.until, now.last.asked)
    # What the last look showed holds until the next one is due.
    end = max(latest, now.time) if now.fresh else latest
    after = GapReason.LATER if now.fresh else GapReason.SILENT if now.failing else GapReason.PAUSED
    lengthened = [replace(w, until=max(w.until, end)) if w.id == present.id else w for w in watches]
    return latest, lengthened, after


PENDING_LIMIT: Final = 4096
"""Holdings that ended and wait to be written; some 2 MiB."""

RETRY: Final = 5.0
"""Seconds between two attempts to use a file that cannot be used."""

STEADY_FOR: Final = 600.0
"""Seconds for which the clock must not have been set before anything is deleted for its age: at a node's
start the time may be years ahead, until it is set right.
"""


_log = Log("history")


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """What is kept: nothing that ended more than `age` seconds ago, and not more than `size` bytes."""

    age: float
    size: int


@dataclass(frozen=True, slots=True)
class HistoryStatus:
    """How history is. `written`: nothing waits, and it is where it should be. Bytes, unix times, counts."""

    written: bool = False
    pending: int = 0
    rows: int = 0
    size: int = 0
    earliest: float | None = None
    errors: int = 0
    dropped: int = 0
    expired: int = 0


class Archive:
    """History at `path`, in memory for None. `wall` tells unix time, `steady` seconds that nobody sets."""

    def __init__(
        self,
        path: Path | None,
        limits: HistoryLimits,
        *,
        doubt: float,
        wall: Callable[[], float],
        steady: Callable[[], float],
        pending_limit: int = PENDING_LIMIT,
        retry: float = RETRY,
    ) -> None:
        self._place = None if path is None else HistoryFile(path)
        self._limits = limits
        self._wall, self._steady = wall, steady
        self._pending_limit = pending_limit
        self._retry, self._retry_at = retry, 0.0
        self._book = Journal(doubt)
        self._doubt = doubt
        self._store: Store | None = None
        self._last: PollTimes | None = None
        self._clock_set = steady()
        self._rows = self._errors = self._dropped = self._expired = 0
        self._homeless = Episode(_log, "history is kept in memory, for its file cannot be used", path=path)
        self._unwritten = Episode(_log, "history cannot be written", path=path)
        self.condition = HistoryStatus()
        self.places = 0
        """How often history has moved to another place, where older beginnings may be known."""

    def open(self) -> tuple[HoldingRow, ...]:
        """Open it as well as it can be. The rows that were open when it was last written."""
        store, stored = self._open_file() or (Store(None), StoredHistory())
        self._book = Journal(self._doubt, stored)
        self._settle_in(store)
        return stored.rows

    def _open_file(self) -> tuple[Store, StoredHistory] | None:
        """The file's database and what is in it; None where it cannot be used."""
        if self._place is None:
            return None
        self._retry_at = self._steady() + self._retry
        try:
            self._place.take()
            try:
                found = _read(self._place.path)
            except DamagedError as error:
                found = self._replaced(self._place, error), StoredHistory()
        except Exception as error:  # noqa: BLE001 -- whatever is there: the exporter must serve
            self._place.release()
            self._errors += 1
            self._homeless.failed(_told(error), level="warn" if isinstance(error, FileLocked) else "error")
            return None
        self._homeless.recovered()
        return found

    def _replaced(self, place: HistoryFile, error: DamagedError) -> Store:
        """A new database in place of a damaged one. Raises StoreError and DamagedError."""
        aside = place.set_aside(self._wall())
        _log.error(
            "history was damaged: moved aside, a new one begins", path=place.path, to=aside, reason=error
        )
        place.take()
        return Store(place.path)

    def _settle_in(self, store: Store) -> None:
        if self._store is not None:
            self._store.close()
        self._store = store
        self._rows = store.count()
        self._tell()

    @property
    def _in_file(self) -> bool:
        return self._store is not None and self._store.path is not None

    def take(self, looks: Iterable[PollRecord], latest: PollTimes | None) -> None:
        """Take in looks, and `latest`, a later one that showed nothing new; write what came of it."""
        for look in looks:
            if look.gap is GapReason.CLOCK or self._last is None:
                self._clock_set = look.times.steady
            self._book.take(look)
            self._last = look.times
        if latest is not None and self._last is not None:
            self._book.extend(latest)
            self._last = latest
        self._flush()

    def _flush(self) -> None:
        pending = self._book.pending
        if self._store is None or not (pending.changes or pending.watches):
            return
        try:
            if self._place is not None and self._in_file:
                self._check_place(self._place)
                pending = self._book.pending
            self._store.write(pending)
        except DamagedError as error:
            self._rescue(error)
        except Exception as error:  # noqa: BLE001 -- what waits must stay bounded whatever happens
            self._errors += 1
            self._unwritten.failed(_told(error), level="error")
            self._drop()
        else:
            self._rows += len(pending.fresh)
            self._book.written()
            self._unwritten.recovered()
        self._tell()

    def _drop(self) -> None:
        dropped = self._book.trim(self._pending_limit)
        if dropped:
            self._dropped += dropped
            _log.error("holdings are forgotten: too many wait to be written", number=dropped)

    def _check_place(self, place: HistoryFile) -> None:
        """Go on in a new file where somebody took the old one away."""
        try:
            place.check()
        except StoreError as error:
            self._errors += 1
            _log.error("history's file was taken away: what was in it is lost", path=place.path, reason=error)
            self._move(
                *(self._open_file() or (Store(None), StoredHistory())), self._waiting(), self._only_now()
            )

    def _rescue(self, error: DamagedError) -> None:
        """The store is damaged: begin a new one with all that is known without it. Raises nothing."""
        self._errors += 1
        if self._store is not None:
            self._store.close()
        store = None
        if self._place is not None:
            try:
                store = self._replaced(self._place, error)
            except (StoreError, DamagedError) as failure:
                self._homeless.failed(str(failure), level="error")
        self._move(store or Store(None), StoredHistory(), self._waiting(), self._only_now())

    def _waiting(self) -> list[HoldingRow]:
        return list(self._book.pending.ended.values())

    def _only_now(self) -> list[CoveredSpan]:
        """The present watch from the last look on: what ended before is not known any more."""
        watch = self._book.watch
        return [] if watch is None else [replace(watch, since=watch.until, gap=None)]

    def _move(
        self, store: Store, stored: StoredHistory, past: Iterable[HoldingRow], watches: Iterable[CoveredSpan]
    ) -> None:
        """Go on in another store."""
        self._book.join(stored, past, watches)
        try:
            store.write(self._book.pending)
            self._book.written()
        except (StoreError, DamagedError) as error:
            # All of it waits in the book, and is tried again.
            self._unwritten.failed(str(error), level="error")
        self.places += 1
        self._settle_in(store)

    def tend(self) -> bool:
        """What is to be done now and then; whether there is more of it to be done soon."""
        if self._store is None:
            return False
        more = False
        try:
            if self._place is not None and not self._in_file and self._steady() >= self._retry_at:
                self._come_home(self._store)
            self._flush_again()
            more = self._prune(self._store)
        except DamagedError as error:
            self._rescue(error)
        except StoreError as error:
            self._errors += 1
            self._unwritten.failed(str(error), level="error")
        self._tell()
        return more

    def _come_home(self, memory: Store) -> None:
        """Try the file again, and take along what was kept in memory."""
        found = self._open_file()
        if found is None:
            return
        memory.write(self._book.pending)
        self._book.written()
        past = list(memory.past())
        self._move(*found, past, memory.watches(None, None))
        _log.info("history is in its file again", taken_along=len(past))

    def _flush_again(self) -> None:
        if self._book.pending.changes and self._steady() >= self._retry_at:
            self._retry_at = self._steady() + self._retry
            self._flush()

    def _prune(self, store: Store) -> bool:
        """Delete some of what is too old or too much; whether there may be more of it."""
        before = None
        if self._last is not None and self._last.steady - self._clock_set >= STEADY_FOR:
            before = self._last.answered - self._limits.age
        cuts = 0
        for cut in prune(store, self._limits.size, before):
            self._forget(cut)
            cuts += 1
        return cuts == STEPS

    def _forget(self, cut: Pruned) -> None:
        self._book.forget(cut.before)
        self._rows -= cut.rows
        self._expired += cut.rows

    def find(self, question: HistoryQuery, now: QueryMoment) -> HistoryResult:
        """The answer to `question`. Raises StoreError and TooLong."""
        for _ in range(2):
            if self._store is None:
                break
            try:
                found = answer(self._store, self._book, question, now)
            except DamagedError as error:
                self._rescue(error)
            else:
                return replace(found, trouble=self._homeless.reason or self._unwritten.reason or "")
        raise StoreError("history cannot be read")

    @property
    def doubting(self) -> bool:
        """Whether looks are awaited by which what is missing can be told to be gone."""
        return self._book.doubting

    def open_rows(self) -> tuple[HoldingRow, ...]:
        """What is held, with its beginning as history knows it."""
        return tuple(self._book.rows())

    def close(self) -> None:
        """Write what waits, and let another process have the file."""
        self._flush()
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._place is not None:
            self._place.release()

    def _tell(self) -> None:
        store = self._store
        size, earliest = self.condition.size, self.condition.earliest
        if store is not None:
            # Whoever uses it next finds out.
            with suppress(StoreError, DamagedError):
                size, earliest = store.size(), store.earliest()
        self.condition = HistoryStatus(
            written=self._homeless.reason is None and self._unwritten.reason is None,
            pending=self._book.pending.changes,
            rows=self._rows,
            size=size,
            earliest=earliest,
            errors=self._errors,
            dropped=self._dropped,
            expired=self._expired,
        )


def _told(error: Exception) -> str:
    known = isinstance(error, StoreError | DamagedError)
    return str(error) if known else f"{type(error).__name__}: {error}"


def _read(path: Path) -> tuple[Store, StoredHistory]:
    store = Store(path)
    try:
        return store, store.stored()
    except BaseException:
        store.close()
        raise
