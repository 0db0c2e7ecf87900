"""exporter.history.archive: history goes on through restarts, full disks, damage and neighbours."""

import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from exporter.history.archive import STEADY_FOR, HistoryLimits
from exporter.history.coverage import GapReason, PollTimes
from exporter.history.file import DAMAGED_KEPT, foreign_problem
from exporter.history.store import Store
from harness.lives import Life, key

Start = Callable[..., Life]

A, B, C = key("gpu-0"), key("gpu-1"), key("gpu-2")


def _store(life: Life) -> Store:
    store = life.archive._store  # pyright: ignore[reportPrivateUsage]
    assert store is not None
    return store


def _written(life: Life) -> bool:
    return life.archive.condition.written


def _full(life: Life) -> Callable[[], None]:
    """Fill the disk; the result makes room, and lets the archive try again."""
    database = _store(life)._db  # pyright: ignore[reportPrivateUsage]
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")

    def room() -> None:
        database.execute("PRAGMA max_page_count = 1000000")
        life.pass_time(6.0)
        life.archive.maintain()

    return room


def _again(live: Start, life: Life) -> Life:
    """The next exporter."""
    life.archive.close()
    return live(wall=life.wall, steady=life.steady)


def test_file_and_directory_modes_allow_owner_and_group_only(live: Start, tmp_path: Path) -> None:
    path = tmp_path / "new" / "deeper" / "history.db"
    life = live(path)
    life.look(A)
    assert path.parent.stat().st_mode & 0o777 == 0o750
    files = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert set(files) == {"history.db", "history.db-wal", "history.db-shm", "history.db.lock"}
    assert set(files.values()) == {0o640}


