"""The SQLite database of history, and its limits. Used by one thread."""

import math
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, Self

from exporter.history import sql
from exporter.history.coverage import CoveredSpan
from exporter.history.devices import DeviceRow
from exporter.history.journal import PendingWrites, StoredHistory
from exporter.history.query import MATCHED, Cursor, HistoryQuery, NameMatch
from exporter.history.record import HoldingRow
from exporter.history.sql import DamagedError
from exporter.mapping.model import DeviceKey
from exporter.mapping.names import has_part, most_similar, resources_named, same

QUERY_LIMIT: Final = 2.0
"""Seconds after which a query is interrupted."""

STEP: Final = 256
"""Rows that are deleted in one step: other work waits for one step at most."""

_BUSY_MS: Final = 500
_CACHE_KIB: Final = 512
_WAL_BYTES: Final = 1 << 20
_PAGES_FREED: Final = 512
ENDED_DEVICES: Final = 65_536
"""Ended rows of devices that are kept, the newest: about 10 MiB. A plugin may list new ids each time."""

_SLACK: Final = 3600.0
"""Seconds of coverage that are deleted at a time if no row is."""
_CHECK_EVERY: Final = 20_000
"""Instructions of SQLite's virtual machine between two checks of the time: some milliseconds."""


class StoreError(Exception):
    """The database cannot be read or written at present; the message says why."""


class QueryTimeout(Exception):  # noqa: N818 -- as above
    """The query was interrupted."""


class Pruned(NamedTuple):
    """Deleted: the number of rows, and the time before which history is empty now."""

    rows: int
    before: float


class FoundRows(NamedTuple):
    """Rows, the cursor of the next page if there is one, and how names of the query matched.

    For a moment also the rows of devices that may be of it (None: not asked, or there are more rows before
    them), and the devices that somebody held, perhaps.
    """

    rows: list[HoldingRow]
    next: Cursor | None
    matches: tuple[NameMatch, ...] = ()
    devices: Sequence[DeviceRow] | None = None
    held: frozenset[DeviceKey] = frozenset()


def _has_part(raw: object, part: str) -> bool:
    # Damage is found where the name is read.
    return not isinstance(raw, str) or has_part(raw, part)


_COMPARED: Final = 4096
"""Names that an unknown name is compared with."""


