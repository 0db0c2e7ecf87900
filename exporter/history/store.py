"""The SQLite database of history, and its limits. Used by one thread."""

import math
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

from msgspec.structs import replace

from exporter.history import schema, sql
from exporter.history.coverage import CoveredSpan
from exporter.history.devices import DeviceRow, DevicesAt, devices_at
from exporter.history.journal import PendingWrites, StoredHistory
from exporter.history.names import Names
from exporter.history.query import SPANS, Cursor, HistoryQuery, NameMatch
from exporter.history.record import HoldingRow
from exporter.history.rows import (
    TICKS,
    DamagedError,
    device_values,
    holder_values,
    holding_values,
    optional,
    present_values,
    read_device,
    read_former,
    read_holding,
    read_present,
    read_span,
    read_text,
    real,
    span,
)
from exporter.history.schema import ENDED
from exporter.history.texts import Texts
from exporter.mapping.model import DeviceKey
from exporter.mapping.names import has_part

QUERY_LIMIT: Final = 2.0
"""Seconds after which a query is interrupted."""

STEP: Final = 256
"""Rows that are deleted in one step: other work waits for one step at most."""

UPGRADE_STEP: Final = 512
"""Rows of an older version that are converted in one step: less than a tenth of a second."""

_BUSY_MS: Final = 500
_CACHE_KIB: Final = 512
_UPGRADE_CACHE_KIB: Final = 4096
_WAL_BYTES: Final = 1 << 20
PAGES_FREED: Final = 512
"""Free pages that are returned to the file system at a time."""
ENDED_DEVICES: Final = 65_536
"""Ended rows of devices that are kept, the newest: about 6 MiB. A plugin may list new ids each time."""

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

    `devices` are those that nobody held at a moment: None if it is not asked, or if there are more rows
    before them.
    """

    rows: list[HoldingRow]
    next: Cursor | None
    matches: tuple[NameMatch, ...] = ()
    devices: DevicesAt | None = None


def _has_part(raw: object, part: str) -> bool:
    # Damage is found where the name is read.
    return not isinstance(raw, str) or has_part(raw, part)


def _once(rows: Iterable[HoldingRow]) -> Iterable[HoldingRow]:
    """`rows` of an older version, each holding once: there a container had one for each of its claims and
    shares of a device. The earliest of them stays.
    """
    found: dict[object, HoldingRow] = {}
    for row in sorted(rows, key=lambda row: row.low):
        found.setdefault((row.key, row.facts.uid) if row.facts.claim else row.id, row)
    return found.values()


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
        self._db.text_factory = read_text
        self._texts = Texts(())
        self._devices_of: tuple[object, DevicesAt] | None = None
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
        if (tables or application) and application != schema.APPLICATION:
            raise StoreError("it is a database of another program, and is left alone")
        if version > schema.VERSION:
            raise StoreError(
                f"a newer devicelens wrote it (schema {version}, this one knows {schema.VERSION}); "
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
        if version != schema.VERSION:
            with self._transaction():
                former = db.execute(sql.FETCH_FORMER).fetchall() if tables else []
                for statement in schema.upgrade(version) if tables else schema.SCHEMA:
                    db.execute(statement)
                db.executemany(sql.WRITE_PRESENT, map(present_values, _once(map(read_former, former))))
                if tables:
                    self._upgrade_devices()
        db.execute("SELECT * FROM watches, present, holdings, holders, device_spans LIMIT 0")
        db.create_function("has_part", 2, _has_part, deterministic=True)
        self._texts = Texts(db.execute("SELECT id, text FROM texts"))
        self._spans = {span for span in range(SPANS) if self._number(sql.has_span(span))}
        self._note_past()

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
            self._texts.undo()
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._texts.written()

    def _number(self, statement: str, *parameters: object, **named: object) -> int:
        (value,) = self._db.execute(statement, named or parameters).fetchone()
        return int(value or 0)

    def stored(self) -> StoredHistory:
        """What the last process left."""
        with _explained():
            rows = self._db.execute(sql.fetch("present", "ORDER BY id")).fetchall()
            (until,) = self._db.execute("SELECT max(until) FROM watches").fetchone()
            row = max(self._newest(table) for table in self._tables)
            span, device = self._newest("watches"), self._newest("device_spans")
            devices = self._devices("high IS NULL")
        return StoredHistory(
            tuple(map(read_present, rows)), optional(until), row + 1, span + 1, devices, device + 1
        )

    @property
    def _tables(self) -> Sequence[str]:
        """The tables with holdings."""
        return ("holdings", "present") if self._past is None else ("holdings", "past", "present")

    def _newest(self, table: str) -> int:
        return self._number(f"SELECT max(id) FROM {table}")  # noqa: S608 -- constants

    def _devices(self, condition: str) -> tuple[DeviceRow, ...]:
        columns = ", ".join(schema.DEVICE_COLUMNS)
        found = self._db.execute(f"SELECT {columns} FROM device_spans WHERE {condition} ORDER BY id")  # noqa: S608 -- constants
        return tuple(read_device(values, self._texts.text) for values in found)

    def write(self, pending: PendingWrites) -> None:
        """Write all or nothing. Rows are synced to the disk when this returns. Coverage alone is not synced:
        it survives the process, but not a crash of the machine.
        """
        with _explained():
            self._db.execute(f"PRAGMA synchronous = {'FULL' if pending.changes else 'NORMAL'}")
            with self._transaction():
                self._db.executemany(sql.WRITE_PRESENT, map(present_values, pending.rows.values()))
                self._db.executemany(sql.DELETE_PRESENT, ((number,) for number in pending.ended))
                self._write_ended(pending.ended.values())
                self._db.executemany(
                    sql.WRITE_SPAN,
                    ((w.id, w.since, w.until, w.gap) for w in pending.spans.values()),
                )
                self._write_devices(pending.devices.values())
        self._spans.update(map(span, pending.ended.values()))

    def _write_ended(self, rows: Iterable[HoldingRow]) -> None:
        values = [holding_values(row, self._holder(row), self._texts.add) for row in rows]
        self._db.executemany(sql.WRITE_HOLDING, values)
        self._write_texts()

    def _write_devices(self, rows: Iterable[DeviceRow]) -> None:
        self._db.executemany(sql.WRITE_DEVICE, [device_values(row, self._texts.add) for row in rows])
        self._write_texts()

    def _write_texts(self) -> None:
        self._db.executemany(sql.WRITE_TEXT, self._texts.fresh())

    def _holder(self, row: HoldingRow) -> int:
        """The id of the row's holder, which is written if it is new."""
        values = holder_values(row, self._texts.add)
        search = sql.HOLDER_BY_UID if row.facts.uid else sql.HOLDER_BY_POD
        known = self._db.execute(search, values).fetchone()
        return int(known[0]) if known else int(self._db.execute(sql.WRITE_HOLDER, values).lastrowid or 0)

    def _note_past(self) -> None:
        """Note what an older version left in `past`: None once nothing is left."""
        found = self._number("SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'past')")
        self._past = {int(span) for (span,) in self._db.execute(sql.PAST_SPANS)} if found else None

    def _upgrade_devices(self) -> None:
        """Convert the rows of devices of version 2. They are few: see ENDED_DEVICES."""
        if self._number("SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'devices')"):
            columns = ", ".join(schema.DEVICE_COLUMNS)
            found = self._db.execute(f"SELECT {columns} FROM devices ORDER BY id")  # noqa: S608 -- constants
            self._write_devices(read_device(values, self._texts.text) for values in found)
            self._db.execute("DROP TABLE devices")

    @property
    def upgrading(self) -> bool:
        """Whether an older version wrote some rows, which `upgrade` converts."""
        return self._past is not None

    def upgrade(self) -> None:
        """Convert some rows of an older version, in one transaction."""
        if self._past is None:
            return
        with _explained():
            # A step that a crash of the machine undoes is made again. Its pages are written once if they have
            # room in memory.
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(f"PRAGMA cache_size = -{_UPGRADE_CACHE_KIB}")
            with self._transaction():
                found = self._db.execute(sql.fetch("past", "ORDER BY id LIMIT ?"), (UPGRADE_STEP,)).fetchall()
                rows = [read_former(values) for values in found]
                if rows:
                    self._write_ended(rows)
                    self._db.execute("DELETE FROM past WHERE id <= ?", (rows[-1].id,))
                else:
                    self._db.execute("DROP TABLE past")
            self._spans.update(map(span, rows))
            if not rows:
                self._past = None
                self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")

    @property
    def _content(self) -> sql.Content:
        past = None if self._past is None else sorted(self._past)
        return sql.Content(sorted(self._spans), past, self._texts.code)

    def find(self, question: HistoryQuery, *, observed: bool = True) -> FoundRows:
        """The rows of `query`. `observed`: its moment was. Raises QueryTimeout."""
        with _explained(), self._limited():
            chosen, matches = Names(self._db, self._texts, self._content).matched(question)
            if any(match.number == 0 for match in matches):
                return FoundRows([], None, matches)
            by_holder = self._few_by_holder(question, chosen)
            statement, parameters = sql.find(question, self._content, chosen, by_holder=by_holder)
            numbers = [number for number, _ in self._db.execute(statement, parameters)]
            more, numbers = len(numbers) > question.limit, numbers[: question.limit]
            rows = {row.id: row for row in self._fetch(numbers)}
            devices = None if more else self._devices_at(question, chosen, observed=observed)
        if rows.keys() != set(numbers):
            raise DamagedError("an index names rows that are not there")
        found = [rows[number] for number in numbers]
        return FoundRows(found, Cursor(found[-1].low, found[-1].id) if more else None, matches, devices)

    def _few_by_holder(self, question: HistoryQuery, chosen: Mapping[str, sql.NameSet]) -> bool:
        """Whether the query's pods or its uid have few rows."""
        if not (question.uid or question.pod) or ("pod" in chosen and chosen["pod"].many):
            return False
        parameters: dict[str, object] = {}
        condition = sql.holder_condition(question, chosen, self._texts.code, parameters)
        return self._number(sql.holdings_of(condition), **parameters) <= sql.FEW_ROWS

    def _devices_at(
        self, question: HistoryQuery, chosen: Mapping[str, sql.NameSet], *, observed: bool
    ) -> DevicesAt | None:
        """The devices at the moment of the query. Those of the last query are kept for its next page."""
        at = question.devices_at
        if at is None:
            return None
        question = replace(question, after=None, limit=0)
        key = self._db.total_changes, question, observed
        if self._devices_of is None or self._devices_of[0] != key:
            decode = self._texts.text
            statement, parameters = sql.devices(question, at, self._texts.code, chosen)
            rows = [read_device(values, decode) for values in self._db.execute(statement, parameters)]
            held: set[DeviceKey] = set()
            if rows:
                statement, parameters = sql.held(question, self._content, chosen)
                found = self._db.execute(statement, parameters)
                held = {DeviceKey(decode(resource), decode(device)) for resource, device in found}
            self._devices_of = key, devices_at(at, rows, held, observed=observed)
        return self._devices_of[1]

    def _fetch(self, numbers: Sequence[int]) -> Iterator[HoldingRow]:
        for table in self._tables:
            yield from self._read(table, self._db.execute(sql.fetch_some(table, len(numbers)), numbers))

    def _read(self, table: str, rows: Iterable[Sequence[object]]) -> Iterable[HoldingRow]:
        if table == "holdings":
            return (read_holding(values, self._texts.text) for values in rows)
        return map(read_present if table == "present" else read_former, rows)

    def resources(self) -> list[str]:
        """The resources of all rows, the first thousand."""
        with _explained(), self._limited():
            return Names(self._db, self._texts, self._content).resources()[:1000]

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
        return [read_span(values) for values in reversed(found)]

    def latest(self) -> float | None:
        """The end of the written coverage."""
        with _explained():
            (until,) = self._db.execute("SELECT max(until) FROM watches").fetchone()
        return optional(until)

    def earliest(self) -> float | None:
        """The beginning of the coverage."""
        with _explained():
            (since,) = self._db.execute("SELECT min(since) FROM watches").fetchone()
        return optional(since)

    def count(self) -> int:
        """The number of rows of holdings."""
        with _explained():
            return sum(self._number(f"SELECT count(*) FROM {table}") for table in self._tables)  # noqa: S608 -- constants

    def size(self) -> int:
        """Bytes in use, without free pages."""
        with _explained():
            pages = self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")
            return pages * self._number("PRAGMA page_size")

    def expire(self, before: float) -> Pruned | None:
        """Delete some rows that ended before, and the coverage before. None if there is nothing to delete."""
        with _explained():
            ended = f"SELECT EXISTS (SELECT 1 FROM holdings WHERE {ENDED} < ?)"  # noqa: S608 -- constants
            old = self._number(ended, before * TICKS)
            if not old:
                covered = "SELECT EXISTS (SELECT 1 FROM watches WHERE since < ?)"
                devices = "SELECT EXISTS (SELECT 1 FROM device_spans WHERE high < ?)"
                if not self._number(covered, before - _SLACK) and not self._number(devices, before):
                    return None
            return self._delete("<", before)

    def shrink(self) -> Pruned | None:
        """Delete some of the oldest rows and their coverage. None if there is nothing to delete."""
        ended = (
            f"SELECT * FROM (SELECT ({ENDED}) / {TICKS}.0 AS ended FROM holdings ORDER BY {ENDED} LIMIT ?1)",  # noqa: S608 -- constants
            "SELECT * FROM (SELECT high FROM device_spans WHERE high IS NOT NULL ORDER BY 1 LIMIT ?1)",
        )
        oldest = f"{' UNION ALL '.join(ended)} ORDER BY ended LIMIT ?1"
        # Nothing has ended: the space is taken by coverage.
        covered = "SELECT until FROM watches WHERE id < (SELECT max(id) FROM watches) ORDER BY until LIMIT ?1"
        with _explained():
            (before,) = self._db.execute(
                f"SELECT ifnull((SELECT max(ended) FROM ({oldest})), (SELECT max(until) FROM ({covered})))",  # noqa: S608 -- constants
                (STEP,),
            ).fetchone()
            return None if before is None else self._delete("<=", real(before))

    def _delete(self, sign: str, before: float) -> Pruned:
        """Delete the oldest rows that ended before a time (`sign` < or <=), at most STEP, and the coverage
        before.
        """
        oldest = f"SELECT id, holder FROM holdings WHERE {ENDED} {sign} ? ORDER BY {ENDED} LIMIT ?"  # noqa: S608 -- constants
        with self._transaction():
            rows = self._db.execute(oldest, (before * TICKS, STEP)).fetchall()
            self._db.executemany("DELETE FROM holdings WHERE id = ?", ((number,) for number, _ in rows))
            self._db.executemany(
                "DELETE FROM holders WHERE id = ? "
                "AND NOT EXISTS (SELECT 1 FROM holdings WHERE holder = holders.id)",
                ((holder,) for holder in {holder for _, holder in rows}),
            )
            self._delete_spans(before)
            old = "SELECT id FROM device_spans WHERE high <= ? ORDER BY high LIMIT ?"
            self._db.execute(f"DELETE FROM device_spans WHERE id IN ({old})", (before, STEP))  # noqa: S608 -- constants
        return Pruned(len(rows), before)

    def _delete_spans(self, before: float) -> None:
        self._db.execute(
            "DELETE FROM watches WHERE until <= ? AND id < (SELECT max(id) FROM watches)", (before,)
        )
        self._db.execute(
            "UPDATE watches SET since = ?, until = max(until, ?), gap = NULL WHERE since < ?",
            (before, before, before),
        )

    def free(self) -> int:
        """Free pages."""
        with _explained():
            return self._number("PRAGMA freelist_count")

    def give_back(self) -> None:
        """Return free pages to the file system."""
        with _explained():
            # It returns a row without columns for each page, of which `execute` would step through the first
            # only.
            self._db.executescript(f"PRAGMA incremental_vacuum({PAGES_FREED})")
            if self.path is not None:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def trim_devices(self) -> float | None:
        """Delete some of the oldest ended rows of devices beyond ENDED_DEVICES. Returns the time before which
        no devices are recorded now; None if nothing was deleted.
        """
        with _explained():
            ended = self._number("SELECT count(*) FROM device_spans WHERE high IS NOT NULL")
            if ended <= ENDED_DEVICES:
                return None
            number = min(STEPS * STEP, ended - ENDED_DEVICES)
            rows = "FROM device_spans WHERE high IS NOT NULL ORDER BY high, id LIMIT ?"
            with self._transaction():
                oldest = self._db.execute(f"SELECT high {rows}", (number,)).fetchall()
                before = real(max(oldest)[0])
                self._db.execute(f"DELETE FROM device_spans WHERE id IN (SELECT id {rows})", (number,))  # noqa: S608 -- constants
                self._db.execute(
                    "UPDATE device_spans SET low = ?1, since = ?1 WHERE resource = '' AND since < ?1",
                    (before,),
                )
        return real(before)

    def past_devices(self) -> tuple[DeviceRow, ...]:
        """Every ended row of devices."""
        with _explained():
            return self._devices("high IS NOT NULL")

    def past(self) -> list[HoldingRow]:
        """Every past row."""
        with _explained():
            return [
                row
                for table in self._tables
                if table != "present"
                for row in self._read(table, self._db.execute(sql.fetch(table)))
            ]


MEMORY_BYTES: Final = 8 << 20
"""Limit of a history in memory: about thirty thousand holdings."""

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
    if cut is not None or store.free() > PAGES_FREED:
        store.give_back()
