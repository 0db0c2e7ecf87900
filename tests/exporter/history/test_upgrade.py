"""Files of older versions: they are upgraded in small steps, and answer as before meanwhile."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exporter.history.coverage import CoveredSpan, GapReason
from exporter.history.devices import DeviceRow, RecordedDevice
from exporter.history.journal import PendingWrites
from exporter.history.query import HistoryQuery
from exporter.history.record import (
    Bound,
    Certainty,
    HoldingFacts,
    HoldingKey,
    HoldingRow,
    RecordedHoldings,
)
from exporter.history.rows import DamagedError, present_values, span
from exporter.history.schema import DEVICE_COLUMNS, FORMER_COLUMNS, PAST_COLUMNS, VERSION
from exporter.history.store import PAGES_FREED, Store, StoreError
from exporter.mapping.dra import ClaimName
from exporter.mapping.holdings import Holding
from exporter.mapping.model import DeviceKey, Holder
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
CREATE TABLE present ({_columns(FORMER_COLUMNS)});
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
        names, claim = ("a/b", f"d{number % 7}"), ("", "", "")
        if number % 5 == 0:
            pool = "pool/" if number % 2 else ""
            names, claim = (
                ("gpu.example.com", f"{pool}c{number % 7}"),
                ("ns", f"pod-{number}-claim-x", "share"),
            )
        uid = f"{number:08x}-0000-4000-8000-{number:012x}" if number % 3 else ""
        yield HoldingRow(
            number,
            HoldingKey(*names, f"ns{number % 3}", f"pod-{number}", "main"),
            HoldingFacts(
                uid, "Job", f"pod-{number}"[:-1], "whole" if number % 4 == 0 else "", "node", *claim
            ),
            Bound(None if number % 9 == 0 else start, start + 0.4, certain[number % len(certain)]),
            Bound(start + 2.0 ** (number % 14), start + 2.0 ** (number % 14) + 0.3, certain[number % 3]),
            assumed=number % 2 == 0,
        )


ROWS = tuple(_old_rows())
HELD = HoldingRow(
    NUMBER + 1, key("gpu-0"), HoldingFacts("u"), Bound(FIRST + 1, FIRST + 2, Certainty.BETWEEN_POLLS)
)


def _former_values(row: HoldingRow) -> tuple[object, ...]:
    """The values of FORMER_COLUMNS: a claimed device has a driver and a pool."""
    number, *rest = present_values(row)
    key, facts = row.key, row.facts
    names = (key.resource, "", "", key.device)
    if facts.claim:
        pool, _, device = key.device.rpartition("/")
        names = ("", key.resource, pool or facts.node, device)
    return (
        number,
        *names,
        facts.share_id,
        facts.claim_namespace,
        facts.claim,
        *key[2:],
        *facts[:5],
        *rest[14:],
    )


def write_version_2(path: Path) -> None:
    """A file as version 2 left it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.executescript(VERSION_2)
        old.execute("BEGIN")
        past = [(*_former_values(row), span(row)) for row in ROWS]
        devices = [
            (d.id, *d.key, d.facts.parent, int(d.facts.healthy or 0), d.low, d.since, d.until, d.high)
            for d in DEVICES
        ]
        spans = [(one.id, one.since, one.until, one.gap) for one in SPANS]
        for table, rows in (
            *(("past", past), ("present", [_former_values(HELD)])),
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
    HistoryQuery(resource="gpu.example.com", limit=40),
    HistoryQuery(device="pool/c3"),
    HistoryQuery(device="c3"),
    HistoryQuery(parts=True, device="pool/c3"),
    HistoryQuery(claim="pod-75-claim-x"),
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
        assert store.resources() == ["a/b", "example.com/gpu", "gpu.example.com"]
        assert {len(store.find(question).rows) for question in _QUESTIONS} & {0} == set()
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


# --- version 3 -------------------------------------------------------------------------------------------

VERSION_3 = Path(__file__).parents[2] / "data" / "history-version-3.sql"
"""A file that version 3 wrote, as text: claimed devices have a driver and a pool."""
DRIVER = "gpu.example.com"


@pytest.fixture
def third(tmp_path: Path) -> Path:
    path = tmp_path / "third.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(VERSION_3.read_text())
    return path


def _ids(store: Store, **question: object) -> list[int]:
    return sorted(row.id for row in store.find(HistoryQuery(**question)).rows)  # type: ignore[arg-type]


def test_rows_of_version_3_are_claimed_devices_like_others(third: Path) -> None:
    with Store(third) as store:
        rows = {row.id: row for row in (*store.past(), *store.stored().rows)}
        assert {number: row.key[:2] for number, row in rows.items()} == {
            1: ("nvidia.com/gpu", "GPU-7c1f"),
            2: (DRIVER, "pool-a/gpu-0"),
            3: (DRIVER, "gpu-1"),
            4: (DRIVER, "pool-a/gpu-2"),
            5: (DRIVER, "pool-b/gpu-0"),
            6: ("nvidia.com/gpu", "GPU-9a2b"),
            7: (DRIVER, "pool-a/gpu-0"),
            8: (DRIVER, "gpu-1"),  # of two shares the first
        }
        assert {number: row.pool for number, row in rows.items() if row.pool} == {
            2: "pool-a",
            3: "worker-3",
            4: "pool-a",
            5: "pool-b",
        }
        assert rows[4].facts[4:] == ("worker-3", "ml", "shared", "share-1", "")
        assert rows[7].facts[4:] == ("worker-3", "ml", "train-7-gpu-k2m8q", "", "")
        assert [row.facts.healthy for row in store.stored().devices] == [True, True, False]


def test_old_and_new_rows_are_found_alike(third: Path) -> None:
    with Store(third) as store:
        new = HoldingFacts("", "", "", "", "worker-3", "ml", "shared", "share-1", "nvidia.com/gpu")
        held = HoldingRow(
            20,
            HoldingKey(DRIVER, "pool-a/gpu-0", "ml", "new", "main"),
            new,
            Bound(1.8e9, 1.8e9, Certainty.AT_ONCE),
        )
        gone = [
            HoldingRow(
                *(number, held.key._replace(device=device), new, held.start),
                Bound(1.8e9, 1.8e9 + number, Certainty.AT_ONCE),
            )
            for number, device in ((21, "pool-a/gpu-0"), (22, "gpu-1"))
        ]
        store.write(PendingWrites({20: held}, {row.id: row for row in gone}))
        assert _ids(store, resource=DRIVER) == [2, 3, 4, 5, 7, 8, 20, 21, 22]
        assert _ids(store, resource=DRIVER, parts=True) == [2, 3, 4, 5, 7, 8, 20, 21, 22]
        assert _ids(store, driver=DRIVER) == [2, 3, 4, 5, 7, 8, 20, 21, 22]
        assert _ids(store, resource="nvidia.com/gpu") == [1, 6, 20, 21, 22]
        for parts in (False, True):
            assert _ids(store, device="pool-a/gpu-0", parts=parts) == [2, 7, 20, 21]
            assert _ids(store, device="pool-b/gpu-0", parts=parts) == [5]
            assert _ids(store, device="gpu-1", parts=parts) == [3, 8, 22]
            assert _ids(store, device="gpu-2", parts=parts) == ([4] if parts else [])
        assert _ids(store, claim="train-1-gpu-x7k2p") == [2]
        assert _ids(store, claim="shared") == [4, 5, 20, 21, 22]
        assert _ids(store, claim="shared", device="pool-a/gpu-2") == [4]
        assert store.resources() == [DRIVER, "nvidia.com/gpu"]


def test_open_holdings_of_version_3_go_on(live: Callable[..., Life], third: Path) -> None:
    life = live(third, wall=FIRST + 6003.0)
    facts = {
        6: HoldingFacts("0b7e4c1a-5d2f-4a83-9c6e-2f1d8e7a9006"),
        7: HoldingFacts(
            *("0b7e4c1a-5d2f-4a83-9c6e-2f1d8e7a9007", "", "", "", "worker-3", "ml", "train-7-gpu-k2m8q"),
            requested_as="nvidia.com/gpu",
        ),
        8: HoldingFacts("", "", "", "", "worker-3", "ml", "serve", "share-1"),
    }
    keys = {
        6: HoldingKey("nvidia.com/gpu", "GPU-9a2b", "ml", "train-6", "main"),
        7: HoldingKey(DRIVER, "pool-a/gpu-0", "ml", "train-7", "main"),
        8: HoldingKey(DRIVER, "gpu-1", "ml", "serve-8", "main"),
    }
    recorded = RecordedHoldings(life.archive.open_rows())
    for number, name in keys.items():
        holder = Holder(*name[2:], facts[number].uid)
        claims = [ClaimName("ml", facts[number].claim)] if facts[number].claim else []
        found = recorded.take(Holding(DeviceKey(*name[:2]), holder), claims)
        assert found is not None
        assert (found.at, found.exact) == (FIRST + number * 10, True)
    for _ in range(4):
        life.see({name: (facts[number],) for number, name in keys.items()})
    rows = {row.id: row for row in life.ask(resource="nvidia.com/gpu", since=life.wall).rows}
    assert rows.keys() == {6, 7}
    assert rows[7].facts.requested_as == "nvidia.com/gpu"
    assert [row.id for row in life.ask(since=life.wall).rows] == [8, 7, 6]
    assert all(row.end is None for row in life.ask(since=life.wall).rows)
    life.look()
    life.archive.close()
    with Store(third) as store:
        ended = {row.id: row for row in store.past()}
        assert (ended[7].key, ended[7].pool, ended[7].facts.requested_as) == (keys[7], "", "nvidia.com/gpu")


def test_upgrade_that_fails_leaves_version_3(third: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DamagedError("as if killed")

    before = _dump(third)
    with monkeypatch.context() as patch:
        patch.setattr("exporter.history.store.present_values", fail)
        with pytest.raises(DamagedError, match="as if killed"):
            Store(third)
    assert _dump(third) == before
    Store(third).close()
    with closing(sqlite3.connect(third)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    with Store(None) as fresh:
        created = fresh._db.execute("SELECT name FROM sqlite_master")  # pyright: ignore[reportPrivateUsage]
        assert names == {name for (name,) in created}, (
            "an upgraded file has the tables and indexes of a new one"
        )


def _dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [*database.iterdump(), str(database.execute("PRAGMA user_version").fetchone())]