def _partly(field: str, given: str, found: Sequence[str], known: Iterable[str]) -> NameMatch:
    near = () if found else most_similar(given, ((name, (name,)) for name in known))
    number = len(found) if len(found) <= sql.FEW else None
    names = tuple(sorted(found)[:MATCHED])
    return NameMatch(field, given, whole=False, number=number, names=names, near=tuple(n for (n,) in near))


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
    """Translate SQLite's errors."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _DAMAGE:
            raise DamagedError(str(error)) from error
        if code == sqlite3.SQLITE_INTERRUPT:
            raise QueryTimeout(f"it took longer than {QUERY_LIMIT:g} s") from error
        words = _WORDS.get(code)
        raise StoreError(f"{words} ({error})" if words else f"SQLite: {error}") from error


class Store:
    """An open database, of a file or in memory (`path` None).

    Every method raises StoreError and DamagedError.
    """

    def __init__(self, path: Path | None) -> None:
        """Open it, and create the tables of an empty one."""
        self.path = path
        with _explained():
            self._db = sqlite3.connect(
                ":memory:" if path is None else str(path), isolation_level=None, timeout=_BUSY_MS / 1000
            )
        self._db.text_factory = sql.read_text
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
        if (tables or application) and application != sql.APPLICATION:
            raise StoreError("it is a database of another program, and is left alone")
        if version > sql.VERSION:
            raise StoreError(
                f"a newer devicelens wrote it (schema {version}, this one knows {sql.VERSION}); "
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
                for statement in sql.SCHEMA:
                    db.execute(statement)
        elif version < sql.VERSION:
            with self._transaction():
                for statement in sql.UPGRADE:
                    db.execute(statement)
        db.execute("SELECT * FROM watches, past, present, devices LIMIT 0")
        db.create_function("has_part", 2, _has_part, deterministic=True)
        self._spans = {int(span) for (span,) in db.execute(sql.SPANS)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it in any condition."""
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

    def _number(self, statement: str, *parameters: object, **named: object) -> int:
        (value,) = self._db.execute(statement, named or parameters).fetchone()
        return int(value or 0)

    def stored(self) -> StoredHistory:
        """What the last process left."""
        with _explained():
            columns = ", ".join(sql.PRESENT_COLUMNS)
            rows = self._db.execute(f"SELECT {columns} FROM present ORDER BY id").fetchall()  # noqa: S608 -- constants
            (until,) = self._db.execute("SELECT max(until) FROM watches").fetchone()
            newest = self._db.execute(
                "SELECT max(ifnull((SELECT max(id) FROM past), 0), "
                "ifnull((SELECT max(id) FROM present), 0)), ifnull((SELECT max(id) FROM watches), 0), "
                "ifnull((SELECT max(id) FROM devices), 0)"
            ).fetchone()
            devices = self._devices("high IS NULL")
        return StoredHistory(
            tuple(sql.read_row(row) for row in rows),
            sql.optional(until),
            int(newest[0]) + 1,
            int(newest[1]) + 1,
            devices,
            int(newest[2]) + 1,
        )

    def _devices(self, condition: str) -> tuple[DeviceRow, ...]:
        columns = ", ".join(sql.DEVICE_COLUMNS)
        found = self._db.execute(f"SELECT {columns} FROM devices WHERE {condition} ORDER BY id")  # noqa: S608 -- constants
        return tuple(map(sql.read_device, found))

    def write(self, pending: PendingWrites) -> None:
        """Write all or nothing. Rows are synced to the disk when this returns. Coverage alone is not synced:
        it survives the process, but not a crash of the machine.
        """
        with _explained():
            self._db.execute(f"PRAGMA synchronous = {'FULL' if pending.changes else 'NORMAL'}")
            with self._transaction():
                self._db.executemany(sql.WRITE_PRESENT, map(sql.present_values, pending.rows.values()))
                self._db.executemany(sql.DELETE_PRESENT, ((number,) for number in pending.ended))
                self._db.executemany(sql.WRITE_PAST, map(sql.past_values, pending.ended.values()))
                self._db.executemany(
                    sql.WRITE_SPAN,
                    ((w.id, w.since, w.until, w.gap) for w in pending.spans.values()),
                )
                self._db.executemany(sql.WRITE_DEVICE, map(sql.device_values, pending.devices.values()))

        self._spans.update(map(sql.span, pending.ended.values()))

    def find(self, question: HistoryQuery) -> FoundRows:
        """The rows of `query`. Raises QueryTimeout."""
        with _explained(), self._limited():
            question, chosen, matches = self._matched(question)
            if any(match.number == 0 for match in matches):
                return FoundRows([], None, matches)
            statement, parameters = sql.find(question, sorted(self._spans), chosen)
            numbers = [number for number, _ in self._db.execute(statement, parameters)]
            more, numbers = len(numbers) > question.limit, numbers[: question.limit]
            rows = {row.id: row for row in self._fetch(numbers)}
            devices, held = (None, frozenset[DeviceKey]()) if more else self._devices_at(question, chosen)
        if rows.keys() != set(numbers):
            raise DamagedError("an index names rows that are not there")
        found = [rows[number] for number in numbers]
        return FoundRows(found, Cursor(found[-1].low, found[-1].id) if more else None, matches, devices, held)

    def _devices_at(
        self, question: HistoryQuery, chosen: sql.Chosen
    ) -> tuple[tuple[DeviceRow, ...] | None, frozenset[DeviceKey]]:
        if question.devices_at is None:
            return None, frozenset()
        statement, parameters = sql.devices(question, question.devices_at, chosen)
        rows = tuple(map(sql.read_device, self._db.execute(statement, parameters)))
        if not rows:
            return rows, frozenset()
        statement, parameters = sql.held(question, sorted(self._spans), chosen)
        return rows, frozenset(DeviceKey(*names) for names in self._db.execute(statement, parameters))

    def _matched(self, question: HistoryQuery) -> tuple[HistoryQuery, sql.Chosen, tuple[NameMatch, ...]]:
        """The query, the names that replace those of its fields, and how each matched."""
        if not question.parts:
            return question, sql.NOTHING_CHOSEN, ()
        chosen: dict[str, Sequence[str] | None] = {}
        matches: list[NameMatch] = []
        if question.resource:
            question, found = self._match_resource(question, chosen)
            matches.append(found)
        fields = [field for field in sql.PARTS if getattr(question, field)]
        matches.extend(self._match_part(field, getattr(question, field), chosen) for field in fields)
        return question, chosen, tuple(matches)

    def _match_resource(
        self, question: HistoryQuery, chosen: dict[str, Sequence[str] | None]
    ) -> tuple[HistoryQuery, NameMatch]:
        given = question.resource
        known, drivers = self._names(sql.RESOURCES), self._names(sql.DRIVERS)
        found = resources_named(known, given)
        if found and same(found[0], given):
            return question, NameMatch("resource", given, whole=True)
        if not found and any(same(driver, given) for driver in drivers):
            by_driver = replace(question, resource="", driver=given)
            return by_driver, NameMatch("resource", given, whole=True)
        chosen["resource"] = found[: sql.FEW]
        return question, _partly("resource", given, found, (*known, *drivers))

    def _match_part(self, field: str, given: str, chosen: dict[str, Sequence[str] | None]) -> NameMatch:
        statement, parameters = sql.is_name(field, given)
        if self._number(statement, **parameters):
            return NameMatch(field, given, whole=True)
        found = self._names(*sql.names(field, given, sql.FEW + 1))
        chosen[field] = found if len(found) <= sql.FEW else None
        known = () if found else self._names(*sql.names(field, "", _COMPARED))
        return _partly(field, given, found, known)

    def _names(self, query: str, parameters: Mapping[str, object] | None = None) -> list[str]:
        found = [name for (name,) in self._db.execute(query, parameters or {})]
        if not all(isinstance(name, str) for name in found):
            raise DamagedError("a name is not text")
        return found

    def _fetch(self, numbers: Sequence[int]) -> Iterator[HoldingRow]:
        for table, columns in sql.TABLES.items():
            statement = sql.fetch(table, columns, len(numbers))
            yield from map(sql.read_row, self._db.execute(statement, numbers))

    def resources(self) -> list[str]:
        """The resources of all rows."""
        with _explained(), self._limited():
            return self._names(sql.RESOURCES)

    @contextmanager
    def _limited(self) -> Generator[None]:
        end = time.monotonic() + QUERY_LIMIT
        self._db.set_progress_handler(lambda: time.monotonic() > end, _CHECK_EVERY)
        try:
            yield
        finally:
            self._db.set_progress_handler(None, _CHECK_EVERY)

    def spans(self, since: float | None, until: float | None, limit: int = 1000) -> list[CoveredSpan]:
        """The covered spans from the one before `since` to the one after `until`, in order, the latest
        `limit` of them.
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
        return [sql.read_span(values) for values in reversed(found)]

    def latest(self) -> float | None:
        """The end of the written coverage."""
        with _explained():
            (until,) = self._db.execute("SELECT max(until) FROM watches").fetchone()
        return sql.optional(until)

    def earliest(self) -> float | None:
        """The beginning of the coverage."""
        with _explained():
            (since,) = self._db.execute("SELECT min(since) FROM watches").fetchone()
        return sql.optional(since)

    def count(self) -> int:
        """The number of rows, present and past."""
        with _explained():
            return self._number("SELECT (SELECT count(*) FROM past) + (SELECT count(*) FROM present)")

    def size(self) -> int:
        """Bytes in use, without free pages."""
        with _explained():
            pages = self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")
            return pages * self._number("PRAGMA page_size")

    def expire(self, before: float) -> Pruned | None:
        """Delete some rows that ended before, and the coverage before. None if there is nothing to delete."""
        with _explained():
            old = self._number("SELECT EXISTS (SELECT 1 FROM past WHERE end_not_after < ?)", before)
            if not old:
                covered = "SELECT EXISTS (SELECT 1 FROM watches WHERE since < ?)"
                devices = "SELECT EXISTS (SELECT 1 FROM devices WHERE high < ?)"
                if not self._number(covered, before - _SLACK) and not self._number(devices, before):
                    return None
            return self._delete("end_not_after < ?", before)

    def shrink(self) -> Pruned | None:
        """Delete some of the oldest rows and their coverage. None if there is nothing to delete."""
        ended = (
            "SELECT * FROM (SELECT end_not_after AS ended FROM past ORDER BY 1 LIMIT :step)",
            "SELECT * FROM (SELECT high FROM devices WHERE high IS NOT NULL ORDER BY 1 LIMIT :step)",
        )
        oldest = f"{' UNION ALL '.join(ended)} ORDER BY ended LIMIT :step"
        # Nothing has ended: the space is taken by coverage.
        covered = (
            "SELECT until FROM watches WHERE id < (SELECT max(id) FROM watches) ORDER BY until LIMIT :step"
        )
        with _explained():
            (before,) = self._db.execute(
                f"SELECT ifnull((SELECT max(ended) FROM ({oldest})), (SELECT max(until) FROM ({covered})))",  # noqa: S608 -- constants
                {"step": STEP},
            ).fetchone()
            return None if before is None else self._delete("end_not_after <= ?", sql.real(before))

    def _delete(self, condition: str, before: float) -> Pruned:
        """Delete the oldest rows that meet `condition`, at most STEP, and the coverage before."""
        chosen = f"SELECT id FROM past WHERE {condition} ORDER BY end_not_after LIMIT ?"  # noqa: S608 -- constants
        with self._transaction():
            rows = self._db.execute(f"DELETE FROM past WHERE id IN ({chosen})", (before, STEP)).rowcount  # noqa: S608 -- constants
            self._delete_spans(before)
            old = "SELECT id FROM devices WHERE high <= ? ORDER BY high LIMIT ?"
            self._db.execute(f"DELETE FROM devices WHERE id IN ({old})", (before, STEP))  # noqa: S608 -- constants
        return Pruned(rows, before)

    def _delete_spans(self, before: float) -> None:
        self._db.execute(
            "DELETE FROM watches WHERE until <= ? AND id < (SELECT max(id) FROM watches)", (before,)
        )
        self._db.execute(
            "UPDATE watches SET since = ?, until = max(until, ?), gap = NULL WHERE since < ?",
            (before, before, before),
        )

    def give_back(self) -> None:
        """Return free pages to the file system."""
        with _explained():
            # It returns a row without columns for each page, of which `execute` would step through the first
            # only.
            self._db.executescript(f"PRAGMA incremental_vacuum({_PAGES_FREED})")
            if self.path is not None:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def trim_devices(self) -> float | None:
        """Delete some of the oldest ended rows of devices beyond ENDED_DEVICES. Returns the time before which
        no devices are recorded now; None if nothing was deleted.
        """
        with _explained():
            ended = self._number("SELECT count(*) FROM devices WHERE high IS NOT NULL")
            if ended <= ENDED_DEVICES:
                return None
            number = min(STEPS * STEP, ended - ENDED_DEVICES)
            oldest = "SELECT id, high FROM devices WHERE high IS NOT NULL ORDER BY high, id LIMIT ?"
            with self._transaction():
                (before,) = self._db.execute(f"SELECT max(high) FROM ({oldest})", (number,)).fetchone()  # noqa: S608 -- constants
                self._db.execute(f"DELETE FROM devices WHERE id IN (SELECT id FROM ({oldest}))", (number,))  # noqa: S608 -- constants
                self._db.execute(
                    "UPDATE devices SET low = ?, since = ? WHERE resource = '' AND since < ?", (before,) * 3
                )
        return sql.real(before)

    def past_devices(self) -> tuple[DeviceRow, ...]:
        """Every ended row of devices."""
        with _explained():
            return self._devices("high IS NOT NULL")

    def past(self) -> Iterable[HoldingRow]:
        """Every past row."""
        with _explained():
            columns = ", ".join(sql.PAST_COLUMNS)
            return [sql.read_row(values) for values in self._db.execute(f"SELECT {columns} FROM past")]  # noqa: S608 -- constants


MEMORY_BYTES: Final = 8 << 20
"""Limit of a history in memory: about ten thousand holdings."""

STEPS: Final = 4
"""Steps that are made at a time."""

_BESIDE: Final = 2 << 20
"""Bytes of the limit that are reserved for the write-ahead log."""


def prune(store: Store, size: int, before: float | None) -> Iterator[Pruned]:
    """Delete some rows beyond `size` bytes, or that ended before unix time `before` (None: not by age).
    Yields each step.
    """
    limit = min(size, MEMORY_BYTES) if store.path is None else size - _BESIDE
    cut: Pruned | None = None
    for _ in range(STEPS):
        step: Pruned | None = None
        if store.size() > limit:
            step = store.shrink()
        elif before is not None:
            step = store.expire(before)
        if step is None:
            break
        cut = step
        yield step
    if cut is not None:
        store.give_back()
