"""Files of older versions: they are upgraded in small steps, and answer as before meanwhile."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exporter.history.coverage import CoveredSpan, GapReason
from exporter.history.devices import DeviceRow, RecordedDevice
from exporter.history.query import HistoryQuery
from exporter.history.record import Bound, Certainty, HoldingFacts, HoldingKey, HoldingRow
from exporter.history.rows import present_values, span
from exporter.history.schema import DEVICE_COLUMNS, PAST_COLUMNS, PRESENT_COLUMNS, VERSION
from exporter.history.store import PAGES_FREED, Store, StoreError
from exporter.mapping.model import DeviceKey
from harness.lives import Life, key

_TYPES = {"id": "INTEGER PRIMARY KEY", "assumed": "INTEGER NOT NULL", "span": "INTEGER NOT NULL"}
_TIMES = {"start_not_before", "start_not_after", "end_not_before", "end_not_after"}


def _columns(names: tuple[str, ...]) -> str:
    def kind(name: str) -> str:
        if name in _TIMES or name == "end_certainty":
            return "TEXT" if name == "end_certainty" else "REAL"
        return _TYPES.get(name, "REAL NOT NULL" if name == "low" else "TEXT NOT NULL")

    return ", ".join(f"{name} {kind(name)}" for name in names)


VERSION_2 = f"""\
PRAGMA auto_vacuum = INCREMENTAL;
CREATE TABLE past ({_columns(PAST_COLUMNS)});
CREATE TABLE present ({_columns(PRESENT_COLUMNS)});
CREATE TABLE watches (id INTEGER PRIMARY KEY, since REAL NOT NULL, until REAL NOT NULL, gap TEXT);
CREATE INDEX watches_since ON watches (since);
CREATE INDEX watches_until ON watches (until);
CREATE INDEX past_time ON past (span, low);
CREATE INDEX past_resource ON past (resource, span, low);
CREATE INDEX past_driver ON past (driver, span, low) WHERE driver > '';
CREATE INDEX past_device ON past (device, span, low);
CREATE INDEX past_parent ON past (parent, span, low) WHERE parent > '';
CREATE INDEX past_namespace ON past (namespace, span, low);
CREATE INDEX past_pod ON past (pod, span, low);
CREATE INDEX past_uid ON past (uid, span, low) WHERE uid > '';
CREATE INDEX past_end ON past (end_not_after);
CREATE TABLE devices (id INTEGER PRIMARY KEY, resource TEXT NOT NULL, device TEXT NOT NULL,
parent TEXT NOT NULL, healthy INTEGER NOT NULL, low REAL NOT NULL, since REAL NOT NULL,
until REAL, high REAL);
CREATE INDEX devices_high ON devices (high);
PRAGMA application_id = 1685482611;
PRAGMA user_version = 2;
"""

FIRST = 1_799_000_000.0
STEP = 256
NUMBER = 2 * STEP + 44
SPANS = (CoveredSpan(1, FIRST, FIRST + 500.0), CoveredSpan(2, FIRST + 600.0, FIRST + 2e4, GapReason.DOWN))
DEVICES = (
    DeviceRow(1, DeviceKey("", ""), RecordedDevice("", healthy=True), FIRST, FIRST),
    DeviceRow(2, DeviceKey("a/b", "free"), RecordedDevice("whole", healthy=True), FIRST, FIRST),
    DeviceRow(
        3, DeviceKey("a/b", "x"), RecordedDevice("", healthy=False), FIRST, FIRST, FIRST + 9, FIRST + 10
    ),
)


def _old_rows() -> Iterator[HoldingRow]:
    certain = tuple(Certainty)
    for number in range(1, NUMBER + 1):
        start = FIRST + number * 1.1
        claim = ("", "gpu.example.com", "pool", f"d{number % 7}", "share", "ns", f"pod-{number}-claim-x")
        names = claim if number % 5 == 0 else ("a/b", "", "", f"d{number % 7}", "", "", "")
        uid = f"{number:08x}-0000-4000-8000-{number:012x}" if number % 3 else ""
        yield HoldingRow(
            number,
            HoldingKey(*names, f"ns{number % 3}", f"pod-{number}", "main"),
            HoldingFacts(uid, "Job", f"pod-{number}"[:-1], "whole" if number % 4 == 0 else "", "node"),
            Bound(None if number % 9 == 0 else start, start + 0.4, certain[number % len(certain)]),
            Bound(start + 2.0 ** (number % 14), start + 2.0 ** (number % 14) + 0.3, certain[number % 3]),
            assumed=number % 2 == 0,
        )


ROWS = tuple(_old_rows())
HELD = HoldingRow(
    NUMBER + 1, key("gpu-0"), HoldingFacts("u"), Bound(FIRST + 1, FIRST + 2, Certainty.BETWEEN_POLLS)
)


def write_version_2(path: Path) -> None:
    """A file as version 2 left it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.executescript(VERSION_2)
        old.execute("BEGIN")
        past = [(*present_values(row), span(row)) for row in ROWS]
        devices = [
            (d.id, *d.key, d.facts.parent, int(d.facts.healthy), d.low, d.since, d.until, d.high)
            for d in DEVICES
        ]
        spans = [(one.id, one.since, one.until, one.gap) for one in SPANS]
        for table, rows in (
            *(("past", past), ("present", [present_values(HELD)])),
            *(("devices", devices), ("watches", spans)),
        ):
            old.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        old.execute("COMMIT")
    assert len(devices[0]) == len(DEVICE_COLUMNS)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("exporter.history.store.UPGRADE_STEP", STEP)
    write_version_2(tmp_path / "history.db")
    return tmp_path / "history.db"


