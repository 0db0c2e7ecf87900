"""One database: written to, asked, and kept within its limits. For one thread alone."""

import math
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

from exporter.core.history import Row
from exporter.core.history_book import Pending, Stored
from exporter.core.history_query import Cursor, Question
from exporter.core.history_watch import Watch
from exporter.history import codec, statements
from exporter.history.codec import Damaged

__all__ = ["Cut", "Damaged", "Failed", "Store", "TooLong"]

QUERY_LIMIT: Final = 2.0
"""Seconds of work after which a query is given up."""

STEP: Final = 256
"""Rows that are deleted at a time: nothing waits for longer than such a step."""

_BUSY_MS: Final = 500
_CACHE_KIB: Final = 512
_WAL_BYTES: Final = 1 << 20
_PAGES_FREED: Final = 512
_SLACK: Final = 3600.0
"""Seconds of having looked that are forgotten at a time, where no row has to go."""
_CHECK_EVERY: Final = 20_000
"""Instructions of SQLite's machine between two looks at the clock: some milliseconds."""


class Failed(Exception):  # noqa: N818 -- what it is, not what went wrong with it
    """It cannot be read or written at present; the message says why, in words for a person."""


class TooLong(Exception):  # noqa: N818 -- as above
    """The query was given up."""


class Cut(NamedTuple):
    """What was deleted: the number of rows, and the time before which nothing is known any more."""

    rows: int
    before: float


_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_WORDS: Final = {
    sqlite3.SQLITE_FULL: "there is no space left",
    sqlite3.SQLITE_READONLY: "it cannot be written: the file system, or the file, is read-only",
    sqlite3.SQLITE_BUSY: "another program keeps it locked",
    sqlite3.SQLITE_LOCKED: "another program keeps it locked",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_IOERR: "reading or writing it fails",
    sqlite3.SQLITE_PERM: "no permission",
}