def test_full_disk_blocks_nothing_and_loses_no_returned_row(
    live: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    life = live()
    life.look(A)
    life.look(B)
    shown = life.ask().rows
    room = _full(life)
    # Until its last page is full SQLite has room.
    number = 0
    while _written(life):
        number += 1
        life.look(*(key(f"x{number}-{n}", pod="p" * 200 + str(n)) for n in range(50)))
        assert number < 100
    life.look(C)
    life.look()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == ["history cannot be written"]
    assert "no space left" in life.ask().trouble
    # What is shown is as it was when it was written last, and says so.
    assert life.ask().rows[-1] == shown[-1]
    assert life.ask(device="gpu-2").rows == []
    assert life.ask(device="gpu-0").rows == [shown[-1]]
    assert [gap.why for gap in life.ask(since=life.wall, until=life.wall).unseen] == [GapReason.LOST]
    assert life.archive.condition.pending > 0
    room()
    assert life.devices(device="gpu-2") == [("gpu-2", True)]
    assert life.archive.condition.pending == life.archive.condition.dropped == 0
    assert life.ask(since=life.wall, until=life.wall).unseen == ()
    assert any("history cannot be written: over" in record.getMessage() for record in caplog.records)


def test_pending_rows_are_bounded_and_dropped_ones_leave_a_gap(live: Start) -> None:
    life = live(pending_limit=20)
    life.look(A)
    life.look(A)
    room = _full(life)
    number = 0
    while life.archive.condition.dropped < 100:
        number += 1
        life.look(*(key(f"x{number}-{n}") for n in range(30)))
    # What is held, what had been shown, and the limit.
    assert life.archive.condition.pending <= 30 + 31 + 20
    room()
    # The one that had been shown is closed, whatever else was forgotten.
    assert life.devices(device="gpu-0") == [("gpu-0", True)]
    found = life.ask()
    assert GapReason.LOST in {gap.why for gap in found.unseen}
    assert len(life.archive.open_rows()) == 30


def test_rows_wait_while_another_program_locks_the_file(live: Start, tmp_path: Path) -> None:
    life = live()
    life.look(A)
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        life.look(B)
        assert not _written(life)
        assert "another program keeps it locked" in life.ask().trouble
        assert life.devices() == [("gpu-0", False)]
        other.execute("ROLLBACK")
    life.pass_time(6.0)
    life.archive.maintain()
    assert _written(life)
    assert life.devices() == [("gpu-1", False), ("gpu-0", True)]


def test_rows_wait_after_an_unexpected_error(live: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise RuntimeError("nobody foresaw this")

    life = live(pending_limit=5)
    life.look(A)
    monkeypatch.setattr(Store, "write", write)
    for number in range(20):
        life.look(key(f"x{number}"))
    assert "RuntimeError: nobody foresaw this" in life.ask().trouble
    assert life.archive.condition.pending <= 5 + 1 + 1
    monkeypatch.undo()
    life.look(B)
    assert _written(life)
    assert life.devices(device="gpu-0") == [("gpu-0", True)]


def test_damaged_file_is_moved_aside_and_logged(
    live: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.db"
    Store(path).close()
    path.write_bytes(path.read_bytes()[:100] + os.urandom(20_000))
    life = live()
    life.look(A)
    (aside,) = tmp_path.glob("history.db.damaged-*")
    assert aside.name == "history.db.damaged-20270115T080000Z"
    assert aside.stat().st_size == 20_100
    assert life.devices() == [("gpu-0", False)]
    assert life.ask().kept_in == "file"
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage() == "history file is damaged: moved it aside and created a new one"


def _spoil(path: Path) -> None:
    """Overwrite what is behind the first page, where SQLite has not got it in memory."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))


@pytest.mark.parametrize("found_by", ["question", "writing"])
def test_damage_found_later_loses_past_rows_only(live: Start, tmp_path: Path, found_by: str) -> None:
    life = live()
    life.look()
    began = life.look(A, B).times.asked
    life.look(A)
    _spoil(tmp_path / "history.db")
    _store(life)._db.execute("PRAGMA shrink_memory")  # pyright: ignore[reportPrivateUsage]
    if found_by == "question":
        assert life.devices() == [("gpu-0", False)]
    life.look(A, C)
    found = life.ask()
    assert [row.key for row in found.rows] == [C, A]
    # Since when it is held is known as before; of the past, nothing is claimed.
    assert found.rows[1].start.not_after == began
    assert found.earliest is not None
    assert found.earliest > began
    assert life.ask(since=began, until=began).unseen
    assert len(list(tmp_path.glob("history.db.damaged-*"))) == 1
    assert {row.key for row in _again(live, life).archive.open_rows()} == {A, C}


def test_number_of_damaged_files_is_bounded(live: Start, tmp_path: Path) -> None:
    for number in range(DAMAGED_KEPT + 3):
        path = tmp_path / "history.db"
        path.unlink(missing_ok=True)
        Store(path).close()
        path.write_bytes(path.read_bytes()[:100] + bytes(5000))
        os.utime(path, (number, number))
        life = live()
        life.archive.close()
    assert len(list(tmp_path.glob("history.db.damaged-*"))) == DAMAGED_KEPT


def test_damaged_header_of_a_file_that_was_a_history_is_damage(live: Start, tmp_path: Path) -> None:
    live().archive.close()
    (tmp_path / "history.db").write_bytes(os.urandom(5000))
    life = live()
    life.look(A)
    assert life.ask().kept_in == "file"
    assert len(list(tmp_path.glob("history.db.damaged-*"))) == 1


@pytest.mark.parametrize(
    "content", [b"name,pod\n", b"\0" * 9000, os.urandom(9000), b"SQLite format 3\0" * 99]
)
def test_foreign_file_is_left_alone(live: Start, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(content)
    for _ in range(2):
        assert foreign_problem(path).startswith("it is ")
        life = live()
        life.look(A)
        assert life.ask().kept_in == "memory"
        life.archive.close()
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["history.db"]


def _file_above(path: Path) -> Callable[[], object]:
    path.parent.write_text("")
    return path.parent.unlink


def _directory(path: Path) -> Callable[[], object]:
    path.mkdir(parents=True)
    return path.rmdir


def _database_of_another_program(path: Path) -> Callable[[], object]:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (a)")
    return path.unlink


@pytest.mark.parametrize("spoil", [_file_above, _directory, _database_of_another_program])
def test_history_is_kept_in_memory_while_the_file_is_unusable(
    live: Start,
    tmp_path: Path,
    spoil: Callable[[Path], Callable[[], object]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "there" / "history.db"
    mend = spoil(path)
    life = live(path)
    life.look(A)
    life.look(B)
    for _ in range(3):
        life.pass_time(6.0)
        life.archive.maintain()
    found = life.ask()
    assert [row.key for row in found.rows] == [B, A]
    assert (found.kept_in, bool(found.trouble), _written(life)) == ("memory", True, False)
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == ["cannot use the history file: keeping history in memory"]
    mend()
    life.look(B, after=6.0)
    life.archive.maintain()
    assert life.devices() == [("gpu-1", False), ("gpu-0", True)]
    assert (life.ask().kept_in, _written(life)) == ("file", True)
    life.look()
    life.archive.close()
    with Store(path) as store:
        assert {row.key for row in store.past()} == {A, B}


def test_renamed_file_is_replaced_by_a_new_one(live: Start, tmp_path: Path) -> None:
    life = live()
    life.look(A, B)
    life.look(A)
    (tmp_path / "history.db").rename(tmp_path / "elsewhere")
    life.look(A, C)
    assert life.devices() == [("gpu-2", False), ("gpu-0", False)]
    assert {row.key for row in _again(live, life).archive.open_rows()} == {A, C}


def test_old_rows_are_deleted_only_while_the_clock_is_steady(live: Start) -> None:
    life = live(limits=HistoryLimits(3600.0, 64 << 20))
    life.look(A)
    life.look()
    # The node's clock was years behind, or is years ahead: who knows.
    life.wall += 10 * 365 * 86400
    life.look(B)
    life.archive.maintain()
    assert life.devices() == [("gpu-1", False), ("gpu-0", True)]
    for _ in range(int(STEADY_FOR // 5) + 1):
        life.look(B)
    life.archive.maintain()
    assert life.devices() == [("gpu-1", False)]
    found = life.ask()
    assert found.earliest == pytest.approx(life.wall - 3600.0, abs=3600.0)
    assert life.archive.condition.expired == 1
    assert found.earliest is not None
    assert life.ask(since=found.earliest - 1, until=found.earliest - 1).unseen[0].why is GapReason.BEFORE


def test_file_stays_within_its_size_limit(live: Start, tmp_path: Path) -> None:
    limits = HistoryLimits(30 * 86400.0, 8 << 20)
    life = live(limits=limits)
    path = tmp_path / "history.db"
    largest = 0
    for number in range(40):
        life.look(*(key(f"{'d' * 900}{number}-{n}", pod="p" * 250) for n in range(100)))
        while life.archive.maintain():
            pass
        files = [path, Path(f"{path}-wal")]
        largest = max(largest, sum(file.stat().st_size for file in files if file.exists()))
    assert largest <= limits.size
    assert life.archive.condition.expired > 1000
    assert life.archive.condition.rows == _store(life).count()
    # What is left is the newest, and what was deleted is not claimed.
    found = life.ask()
    assert found.earliest is not None
    ends = [row.high for row in _store(life).past()]
    assert found.earliest <= min(ends)
    assert len(life.archive.open_rows()) == 100


def test_silent_kubelet_is_a_gap_until_it_answers(live: Start) -> None:
    life = live()
    life.look(A)
    life.look(A)
    last = life.wall
    life.pass_time(5.0)
    assert life.ask(since=life.wall, until=life.wall).unseen == ()
    life.sight.fail()
    life.pass_time(60.0)
    (gap,) = life.ask(since=life.wall, until=life.wall).unseen
    assert (gap.since, gap.until, gap.why) == (last, None, GapReason.SILENT)
    (gap,) = life.ask(since=last - 1, until=None).unseen
    assert (gap.since, gap.until, gap.why) == (last, life.wall, GapReason.SILENT)
    life.look(A)
    gaps = life.ask().unseen
    assert [(gap.since, gap.until, gap.why) for gap in gaps] == [(last, life.wall, GapReason.SILENT)]


def test_unchanged_poll_extends_coverage(live: Start) -> None:
    life = live()
    life.look(A)
    life.pass_time(10.0)
    life.archive.take([], PollTimes(life.wall, life.wall, life.steady))
    life.die()
    later = live(wall=life.wall + 60.0, steady=life.steady + 60.0)
    assert later.ask().latest == life.wall


def _why(life: Life, **times: float) -> list[tuple[GapReason, float | None, float | None]]:
    return [(gap.why, gap.since, gap.until) for gap in life.ask(**times).unseen]


def test_time_before_the_exporter_ran_is_not_blamed_on_the_kubelet(live: Callable[..., Life]) -> None:
    life = live(None)
    started = life.wall
    life.sight.fail()
    life.pass_time(300.0)
    before, silent = (GapReason.BEFORE, None, started), (GapReason.SILENT, started, life.wall)
    assert _why(life) == [before, silent]
    assert _why(life, since=started - 60, until=started - 60) == [before]
    assert _why(life, since=started + 60, until=started + 60) == [(GapReason.SILENT, started, None)]
    life.look(key("a"))
    silent = (GapReason.SILENT, started, life.wall)
    assert _why(life, since=started - 60) == [(GapReason.BEFORE, started - 60, started), silent]
    assert _why(life, since=started + 60) == [(GapReason.SILENT, started + 60, life.wall)]


def test_time_between_two_exporters_is_parted_where_the_second_began(live: Callable[..., Life]) -> None:
    first = live()
    first.look(key("a"))
    last = first.wall
    first.archive.close()
    life = live(wall=first.wall + 1000.0, steady=first.steady + 1000.0)
    started = life.wall
    life.sight.fail()
    life.pass_time(300.0)
    assert _why(life) == [(GapReason.DOWN, last, started), (GapReason.SILENT, started, life.wall)]
    life.look(key("a"))
    assert _why(life) == [(GapReason.DOWN, last, started), (GapReason.SILENT, started, life.wall)]
    life.archive.close()
    # A process that reads it later cannot tell the two apart, and blames nobody but the exporter.
    later = live(wall=life.wall + 5.0, steady=life.steady + 5.0)
    later.look(key("a"))
    assert _why(later)[0] == (GapReason.DOWN, last, started + 305.0)