_AT = FIRST + 300.0
_QUESTIONS = (
    HistoryQuery(limit=10_000),
    HistoryQuery(since=_AT, until=_AT),
    HistoryQuery(since=_AT, until=_AT + 60, device="d3"),
    HistoryQuery(device="whole"),
    HistoryQuery(resource="a/b", limit=40),
    HistoryQuery(driver="gpu.example.com", namespace="ns1"),
    HistoryQuery(pod="pod-77"),
    HistoryQuery(uid=ROWS[450].facts.uid),
    HistoryQuery(parts=True, device="D3", resource="b"),
    HistoryQuery(parts=True, pod="pod-1"),
)


def _answers(store: Store) -> list[object]:
    return [store.find(question)[:3] for question in _QUESTIONS]


def test_every_answer_stays_the_same_through_the_upgrade(path: Path) -> None:
    expected = sorted((HELD, *ROWS), key=lambda row: (row.low, row.id), reverse=True)
    with Store(path) as store:
        answers = _answers(store)
        assert store.find(_QUESTIONS[0]).rows == expected
        assert (store.stored().rows, store.stored().next_row) == ((HELD,), NUMBER + 2)
        assert (*store.stored().devices, *store.past_devices()) == DEVICES
        steps = 0
        while store.upgrading:
            store.upgrade()
            steps += 1
            assert _answers(store) == answers
            assert store.count() == NUMBER + 1
        assert steps == 4
        assert store.spans(None, None) == list(SPANS)
        assert store.resources() == ["a/b", "example.com/gpu"]
    with Store(path) as store:
        assert not store.upgrading
        assert _answers(store) == answers
        assert (*store.stored().devices, *store.past_devices()) == DEVICES
        assert store.stored().next_row == NUMBER + 2
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_upgrade_goes_on_after_a_kill_at_each_step(path: Path, tmp_path: Path) -> None:
    with Store(path) as store:
        answers = _answers(store)
    for number in range(5):
        # What a killed process leaves: the file and its log, without a last checkpoint.
        copy = tmp_path / f"{number}.db"
        with Store(path) as store:
            if store.upgrading:
                store.upgrade()
            for end in ("", "-wal"):
                Path(f"{copy}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
        with Store(copy) as store:
            assert _answers(store) == answers
    with Store(path) as store:
        assert not store.upgrading


def test_step_that_fails_is_undone_and_made_again(path: Path) -> None:
    with Store(path) as store:
        answers = _answers(store)
        database = store._db  # pyright: ignore[reportPrivateUsage]
        full = "BEFORE DELETE ON past BEGIN SELECT raise(ABORT, 'as if full'); END"
        database.execute(f"CREATE TEMP TRIGGER full {full}")
        with pytest.raises(StoreError, match="as if full"):
            store.upgrade()
        assert _answers(store) == answers
        database.execute("DROP TRIGGER full")
        while store.upgrading:
            store.upgrade()
        assert _answers(store) == answers


def test_archive_records_and_answers_while_it_upgrades(live: Callable[..., Life], path: Path) -> None:
    life = live(path)
    life.look(key("gpu-0"))
    life.look(key("gpu-1"))
    found = life.ask(limit=10_000)
    assert len(found.rows) == NUMBER + 2
    steps = 0
    while life.archive.maintain():
        steps += 1
        assert len(life.ask(limit=10_000).rows) == life.archive.condition.rows == NUMBER + 2
    assert steps >= 4
    store = life.archive._store  # pyright: ignore[reportPrivateUsage]
    assert store is not None
    assert not store.upgrading
    assert store.free() <= PAGES_FREED
    assert life.ask(limit=10_000).rows == found.rows
    assert life.ask(limit=10_000).unseen == found.unseen
    life.archive.close()
    assert live(path, wall=life.wall, steady=life.steady).ask(limit=10_000).rows == found.rows