@contextmanager
def _explained() -> Generator[None]:
    """SQLite's errors as this module's own."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _DAMAGE:
            raise Damaged(str(error)) from error
        if code == sqlite3.SQLITE_INTERRUPT:
            raise TooLong(f"it took longer than {QUERY_LIMIT:g} s") from error
        words = _WORDS.get(code)
        raise Failed(f"{words} ({error})" if words else f"SQLite: {error}") from error


class Store:
    """An open database, of a file or in memory (`path` None).

    Every method raises Failed and Damaged.
    """

    def __init__(self, path: Path | None) -> None:
        """Open it; an empty one gets its tables."""
        self.path = path
        with _explained():
            self._db = sqlite3.connect(
                ":memory:" if path is None else str(path), isolation_level=None, timeout=_BUSY_MS / 1000
            )
        self._db.text_factory = codec.read_text
        try:
            with _explained():
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        db = self._db
        tables = self._number("SELECT count(*) FROM sqlite_master")
        application, version = self._number("PRAGMA application_id"), self._number("PRAGMA user_version")
        if (tables or application) and application != statements.APPLICATION:
            raise Failed("it is a database of another program, and is left alone")
        if version > statements.VERSION:
            raise Failed(
                f"a newer devicelens wrote it (schema {version}, this one knows {statements.VERSION}); "
                "it is left alone"
            )
        for pragma in (
            "auto_vacuum = INCREMENTAL",  # of an empty database alone
            "journal_mode = WAL",
            "synchronous = FULL",
            f"cache_size = -{_CACHE_KIB}",
            f"journal_size_limit = {_WAL_BYTES}",
            "wal_autocheckpoint = 128",
            "temp_store = MEMORY",
            "secure_delete = OFF",
            "trusted_schema = OFF",
            "cell_size_check = ON",
        ):
            db.execute(f"PRAGMA {pragma}").fetchall()
        if not tables:
            with self._transaction():
                for statement in statements.SCHEMA:
                    db.execute(statement)
        db.execute("SELECT * FROM watches, past, present LIMIT 0")
        self._spans = {int(span) for (span,) in db.execute(statements.SPANS)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it, whatever state it is in."""
        try:
            self._db.close()
        except sqlite3.Error:
            return

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _number(self, statement: str, *parameters: object) -> int:
        (value,) = self._db.execute(statement, parameters).fetchone()
        return int(value or 0)

    def stored(self) -> Stored:
        """What the last run left."""
        with _explained():
            columns = ", ".join(statements.PRESENT_COLUMNS)
            rows = self._db.execute(f"SELECT {columns} FROM present ORDER BY id").fetchall()  # noqa: S608 -- constants
            (until,) = self._db.execute("SELECT max(until) FROM watches").fetchone()
            newest = self._db.execute(
                "SELECT max(ifnull((SELECT max(id) FROM past), 0), "
                "ifnull((SELECT max(id) FROM present), 0)), ifnull((SELECT max(id) FROM watches), 0)"
            ).fetchone()
        return Stored(
            tuple(codec.read_row(row) for row in rows),
            codec.optional(until),
            int(newest[0]) + 1,
            int(newest[1]) + 1,
        )

    def write(self, pending: Pending) -> None:
        """Write all of it or nothing. Holdings are on the disk when this returns; how long it was looked is
        with the kernel, for which this process may die but the machine may not.
        """
        with _explained():
            self._db.execute(f"PRAGMA synchronous = {'FULL' if pending.changes else 'NORMAL'}")
            with self._transaction():
                self._db.executemany(
                    statements.WRITE_PRESENT, map(codec.present_values, pending.rows.values())
                )
                self._db.executemany(statements.DELETE_PRESENT, ((number,) for number in pending.ended))
                self._db.executemany(statements.WRITE_PAST, map(codec.past_values, pending.ended.values()))
                self._db.executemany(
                    statements.WRITE_WATCH,
                    ((w.id, w.since, w.until, w.gap) for w in pending.watches.values()),
                )

        self._spans.update(map(codec.span, pending.ended.values()))

    def find(self, question: Question) -> tuple[list[Row], Cursor | None]:
        """The rows that are asked for, and where to go on if there are more. Raises TooLong."""
        statement, parameters = statements.find(question, sorted(self._spans))
        with _explained(), self._limited():
            numbers = [number for number, _ in self._db.execute(statement, parameters)]
            more, numbers = len(numbers) > question.limit, numbers[: question.limit]
            rows = {row.id: row for row in self._fetch(numbers)}
        if rows.keys() != set(numbers):
            raise Damaged("an index names rows that are not there")
        found = [rows[number] for number in numbers]
        return found, Cursor(found[-1].low, found[-1].id) if more else None

    def _fetch(self, numbers: Sequence[int]) -> Iterator[Row]:
        for table, columns in statements.TABLES.items():
            statement = statements.fetch(table, columns, len(numbers))
            yield from map(codec.read_row, self._db.execute(statement, numbers))

    def resources(self) -> list[str]:
        """Every resource that any row is of."""
        with _explained(), self._limited():
            return [name for (name,) in self._db.execute(statements.RESOURCES)]

    @contextmanager
    def _limited(self) -> Generator[None]:
        end = time.monotonic() + QUERY_LIMIT
        self._db.set_progress_handler(lambda: time.monotonic() > end, _CHECK_EVERY)
        try:
            yield
        finally:
            self._db.set_progress_handler(None, _CHECK_EVERY)

    def watches(self, since: float | None, until: float | None, limit: int = 1000) -> list[Watch]:
        """The times that were looked at, from the one before `since` to the one after `until`, in order, the
        latest `limit` of them.
        """
        low, high = (-math.inf if since is None else since), (math.inf if until is None else until)
        with _explained():
            found = self._db.execute(
                "SELECT id, since, until, gap FROM watches "
                "WHERE since <= ifnull((SELECT min(since) FROM watches WHERE since > ?), 1e999) "
                "AND until >= ifnull((SELECT max(until) FROM watches WHERE until < ?), -1e999) "
                "ORDER BY since DESC, id DESC LIMIT ?",
                (high, low, limit),
            ).fetchall()
        return [codec.read_watch(values) for values in reversed(found)]

    def latest(self) -> float | None:
        """Until when it was looked, as far as it is written."""
        with _explained():
            (until,) = self._db.execute("SELECT max(until) FROM watches").fetchone()
        return codec.optional(until)

    def earliest(self) -> float | None:
        """Since when it was ever looked."""
        with _explained():
            (since,) = self._db.execute("SELECT min(since) FROM watches").fetchone()
        return codec.optional(since)

    def count(self) -> int:
        """Rows, held and past."""
        with _explained():
            return self._number("SELECT (SELECT count(*) FROM past) + (SELECT count(*) FROM present)")

    def size(self) -> int:
        """Bytes in use, without those that are free to be used again."""
        with _explained():
            pages = self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")
            return pages * self._number("PRAGMA page_size")

    def expire(self, before: float) -> Cut | None:
        """Delete some of what ended before, and all memory of having looked then. None if there is none."""
        with _explained():
            old = self._number(
                "SELECT count(*) FROM (SELECT 1 FROM past WHERE end_not_after < ? LIMIT 1)", before
            )
            forgettable = "SELECT count(*) FROM (SELECT 1 FROM watches WHERE since < ? LIMIT 1)"
            if not old and not self._number(forgettable, before - _SLACK):
                return None
            with self._transaction():
                rows = self._db.execute(
                    "DELETE FROM past WHERE id IN "
                    "(SELECT id FROM past WHERE end_not_after < ? ORDER BY end_not_after LIMIT ?)",
                    (before, STEP),
                ).rowcount
                self._forget_watches(before)
        return Cut(rows, before)

    def shrink(self) -> Cut | None:
        """Delete some of the oldest, and all memory of having looked then. None if there is nothing."""
        with _explained(), self._transaction():
            (before,) = self._db.execute(
                "SELECT max(end_not_after) FROM "
                "(SELECT end_not_after FROM past ORDER BY end_not_after LIMIT ?)",
                (STEP,),
            ).fetchone()
            if before is None:
                # Nothing has ended: what takes the room are times that were looked at.
                (before,) = self._db.execute(
                    "SELECT max(until) FROM (SELECT until FROM watches WHERE id < "
                    "(SELECT max(id) FROM watches) ORDER BY until LIMIT ?)",
                    (STEP,),
                ).fetchone()
            if before is None:
                return None
            rows = self._db.execute(
                "DELETE FROM past WHERE id IN (SELECT id FROM past ORDER BY end_not_after LIMIT ?)", (STEP,)
            ).rowcount
            self._forget_watches(codec.real(before))
        return Cut(rows, codec.real(before))

    def _forget_watches(self, before: float) -> None:
        self._db.execute(
            "DELETE FROM watches WHERE until <= ? AND id < (SELECT max(id) FROM watches)", (before,)
        )
        self._db.execute(
            "UPDATE watches SET since = ?, until = max(until, ?), gap = NULL WHERE since < ?",
            (before, before, before),
        )

    def give_back(self) -> None:
        """Return some of what is free to the file system."""
        with _explained():
            # It gives a row of no columns for each page; of those, `execute` takes the first alone.
            self._db.executescript(f"PRAGMA incremental_vacuum({_PAGES_FREED})")
            if self.path is not None:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def past(self) -> Iterable[Row]:
        """Every row that ended."""
        with _explained():
            columns = ", ".join(statements.PAST_COLUMNS)
            return [codec.read_row(values) for values in self._db.execute(f"SELECT {columns} FROM past")]  # noqa: S608 -- constants
