"""Keeps the journal in a store through every failure, and answers queries from both. Used by one thread.

Changes that cannot be written wait in memory, within bounds. If the file cannot be used at all, history is
kept in memory until it can; then both are joined. A damaged file is moved aside.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from exporter.history.coverage import (
    CoveredSpan,
    GapReason,
    PollRecord,
    PollTimes,
    coverage_gaps,
    without_answers,
)
from exporter.history.devices import DeviceRow
from exporter.history.file import FileLocked, HistoryFile
from exporter.history.journal import Journal, StoredHistory
from exporter.history.query import Cursor, HistoryQuery, HistoryResult
from exporter.history.record import HoldingRow
from exporter.history.rows import DamagedError
from exporter.history.store import PAGES_FREED, STEPS, FoundRows, Pruned, Store, StoreError, prune
from runtime.clock import Clock
from runtime.log import Episode, Log

_SPANS: Final = 1000
"""Covered spans that a query reads; of more, the latest."""


class QueryMoment(Struct, frozen=True):
    """The moment of a query: the last good poll, whether polls fail since, the unix time, and the seconds for
    which a poll counts as the present.
    """

    last: PollTimes | None
    failing: bool
    time: float
    patience: float

    @property
    def fresh(self) -> bool:
        """Whether the last poll counts as the present."""
        return self.last is not None and not self.failing and self.time - self.last.answered <= self.patience


def answer(
    store: Store, journal: Journal, query: HistoryQuery, now: QueryMoment, started: float
) -> HistoryResult:
    """Answer `query` from what is written; the process runs since unix time `started`. Raises the store's
    errors.
    """
    spans = store.spans(query.since, query.until, _SPANS)
    since = query.since
    if len(spans) == _SPANS and since != query.until:
        since = max(since or 0.0, spans[0].since)
    latest, covered, after = _up_to_now(journal, spans, store.latest(), now)
    until = now.time if query.until is None else query.until
    earliest = store.earliest()
    gaps = coverage_gaps(covered, since, until, after)
    if _was_silent_at_start(journal, now, started, earliest):
        gaps = without_answers(gaps, started, until if since == until else None)
    unseen = tuple(gaps)
    found = store.find(query, observed=not unseen)
    return _with_devices(
        query,
        found,
        HistoryResult(
            rows=found.rows,
            next=found.next,
            matches=found.matches,
            earliest=earliest,
            latest=latest,
            unseen=unseen,
            resources=store.resources(),
            kept_in="file" if store.path is not None else "memory",
        ),
    )


def _with_devices(query: HistoryQuery, found: FoundRows, result: HistoryResult) -> HistoryResult:
    """`result` with the devices that nobody held at the moment of `query`. They follow the last holding."""
    if found.devices is None:
        return result
    devices, recorded, counts, held_only = found.devices
    result = replace(result, devices_recorded=recorded, device_counts=counts, held_only=held_only)
    if result.next is not None:
        return result
    first = query.after.devices if query.after is not None else 0
    last = first + query.limit - len(result.rows)
    more = Cursor.of_devices(last) if last < len(devices) else None
    return replace(result, devices=tuple(devices[first:last]), next=more)


def _was_silent_at_start(journal: Journal, now: QueryMoment, started: float, earliest: float | None) -> bool:
    """Whether this process ran for a while before its first good poll, and history still has this time."""
    first = journal.first
    if first is None:
        return now.failing
    return first.asked - started > now.patience and earliest is not None and earliest <= first.asked


def _up_to_now(
    journal: Journal, spans: Sequence[CoveredSpan], written: float | None, now: QueryMoment
) -> tuple[float | None, Sequence[CoveredSpan], GapReason]:
    """The time of the last written poll, the spans with the present one up to it, and the reason of the gap
    that follows.
    """
    present = journal.span
    if present is None or now.last is None:
        return written, spans, GapReason.BEFORE if written is None else GapReason.DOWN
    if journal.pending.changes:
        return written, spans, GapReason.LOST
    latest = max(present.until, now.last.asked)
    # The last poll holds until the next one is due.
    end = max(latest, now.time) if now.fresh else latest
    after = GapReason.LATER if now.fresh else GapReason.SILENT if now.failing else GapReason.PAUSED
    extended = [replace(s, until=max(s.until, end)) if s.id == present.id else s for s in spans]
    return latest, extended, after


PENDING_LIMIT: Final = 4096
"""Ended holdings that may wait to be written; about 2 MiB."""

RETRY: Final = 5.0
"""Seconds between two attempts to use a file that cannot be used."""

STEADY_FOR: Final = 600.0
"""Seconds for which the wall clock must not have been set before rows are deleted for their age: when a node
boots, its clock may be years ahead until it is synchronised.
"""


_log = Log("history")


class HistoryLimits(Struct, frozen=True):
    """Limits: nothing that ended more than `age` seconds ago, and at most `size` bytes."""

    age: float
    size: int


class HistoryStatus(Struct, frozen=True):
    """The condition of history. `written`: nothing waits, and it is in its file. Unix times, bytes."""

    written: bool = False
    pending: int = 0
    rows: int = 0
    size: int = 0
    earliest: float | None = None
    errors: int = 0
    dropped: int = 0
    expired: int = 0


class Archive:
    """History in the file `path`, or in memory for None."""

    def __init__(
        self,
        path: Path | None,
        limits: HistoryLimits,
        *,
        doubt: float,
        clock: Clock,
        pending_limit: int = PENDING_LIMIT,
        retry: float = RETRY,
    ) -> None:
        """`doubt`: see Journal."""
        self._file = None if path is None else HistoryFile(path)
        self._limits = limits
        self._clock = clock
        self._pending_limit = pending_limit
        self._retry, self._retry_at = retry, 0.0
        self._doubt = doubt
        self._journal = Journal(doubt)
        self._store: Store | None = None
        self._last: PollTimes | None = None
        self._clock_set = clock.monotonic()
        self._started = clock.now()
        self._rows = self._errors = self._dropped = self._expired = 0
        self._in_memory = Episode(_log, "cannot use the history file: keeping history in memory", path=path)
        self._unwritten = Episode(_log, "history cannot be written", path=path)
        self.condition = HistoryStatus()
        self.moves = 0
        """How often history has moved to another store, which may have older starts of holdings."""

    def open(self) -> tuple[HoldingRow, ...]:
        """Open the file, or memory if it cannot be used. Returns the rows that were open."""
        store, stored = self._open_file() or (Store(None), StoredHistory())
        self._journal = Journal(self._doubt, stored)
        self._use(store)
        return stored.rows

    def _open_file(self) -> tuple[Store, StoredHistory] | None:
        """The file's database and its content; None if it cannot be used."""
        if self._file is None:
            return None
        self._retry_at = self._clock.monotonic() + self._retry
        try:
            self._file.lock()
            try:
                found = _read(self._file.path)
            except DamagedError as error:
                found = self._replaced(self._file, error), StoredHistory()
        except Exception as error:  # noqa: BLE001 -- the exporter must serve whatever the file contains
            self._file.unlock()
            self._errors += 1
            self._in_memory.failed(_words(error), level="warn" if isinstance(error, FileLocked) else "error")
            return None
        self._in_memory.recovered()
        return found

    def _replaced(self, file: HistoryFile, error: DamagedError) -> Store:
        """A new database in place of a damaged one. Raises StoreError and DamagedError."""
        aside = file.set_aside(self._clock.wall())
        _log.error(
            "history file is damaged: moved it aside and created a new one",
            path=file.path,
            to=aside,
            reason=error,
        )
        file.lock()
        return Store(file.path)

    def _use(self, store: Store) -> None:
        if self._store is not None:
            self._store.close()
        self._store = store
        self._rows = store.count()
        self._update_condition()

    def take(self, polls: Iterable[PollRecord], unchanged: PollTimes | None) -> None:
        """Take in polls, and `unchanged`, a later one without changes; write them."""
        for poll in polls:
            if poll.gap is GapReason.CLOCK or self._last is None:
                self._clock_set = poll.times.steady
            self._journal.take(poll)
            self._last = poll.times
        if unchanged is not None and self._last is not None:
            self._journal.extend(unchanged)
            self._last = unchanged
        self._write()

    def _write(self) -> None:
        pending = self._journal.pending
        if self._store is None or not (pending.changes or pending.spans):
            return
        try:
            if self._file is not None and self._store.path is not None:
                self._check_file(self._file)
                pending = self._journal.pending
            self._store.write(pending)
        except DamagedError as error:
            self._rescue(error)
        except Exception as error:  # noqa: BLE001 -- what waits must stay bounded
            self._errors += 1
            self._unwritten.failed(_words(error), level="error")
            dropped = self._journal.trim(self._pending_limit)
            if dropped:
                self._dropped += dropped
                _log.error("dropped holdings: the write queue is full", number=dropped)
        else:
            self._rows += len(pending.fresh)
            self._journal.written()
            self._unwritten.recovered()
        self._update_condition()

    def _check_file(self, file: HistoryFile) -> None:
        """Continue in a new file if the old one was deleted or replaced."""
        try:
            file.check()
        except StoreError as error:
            self._errors += 1
            _log.error(
                "the history file was deleted or replaced: its content is lost", path=file.path, reason=error
            )
            self._move_without_past(self._open_file() or (Store(None), StoredHistory()))

    def _rescue(self, error: DamagedError) -> None:
        """Replace a damaged store by a new one with everything in memory. Raises nothing."""
        self._errors += 1
        if self._store is not None:
            self._store.close()
        store = None
        if self._file is not None:
            try:
                store = self._replaced(self._file, error)
            except (StoreError, DamagedError) as failure:
                self._in_memory.failed(str(failure), level="error")
        self._move_without_past((store or Store(None), StoredHistory()))

    def _move_without_past(self, found: tuple[Store, StoredHistory]) -> None:
        """Continue in another store with what the journal has: its coverage begins at the last poll."""
        span = self._journal.span
        spans = [] if span is None else [replace(span, since=span.until, gap=None)]
        self._move(*found, list(self._journal.pending.ended.values()), spans)

    def _move(
        self,
        store: Store,
        stored: StoredHistory,
        past: Iterable[HoldingRow],
        spans: Iterable[CoveredSpan],
        devices: Iterable[DeviceRow] = (),
    ) -> None:
        """Continue in another store."""
        self._journal.join(stored, past, spans, devices)
        try:
            store.write(self._journal.pending)
            self._journal.written()
        except (StoreError, DamagedError) as error:
            # All of it waits in the journal and is written later.
            self._unwritten.failed(str(error), level="error")
        self.moves += 1
        self._use(store)

    def maintain(self) -> bool:
        """Return to the file, write again, and delete what is beyond the limits. Whether more is to be
        deleted soon.
        """
        if self._store is None:
            return False
        more = False
        try:
            due = self._clock.monotonic() >= self._retry_at
            if self._file is not None and self._store.path is None and due:
                self._return_to_file(self._store)
            elif self._journal.pending.changes and due:
                self._retry_at = self._clock.monotonic() + self._retry
                self._write()
            more = self._prune(self._store)
        except DamagedError as error:
            self._rescue(error)
        except StoreError as error:
            self._errors += 1
            self._unwritten.failed(str(error), level="error")
        self._update_condition()
        return more

    def _return_to_file(self, memory: Store) -> None:
        """Try the file again, and take along what was kept in memory."""
        found = self._open_file()
        if found is None:
            return
        memory.write(self._journal.pending)
        self._journal.written()
        past = list(memory.past())
        self._move(*found, past, memory.spans(None, None), memory.past_devices())
        _log.info("history is in its file again", taken_along=len(past))

    def _prune(self, store: Store) -> bool:
        """Delete some rows beyond the limits; whether there may be more."""
        if store.upgrading:
            store.upgrade()
            return True
        before = None
        if self._last is not None and self._last.steady - self._clock_set >= STEADY_FOR:
            before = self._last.answered - self._limits.age
        trimmed = store.trim_devices()
        if trimmed is not None:
            self._journal.forget_devices(trimmed)
        steps = 0
        for pruned in prune(store, self._limits.size, before):
            self._count_pruned(pruned)
            steps += 1
        return steps == STEPS or store.free() > PAGES_FREED

    def _count_pruned(self, pruned: Pruned) -> None:
        self._journal.forget(pruned.before)
        self._journal.forget_devices(pruned.before)
        self._rows -= pruned.rows
        self._expired += pruned.rows

    def find(self, query: HistoryQuery, now: QueryMoment) -> HistoryResult:
        """Answer `query`. Raises StoreError and QueryTimeout."""
        for _ in range(2):
            if self._store is None:
                break
            try:
                found = answer(self._store, self._journal, query, now, self._started)
            except DamagedError as error:
                self._rescue(error)
            else:
                return replace(found, trouble=self._in_memory.reason or self._unwritten.reason or "")
        raise StoreError("history cannot be read")

    @property
    def doubting(self) -> bool:
        """Whether missing holdings are not ended yet."""
        return self._journal.doubting

    def open_rows(self) -> tuple[HoldingRow, ...]:
        """The open rows."""
        return tuple(self._journal.rows())

    def close(self) -> None:
        """Write what waits, and unlock the file."""
        self._write()
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._file is not None:
            self._file.unlock()

    def _update_condition(self) -> None:
        size, earliest = self.condition.size, self.condition.earliest
        if self._store is not None:
            # The next use of the store reports the error.
            with suppress(StoreError, DamagedError):
                size, earliest = self._store.size(), self._store.earliest()
        self.condition = HistoryStatus(
            written=self._in_memory.reason is None and self._unwritten.reason is None,
            pending=self._journal.pending.holdings,
            rows=self._rows,
            size=size,
            earliest=earliest,
            errors=self._errors,
            dropped=self._dropped,
            expired=self._expired,
        )


def _words(error: Exception) -> str:
    known = isinstance(error, StoreError | DamagedError)
    return str(error) if known else f"{type(error).__name__}: {error}"


def _read(path: Path) -> tuple[Store, StoredHistory]:
    store = Store(path)
    try:
        return store, store.stored()
    except BaseException:
        store.close()
        raise
