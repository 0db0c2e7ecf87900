"""History of devices: at a moment free ones are free, unhealthy ones unhealthy, and the others unknown."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.history import devices as module
from exporter.history.coverage import CoveredSpan, GapReason
from exporter.history.devices import RECORDED, DeviceRow, RecordedDevice, known_devices, same_devices
from exporter.history.journal import PendingWrites
from exporter.history.query import HistoryQuery
from exporter.history.schema import VERSION
from exporter.history.store import Store
from exporter.mapping.model import ClaimHolding, Device, DeviceKey, Holder, Snapshot
from harness import scene
from harness.lives import Life, key

Start = Callable[..., Life]
GPU = "example.com/gpu"

VERSION_1 = """\
CREATE TABLE past (id INTEGER PRIMARY KEY, resource TEXT NOT NULL, driver TEXT NOT NULL, pool TEXT NOT NULL,
device TEXT NOT NULL, share_id TEXT NOT NULL, claim_namespace TEXT NOT NULL, claim TEXT NOT NULL,
namespace TEXT NOT NULL, pod TEXT NOT NULL, container TEXT NOT NULL, uid TEXT NOT NULL,
workload_kind TEXT NOT NULL, workload TEXT NOT NULL, parent TEXT NOT NULL, node TEXT NOT NULL,
start_not_before REAL, start_not_after REAL, start_certainty TEXT NOT NULL, end_not_before REAL,
end_not_after REAL, end_certainty TEXT, assumed INTEGER NOT NULL, low REAL NOT NULL, span INTEGER NOT NULL);
CREATE TABLE present (id INTEGER PRIMARY KEY, resource TEXT NOT NULL, driver TEXT NOT NULL,
pool TEXT NOT NULL, device TEXT NOT NULL, share_id TEXT NOT NULL, claim_namespace TEXT NOT NULL,
claim TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL, container TEXT NOT NULL, uid TEXT NOT NULL,
workload_kind TEXT NOT NULL, workload TEXT NOT NULL, parent TEXT NOT NULL, node TEXT NOT NULL,
start_not_before REAL, start_not_after REAL, start_certainty TEXT NOT NULL, end_not_before REAL,
end_not_after REAL, end_certainty TEXT, assumed INTEGER NOT NULL, low REAL NOT NULL);
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
PRAGMA application_id = 1685482611;
PRAGMA user_version = 1;
"""
"""The schema of version 1, as it was."""


def _store(life: Life) -> Store:
    store = life.archive._store  # pyright: ignore[reportPrivateUsage]
    assert store is not None
    return store


def _rows(life: Life) -> int:
    return _count(_store(life))


def _count(store: Store) -> int:
    (number,) = store._db.execute("SELECT count(*) FROM device_spans").fetchone()  # pyright: ignore[reportPrivateUsage]
    return int(number)


def _again(live: Start, life: Life, **changes: object) -> Life:
    """The next exporter, which sees the same devices."""
    life.archive.close()
    settings = {"wall": life.wall, "steady": life.steady, "known": life.known} | changes
    return live(**settings)


def test_devices_that_nobody_holds_are_free_or_unhealthy(live: Start) -> None:
    life = live(known={"a": True, "b": True, "c": False})
    life.look(key("a"))
    first = life.wall
    life.look(key("a"))
    assert life.unheld(first) == life.unheld(life.wall) == {"b": "free", "c": "unhealthy"}
    assert life.ask(since=first, until=first).devices_recorded is True
    assert life.ask(since=first, until=first).device_counts == {"free": 1, "unhealthy": 1}
    life.known = {"a": True, "b": False, "d": True}
    life.look()
    assert life.unheld(life.wall) == {"a": "free", "b": "unhealthy", "d": "free"}
    # Between the two polls everything may have been either way; a is possibly held, and in the rows.
    assert life.unheld(life.wall - 1) == {"b": "unknown", "c": "unknown", "d": "unknown"}
    assert life.unheld(first) == {"b": "free", "c": "unhealthy"}


def test_a_range_and_a_query_by_pod_have_no_devices(live: Start) -> None:
    life = live(known={"a": True})
    life.look()
    for question in (
        {"since": life.wall - 1, "until": life.wall},
        {"pod": "p"},
        {"driver": "x"},
        {"uid": "u"},
    ):
        at = {"since": life.wall, "until": life.wall} | question
        assert (life.ask(**at).devices, life.ask(**at).devices_recorded) == ((), None)


def test_in_a_gap_and_out_of_the_record_devices_are_unknown(live: Start) -> None:
    life = live(known={"a": True, "b": True})
    life.look(key("b"))
    last = life.wall
    life.pass_time(600.0)
    life = _again(live, life)
    life.look(key("b"))
    assert life.unheld(last + 300) == {"a": "unknown"}
    assert life.unheld(last) == life.unheld(life.wall) == {"a": "free"}
    assert life.unheld(last - 600) == {}
    assert set(life.unheld(life.wall + 600).values()) == {"unknown"}
    life.sight.fail()
    life.pass_time(60.0)
    assert life.unheld(life.wall) == {"a": "unknown"}


def test_what_changes_while_the_exporter_is_down_is_unknown_meanwhile(live: Start) -> None:
    life = live(known={"a": True, "b": True})
    life.look()
    last = life.wall
    life.pass_time(100.0)
    life = _again(live, life, known={"a": False, "c": True})
    life.look()
    assert life.unheld(last) == {"a": "free", "b": "free"}
    assert life.unheld(last + 50) == {"a": "unknown", "b": "unknown", "c": "unknown"}
    assert life.unheld(life.wall) == {"a": "unhealthy", "c": "free"}


def test_nothing_is_written_while_nothing_changes(live: Start) -> None:
    life = live(known={f"d{number}": True for number in range(50)})
    life.look()
    rows = _rows(life)
    assert rows == 51
    for number in range(20):
        life.look(key(f"d{number}"))
    life = _again(live, life)
    life.look()
    assert _rows(life) == rows
    assert set(life.unheld(life.wall).values()) == {"free"}


def test_a_kubelet_restart_is_one_row_each_time(live: Start) -> None:
    names = [f"d{number}" for number in range(100)]
    life = live(known=dict.fromkeys(names, True))
    life.look()
    rows, gone = _rows(life), 0.0
    for _ in range(5):
        life.known = dict.fromkeys(names, False)
        life.look()
        gone = life.wall
        life.known = dict.fromkeys(names, True)
        life.look()
    assert _rows(life) == rows + 5
    assert set(life.unheld(gone).values()) == {"unhealthy"}
    assert set(life.unheld(gone + 2).values()) == set(life.unheld(gone - 2).values()) == {"unknown"}
    assert set(life.unheld(life.wall).values()) == {"free"}
    # What changed meanwhile is known again afterwards.
    life.known = {"d0": False}
    life.look()
    life.known = {"d0": False, "d1": True, "new": True}
    life.look()
    assert life.unheld(life.wall) == {"d0": "unhealthy", "d1": "free", "new": "free"}


def test_where_the_kubelet_does_not_report_devices_they_are_not_recorded(live: Start) -> None:
    life = live(known={"a": True})
    life.look()
    first = life.wall
    life.known = None
    life.look()
    life.look()
    found = life.ask(since=life.wall, until=life.wall)
    assert (found.devices_recorded, life.unheld(life.wall)) == (False, {"a": "unknown"})
    life.known = {"a": True}
    life.look()
    assert life.unheld(first) == life.unheld(life.wall) == {"a": "free"}


def test_a_file_of_version_1_is_kept_and_its_time_has_no_devices(live: Start, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.executescript(VERSION_1)
        old.execute("INSERT INTO watches VALUES (1, 1799999000.0, 1799999900.0, NULL)")
        names = f"('{GPU}', '', '', 'a', '', '', '', 'ns', 'p', 'main', '', '', '', '', '')"[1:-1]
        old.execute(
            f"INSERT INTO present VALUES (7, {names}, 1799999000.0, 1799999005.0, 'between_polls', "
            "NULL, NULL, NULL, 0, 1799999000.0)"
        )
    life = live(path, known={"a": True, "b": True})
    life.look(key("a"))
    assert [row.id for row in life.ask().rows] == [7]
    before = life.ask(since=1799999500.0, until=1799999500.0)
    assert (len(before.rows), before.devices_recorded, before.unseen) == (1, False, ())
    assert life.unheld(1799999500.0) == {}
    assert life.unheld(life.wall) == {"b": "free"}
    with closing(sqlite3.connect(path)) as new:
        assert new.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_filters_and_pages(live: Start) -> None:
    life = live(known={f"d{number}": number != 3 for number in range(7)})
    life.look(key("d0"), key("d1"))
    at = life.wall
    assert set(life.unheld(at, resource=GPU)) == set(life.unheld(at, resource="gpu", parts=True))
    assert life.unheld(at, resource="other") == life.unheld(at, resource="other", parts=True) == {}
    assert life.unheld(at, device="d3") == {"d3": "unhealthy"}
    assert life.unheld(at, device="D5", parts=True) == {"d5": "free"}
    assert life.unheld(at, device="d1", parts=True) == {}
    shown: list[str] = []
    question = HistoryQuery(since=at, until=at, limit=3)
    pages = 0
    while True:
        pages += 1
        found = life.archive.find(question, life.now)
        shown += [row.key.device for row in found.rows]
        shown += [one.key.device for one in found.devices]
        assert len(found.rows) + len(found.devices) <= 3
        assert found.device_counts == {"free": 4, "unhealthy": 1}
        if found.next is None:
            break
        question = replace(question, after=found.next)
    assert (pages, sorted(shown)) == (3, [f"d{number}" for number in range(7)])


def test_next_page_does_not_read_all_devices_again(live: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []

    def devices_at(at: float, *rest: Any, **more: Any) -> module.DevicesAt:
        read.append(at)
        return module.devices_at(at, *rest, **more)

    monkeypatch.setattr("exporter.history.store.devices_at", devices_at)
    life = live(known={f"d{number}": True for number in range(9)})
    life.look(key("d0"))
    question = HistoryQuery(since=life.wall, until=life.wall, limit=2)
    found = life.archive.find(question, life.now)
    while found.next is not None:
        found = life.archive.find(replace(question, after=found.next), life.now)
    assert read == [life.wall]
    life.look(key("d1"))
    life.archive.find(question, life.now)
    assert len(read) == 2


def test_a_plugin_with_ever_new_ids_is_bounded(live: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHANGES", 60)
    monkeypatch.setattr("exporter.history.store.ENDED_DEVICES", 20)
    life = live(known={"a": True})
    life.look()
    for number in range(30):
        life.known = {"a": True, **{f"x{number}-{n}": True for n in range(10)}}
        life.look(after=0.5)
        life.archive.maintain()
    # The ids that are shown, those that ended, and the times in which they are recorded.
    assert _rows(life) <= 11 + 20 + 2
    found = life.ask(since=life.wall, until=life.wall)
    assert found.devices_recorded is False
    assert set(life.unheld(life.wall).values()) == {"unknown"}
    # It is recorded again when the plugin calms down.
    for _ in range(10):
        life.look()
    assert life.unheld(life.wall) == dict.fromkeys(life.known or {}, "free")


def test_rows_that_wait_for_a_full_disk_are_bounded(live: Start) -> None:
    life = live(known={"a": True}, pending_limit=10)
    life.look()
    first = life.wall
    database = _store(life)._db  # pyright: ignore[reportPrivateUsage]
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    for number in range(300):
        life.known = {"a": True, f"{number}" + "x" * 500: True}
        life.look(key(f"held-{number}" + "x" * 500))
        assert len(life.archive._journal.pending.devices) <= 20  # pyright: ignore[reportPrivateUsage]
    last = life.wall
    database.execute("PRAGMA max_page_count = 1000000")
    life.known = {"a": True}
    life.look()
    life.look()
    assert life.archive.condition.written
    assert life.unheld(first) == life.unheld(life.wall) == {"a": "free"}
    found = life.ask(since=last - 50, until=last - 50)
    assert found.devices_recorded is False or found.unseen


def test_devices_recorded_in_memory_go_to_the_file(live: Start) -> None:
    life = live(known={"a": True, "b": False})
    life.look()
    other = live(wall=life.wall, steady=life.steady, known={"a": True, "b": True})
    other.look()
    beside = other.wall
    other.known = {"a": False, "b": True}
    other.look()
    life.archive.close()
    other.pass_time(6.0)
    other.archive.maintain()
    other.look()
    assert other.ask().kept_in == "file"
    assert other.unheld(other.wall) == {"a": "unhealthy", "b": "free"}
    assert other.unheld(beside) == {"a": "free", "b": "free"}
    last = _again(live, other)
    last.look()
    assert last.unheld(last.wall) == {"a": "unhealthy", "b": "free"}


def test_old_rows_are_deleted_by_age_and_by_size() -> None:
    facts = RecordedDevice("", healthy=True)
    ended = [DeviceRow(n, DeviceKey(GPU, f"d{n}"), facts, n, n, n + 0.5, n + 1.0) for n in range(1, 1001)]
    held = DeviceRow(2000, RECORDED, facts, 0.0, 0.0)
    for delete, left in (("expire", 501), ("shrink", 0)):
        with Store(None) as store:
            spans = {1: CoveredSpan(1, 0.0, 900.0), 2: CoveredSpan(2, 950.0, 2000.0, GapReason.SILENT)}
            pending = PendingWrites(spans=spans, devices={row.id: row for row in (*ended, held)})
            store.write(pending)
            while (store.expire(500.0) if delete == "expire" else store.shrink()) is not None:
                pass
            assert len(store.past_devices()) == left
            assert store.stored().devices == (held,)
            assert store.stored().next_device == 2001


def test_what_a_snapshot_records() -> None:
    a, b = (Device(DeviceKey(GPU, name), parent="GPU-0") for name in ("a", "b"))
    snapshot = Snapshot((a, b))
    facts = RecordedDevice("GPU-0", healthy=True)
    recorded = {RECORDED: RecordedDevice("", healthy=True)}
    assert known_devices(snapshot) == recorded | {a.key: facts, b.key: facts}
    failed = Snapshot((replace(a, allocatable=False), replace(b, allocatable=False)))
    assert known_devices(failed)[DeviceKey(GPU, "")] == RecordedDevice("", healthy=False)
    assert known_devices(Snapshot((a,), complete=False)) == {}
    held = Snapshot((replace(a, holders=(Holder("ns", "p", "c"),)), b))
    assert same_devices(held, snapshot)
    assert not same_devices(failed, snapshot)
    assert not same_devices(Snapshot((a,)), snapshot)
    assert not same_devices(replace(snapshot, complete=False), snapshot)


def test_unknown_health_is_neither_healthy_nor_unhealthy(live: Start) -> None:
    life = live(known={"a": None, "b": True, "c": False})
    life.look()
    at = life.wall
    life.known = {"a": False, "b": None, "c": None}
    life.look()
    life = _again(live, life)
    life.look()
    for moment, expected in (
        (at, {"a": ("free", None), "b": ("free", True), "c": ("unhealthy", False)}),
        (life.wall, {"a": ("unhealthy", False), "b": ("free", None), "c": ("free", None)}),
        (life.wall - 7, dict.fromkeys("abc", ("unknown", None))),
    ):
        found = life.ask(since=moment, until=moment).devices
        assert {one.key.device: (one.state, one.healthy) for one in found} == expected
    assert _count(_store(life)) == 1 + 6


def test_what_a_snapshot_records_of_claimed_devices() -> None:
    driver, gpu = "gpu.example.com", partial(scene.claimed, pool="node-1", driver="gpu.example.com")
    holding = ClaimHolding(Holder("ns", "p", "c"), "ns", "mine")
    whole, tainted, spare = (
        gpu("a", holding),
        gpu("b", allocatable=False),
        gpu("c", parent="a", alternative=True),
    )
    published = scene.snapshot(whole, tainted, spare, published=[driver])
    assert known_devices(published) == {
        RECORDED: RecordedDevice("", healthy=True),
        DeviceKey(driver, "a"): RecordedDevice("", healthy=None),
        DeviceKey(driver, "b"): RecordedDevice("", healthy=False),
    }
    counted = scene.snapshot(whole, tainted, replace(spare, alternative=False), published=[driver])
    assert DeviceKey(driver, "c") in known_devices(counted)
    assert not same_devices(counted, published)
    # Without slices only what is held is known.
    unpublished = scene.snapshot(whole, scene.device("GPU-0"))
    assert known_devices(unpublished) == {
        RECORDED: RecordedDevice("", healthy=True),
        DeviceKey(driver, ""): RecordedDevice("", healthy=None),
        DeviceKey(scene.GPU, "GPU-0"): RecordedDevice("", healthy=True),
    }
    assert not same_devices(scene.snapshot(whole, published=[driver]), scene.snapshot(whole))


def test_free_devices_without_slices_are_unknown(live: Start) -> None:
    life = live(known={"a": None, "b": None})
    life.look()
    first = life.wall
    life.held_only = True
    life.look()
    gone = life.wall
    life.held_only = False
    life.look()
    for at, states, held_only in (
        (first, {"a": "free", "b": "free"}, []),
        (gone, {"a": "unknown", "b": "unknown"}, [GPU]),
        (life.wall, {"a": "free", "b": "free"}, []),
    ):
        assert life.unheld(at) == states
        found = life.ask(since=at, until=at)
        assert (found.devices_recorded, [*found.held_only]) == (True, held_only)
        assert [*life.ask(since=at, until=at, resource="other").held_only] == []
    assert _count(_store(life)) == 1 + 2 + 1


def test_too_many_devices_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Snapshot(tuple(Device(DeviceKey(GPU, f"d{number}")) for number in range(9)))
    assert len(known_devices(snapshot)) == 10
    monkeypatch.setattr(module, "DEVICES", 8)
    assert known_devices(snapshot) == {}
    monkeypatch.setattr(module, "DEVICES", 9)
    monkeypatch.setattr(module, "CHARACTERS", 17)
    assert known_devices(snapshot) == {}


_states = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["free", "unhealthy", "held"]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_states, st.booleans()), min_size=1, max_size=8))
def test_at_each_poll_the_answer_is_what_the_poll_showed(polls: list[tuple[dict[str, str], bool]]) -> None:
    life = Life(None).start()
    times: list[tuple[float, dict[str, str]]] = []
    for states, silent in polls:
        if silent:
            life.sight.fail()
            life.pass_time(30.0)
        life.known = {name: state != "unhealthy" for name, state in states.items()}
        life.look(*(key(name) for name, state in states.items() if state == "held"))
        # While no device is allocatable, those that vanish stay.
        stay = states and set(states.values()) == {"unhealthy"} and times
        gone = dict.fromkeys(times[-1][1], "unhealthy") if stay else {}
        times.append((life.wall, gone | states))
    for at, states in times:
        assert life.unheld(at) == {name: state for name, state in states.items() if state != "held"}
    for (one, before), (two, after) in pairwise(times):
        found = life.unheld((one + two) / 2)
        for name, state in found.items():
            assert "held" not in {before.get(name), after.get(name)}
            same = before.get(name) == after.get(name) and two - one <= 5.0
            assert state == "unknown" or (same and state == before[name])
    life.archive.close()
