"""exporter.history.store: what is written is found again, by index alone, and within limits."""

import random
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.history import schema, sql
from exporter.history.coverage import CoveredSpan, GapReason
from exporter.history.journal import PendingWrites
from exporter.history.query import (
    SPANS,
    Cursor,
    HistoryQuery,
    NameMatch,
    read_cursor,
    write_cursor,
)
from exporter.history.record import Bound, Certainty, HoldingFacts, HoldingKey, HoldingRow
from exporter.history.rows import DamagedError
from exporter.history.store import QueryTimeout, Store, StoreError
from harness.answers import HOSTILE
from runtime.text import visible

NAMES = ("a", "b", "c\nd", "é東", 'x"y')


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "history.db") as found:
        yield found


def _key(device: str, resource: str = "example.com/gpu", **names: str) -> HoldingKey:
    return HoldingKey(resource, device, "ns", "pod", "main")._replace(**names)


def _past(number: int, since: float, until: float, key: HoldingKey, facts: HoldingFacts) -> HoldingRow:
    end = Bound(until, until, Certainty.AT_ONCE)
    return HoldingRow(number, key, facts, Bound(since, since, Certainty.BETWEEN_POLLS), end)


def _write(store: Store, *rows: HoldingRow, watches: tuple[CoveredSpan, ...] = ()) -> None:
    store.write(
        PendingWrites(
            {row.id: row for row in rows if row.end is None},
            {row.id: row for row in rows if row.end is not None},
            {watch.id: watch for watch in watches},
        )
    )


@pytest.mark.parametrize("text", [*HOSTILE, "nul\0in it"])
def test_rows_with_any_names_are_read_back_unchanged(store: Store, text: str) -> None:
    key = HoldingKey(*[text] * 5)
    facts = HoldingFacts(*[text] * 9)
    held = HoldingRow(1, key, facts, Bound(None, 5.0, Certainty.HELD_ALREADY), assumed=True)
    gone = HoldingRow(
        2, key, facts, Bound(1.25, 2.5, Certainty.WHILE_DOWN), Bound(3.0, 4.0, Certainty.AT_ONCE)
    )
    missed = replace(gone, id=3, end=None, missed=gone.end)
    _write(store, held, gone, missed)
    assert store.find(HistoryQuery())[:2] == ([held, missed, gone], None)
    assert store.stored().rows == (held, missed)
    assert store.stored().next_row == 4
    if text:
        shown = HistoryQuery(resource=visible(text), pod=visible(text), device=visible(text))
        assert {row.id for row in store.find(shown)[0]} == {1, 2, 3}


def test_ended_row_keeps_its_id_and_writing_is_idempotent(store: Store) -> None:
    held = HoldingRow(1, _key("a"), HoldingFacts(), Bound(1.0, 2.0, Certainty.AT_ONCE))
    gone = _past(1, 1.0, 9.0, _key("a"), HoldingFacts())
    _write(store, held)
    for _ in range(2):
        _write(store, gone)
        assert store.find(HistoryQuery())[:2] == ([gone], None)
        assert store.count() == 1


# Before 2004 floats have more bits than a row.
_times = st.floats(2.0**30, 2.0**32 - 1)
_bounds = st.builds(Bound, st.none() | _times, _times, st.sampled_from(Certainty))
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just(
    "12345678-1234-5678-1234-567812345678"
)


@given(
    key=st.builds(HoldingKey, *[_texts] * 5),
    facts=st.builds(HoldingFacts, *[_texts] * 9),
    start=_bounds,
    end=_bounds,
    assumed=st.booleans(),
    claim=st.booleans(),
)
def test_row_that_ended_is_read_back_as_it_was_written(
    key: HoldingKey, facts: HoldingFacts, start: Bound, end: Bound, *, assumed: bool, claim: bool
) -> None:
    first, last = sorted((start.not_before or 0.0, start.not_after or 0.0))
    start = start._replace(not_before=None if start.not_before is None else first, not_after=last)
    if claim:
        facts = facts._replace(claim=f"{key.pod}-{facts.claim}", claim_namespace=key.namespace)
        facts = facts._replace(workload=key.pod[:4])
    row = HoldingRow(7, key, facts, start, end, assumed=assumed)
    with Store(None) as store:
        _write(store, row)
        assert store.past() == [row]


def test_names_of_a_write_that_failed_are_written_with_the_next(tmp_path: Path) -> None:
    rows = [_past(n, 1.0, 2.0, _key("GPU-7c1f", "example.com/gpu"), HoldingFacts("u")) for n in (1, 2)]
    with Store(tmp_path / "history.db") as store:
        database = store._db  # pyright: ignore[reportPrivateUsage]
        full = "BEFORE INSERT ON watches BEGIN SELECT raise(ABORT, 'as if full'); END"
        database.execute(f"CREATE TEMP TRIGGER full {full}")
        with pytest.raises(StoreError, match="as if full"):
            _write(store, rows[0], watches=(CoveredSpan(1, 0.0, 1.0),))
        _write(store, rows[1])
    with Store(tmp_path / "history.db") as store:
        assert store.past() == [rows[1]]


def test_a_holding_takes_less_than_300_bytes(tmp_path: Path) -> None:
    order = random.Random(1)
    sizes: list[int] = []
    with Store(tmp_path / "history.db") as store:
        for first in (1, 1001):
            rows: list[HoldingRow] = []
            for number in range(first, 5 * first + 995):
                pod = f"train-7d9f8b6c5d-{order.getrandbits(24):06x}"
                uid = str(uuid.UUID(int=order.getrandbits(128)))
                key = _key(f"GPU-{uuid.UUID(int=number % 64)}", "nvidia.com/gpu", pod=pod, namespace="team-a")
                since = 1.79e9 + number * 20 + order.random()
                row = _past(
                    number, since, since + 900 * order.random(), key, HoldingFacts(uid, "Job", "train")
                )
                rows.append(row)
            _write(store, *rows)
            sizes.append(store.size())
        assert (sizes[1] - sizes[0]) / 5000 < 300


def test_a_claimed_holding_takes_less_than_300_bytes(tmp_path: Path) -> None:
    order = random.Random(1)
    sizes: list[int] = []
    number = 0
    with Store(tmp_path / "history.db") as store:
        for pods in (500, 2500):
            rows: list[HoldingRow] = []
            for _ in range(pods):
                pod = f"train-7d9f8b6c5d-{order.getrandbits(24):06x}"
                uid, claim = (
                    str(uuid.UUID(int=order.getrandbits(128))),
                    f"{pod}-gpu-{order.getrandbits(20):05x}",
                )
                facts = HoldingFacts(uid, "Job", "train", "", "node", "team-a", claim, "", "nvidia.com/gpu")
                for device in range(2):
                    number += 1
                    key = _key(f"gpu-{device}", "gpu.nvidia.com", pod=pod, namespace="team-a")
                    rows.append(_past(number, 1.79e9 + number, 1.79e9 + number + 900, key, facts))
            _write(store, *rows)
            sizes.append(store.size())
        assert (sizes[1] - sizes[0]) / 5000 < 300


@pytest.mark.parametrize("claim", ["pod-gpu-x7k2p", "pod", "shared", "po", 'p"', "é東"])
@pytest.mark.parametrize("share", ["", "share-1"])
@pytest.mark.parametrize("namespace", ["ns", "other"])
def test_a_claim_is_found_by_its_whole_name(store: Store, claim: str, share: str, namespace: str) -> None:
    facts = [HoldingFacts("u", "", "", "", "", namespace, name, share) for name in (claim, f"{claim}x", "x")]
    rows = [_past(n, 1.0, 2.0, _key("d"), one) for n, one in enumerate(facts, start=1)]
    held = HoldingRow(9, _key("d"), facts[0], Bound(1.0, 2.0, Certainty.AT_ONCE))
    _write(store, *rows, held, _past(10, 1.0, 2.0, _key("d", pod="po"), facts[0]))
    for question in (
        {"claim": claim},
        {"claim": claim, "namespace": "ns"},
        {"claim": claim, "device": "d"},
        {"claim": claim, "uid": "u"},
        {"claim": claim, "resource": "example.com/gpu"},
        {"claim": claim, "driver": "example.com/gpu"},
    ):
        assert {row.id for row in store.find(HistoryQuery(**question)).rows} == {1, 9, 10}  # type: ignore[arg-type]
    assert [row.id for row in store.find(HistoryQuery(claim=claim, pod="po")).rows] == [10]


def test_pods_are_deleted_with_their_last_holding(store: Store) -> None:
    keys = [_key(device, pod=pod) for device, pod in (("a", "one"), ("b", "two"), ("c", "two"))]
    _write(store, *(_past(n, 1.0, 10.0 * n, key, HoldingFacts("u")) for n, key in enumerate(keys, start=1)))
    for before, left in ((15.0, 1), (25.0, 1), (35.0, 0)):
        assert store.expire(before) is not None
        assert store._db.execute("SELECT count(*) FROM holders").fetchone() == (left,)  # pyright: ignore[reportPrivateUsage]


_rows = st.lists(
    st.tuples(
        st.integers(0, 200),
        st.integers(0, 200),
        st.sampled_from(NAMES[:3]),
        st.sampled_from(NAMES[:3]),
        st.sampled_from(["", *NAMES[:3]]),
        st.booleans(),
    ),
    max_size=25,
)
_asked = st.dictionaries(
    st.sampled_from(["resource", "device", "namespace", "pod", "uid", "driver", "claim"]),
    st.sampled_from(NAMES[:2]),
    max_size=2,
)


@pytest.mark.parametrize(("texts", "few"), [(100, 100), (0, 0)])
@settings(max_examples=40)
@given(
    drawn=_rows,
    names=_asked,
    since=st.none() | st.integers(-5, 250),
    length=st.none() | st.integers(0, 100),
    limit=st.integers(1, 7),
)
def test_query_finds_what_a_full_scan_finds_page_by_page(
    drawn: list[tuple[int, int, str, str, str, bool]],
    names: dict[str, Any],
    since: int | None,
    length: int | None,
    limit: int,
    *,
    texts: int,
    few: int,
) -> None:
    rows: list[HoldingRow] = []
    for number, (start, lasted, one, two, parent, over) in enumerate(drawn, start=1):
        key = _key(two, one, namespace=two, pod=one)
        asked = {"": "", "a": "a", "b": one}.get(parent, "b")
        facts = HoldingFacts(uid=parent, parent=parent, claim=parent and two, requested_as=asked)
        row = _past(number, float(start), float(start + lasted**2), key, facts)
        rows.append(row if over else HoldingRow(number, key, facts, row.start))
    low = None if since is None else float(since)
    until = None if length is None else float((since or 0) + length)
    question = HistoryQuery(since=low, until=until, limit=limit, **names)
    with Store(None) as store, pytest.MonkeyPatch.context() as patch:
        # The same where the dictionary is full, and where a pod has too many rows to search by its name.
        patch.setattr("exporter.history.texts.TEXTS", texts)
        patch.setattr(sql, "FEW_ROWS", few)
        _write(store, *rows)
        found: list[HoldingRow] = []
        pages = 0
        while True:
            page, after = store.find(question)[:2]
            found.extend(page)
            assert len(page) <= limit
            pages += 1
            if after is None:
                break
            assert len(page) == limit
            assert read_cursor(write_cursor(after)) == after
            question = HistoryQuery(since=low, until=until, limit=limit, after=after, **names)
    expected = [row for row in rows if _matches(row, names, low, until)]
    assert found == sorted(expected, key=lambda row: (row.low, row.id), reverse=True)


def _matches(row: HoldingRow, names: dict[str, str], since: float | None, until: float | None) -> bool:
    facts = {**row.key._asdict(), "uid": row.facts.uid, "claim": row.facts.claim}
    facts["driver"] = row.key.resource if row.facts.claim else ""
    device, resource = names.get("device", ""), names.get("resource", "")
    others = all(facts[name] == names[name] for name in names.keys() - {"device", "resource"})
    return (
        others
        and (not resource or resource in {row.key.resource, row.facts.requested_as})
        and (not device or device in {row.key.device, row.facts.parent})
        and (until is None or row.low < until)
        and (since is None or row.high > since)
    )


_FILTERS = ("resource", "driver", "device", "namespace", "pod", "uid")


@pytest.mark.parametrize("at", [None, 5.0])
@pytest.mark.parametrize("after", [None, Cursor(5.0, 3)])
@pytest.mark.parametrize("by_holder", [False, True])
def test_no_query_scans_the_past(
    store: Store, at: float | None, after: Cursor | None, by_holder: bool
) -> None:
    for chosen in chain.from_iterable(combinations(_FILTERS, number) for number in range(3)):
        if by_holder and not {"pod", "uid"} & set(chosen):
            continue
        names: dict[str, Any] = dict.fromkeys(chosen, "a\\n")
        question = HistoryQuery(since=at, until=at, after=after, **names)
        plan = _plan(store, *sql.find(question, sql.Content(range(SPANS)), by_holder=by_holder))
        assert not [step for step in plan if step.startswith(("SCAN holdings", "SCAN holders"))]
        searched = [step for step in plan if step.startswith("SEARCH holdings")]
        assert searched
        # By what is asked for, and by the class of length and time.
        by_index = [name for name in chosen if name not in {"pod", "uid"}]
        wanted = "slot>? AND slot<?" if not by_index else "=? AND slot>? AND slot<?"
        wanted = "(holder=?)" if by_holder else f"{wanted})"
        assert all(wanted in step for step in searched), (names, plan)


@pytest.mark.parametrize("column", ["resource", "requested_as", "device"])
def test_names_are_found_by_index(store: Store, column: str) -> None:
    steps = [step for step in _plan(store, sql.distinct("holdings", column), {}) if "holdings" in step]
    assert steps
    assert all(f"COVERING INDEX {sql.holdings_index(column)}" in step for step in steps)


def test_a_generated_claim_is_found_by_its_pod(store: Store) -> None:
    question = HistoryQuery(claim="train-0-gpu-x7k2p", namespace="ns")
    plan = _plan(store, *sql.find(question, sql.Content([7])))
    found = [step for step in plan if step.startswith(("SEARCH holdings", "SEARCH holders"))]
    assert any("holdings_holder (holder=?)" in step for step in found)
    assert any("holders_pod (pod=?)" in step for step in found)


@pytest.mark.parametrize("statement", [sql.HOLDER_BY_UID, sql.HOLDER_BY_POD])
def test_holder_is_found_by_index(store: Store, statement: str) -> None:
    values = {str(number): None for number in range(1, 7)}
    plan = [step[3] for step in store._db.execute(f"EXPLAIN QUERY PLAN {statement}", tuple(values.values()))]  # pyright: ignore[reportPrivateUsage]
    assert all(step.startswith("SEARCH holders") for step in plan)


def test_classes_of_length_and_resources_survive_a_restart(tmp_path: Path) -> None:
    rows = [
        _past(n, 0.0, float(4**n), _key("d", name), HoldingFacts())
        for n, name in enumerate(("b", "a", "b", ""))
    ]
    held = HoldingRow(9, _key("d", "c"), HoldingFacts(), Bound(1.0, 2.0, Certainty.AT_ONCE))
    with Store(tmp_path / "history.db") as store:
        _write(store, *rows, held)
    with Store(tmp_path / "history.db") as store:
        assert store._spans == {0, 2, 4, 6}  # pyright: ignore[reportPrivateUsage]
        assert len(store.find(HistoryQuery())[0]) == 5
        assert store.resources() == ["a", "b", "c"]


def _named(store: Store, names: dict[str, Any], **more: Any) -> tuple[list[int], list[NameMatch]]:
    found = store.find(HistoryQuery(parts=True, **names, **more))
    return sorted(row.id for row in found.rows), list(found.matches)


@pytest.fixture
def fleet(store: Store) -> Store:
    """Holdings of two resources, of a driver, of a share, and one that lasts."""
    keys = [
        _key("GPU-7c1f", "nvidia.com/gpu", pod="resnet-x2x9k"),
        _key("GPU-7C1F::0", "nvidia.com/gpu.shared", pod="resnet-5m89f"),
        _key("bell\x07", "example.com/gpu", pod="a%b_c"),
        _key("gpu-0", "gpu.example.com", pod="claimer"),
    ]
    facts = [HoldingFacts(parent="GPU-7C1F" if "::" in key.device else "") for key in keys[:3]]
    facts.append(HoldingFacts(claim_namespace="ns", claim="mine", requested_as="tpu.example.com/core"))
    rows = [_past(n, 10.0 * n, 10.0 * n + 5, key, facts[n - 1]) for n, key in enumerate(keys, start=1)]
    held = HoldingRow(
        9, _key("GPU-5e1f", "nvidia.com/gpu"), HoldingFacts(), Bound(1.0, 2.0, Certainty.AT_ONCE)
    )
    _write(store, *rows, held)
    return store


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"device": "7c1f"}, [1, 2]),
        ({"device": "GPU-7c1f"}, [1]),
        ({"device": "GPU-7C1F"}, [2]),
        ({"device": "gpu-7c1F"}, [1, 2]),
        ({"device": "5E1"}, [9]),
        ({"device": "\\x07"}, [3]),
        ({"device": "%"}, []),
        ({"device": "GPU_7c1f"}, []),
        ({"pod": "resnet"}, [1, 2]),
        ({"pod": "%"}, [3]),
        ({"pod": "resnet-x2x9k"}, [1]),
        ({"resource": "gpu"}, [1, 3, 9]),
        ({"resource": "gpu.shared"}, [2]),
        ({"resource": "nvidia.com/gpu"}, [1, 9]),
        ({"resource": "gpu.example.com"}, [4]),
        ({"resource": "tpu.example.com/core"}, [4]),
        ({"resource": "core"}, [4]),
        ({"claim": "mine"}, [4]),
        ({"claim": "min"}, []),
        ({"resource": "com/gpu"}, []),
        ({"resource": "gpu", "device": "1f", "pod": "resnet"}, [1]),
        ({"resource": "gpu", "namespace": "n"}, []),
    ],
)
def test_parts_of_names_find_the_rows_that_have_them(
    fleet: Store, names: dict[str, str], found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _named(fleet, names)[0] == found
    # The same where there are too many names to search for each.
    monkeypatch.setattr("exporter.history.sql.FEW", 0 if "resource" not in names else 256)
    assert _named(fleet, names)[0] == found
    assert _named(fleet, names, since=10.0, until=99.0)[0] == found


def test_names_in_other_fields_and_without_parts_are_whole(fleet: Store) -> None:
    for names in ({"device": "7c1f"}, {"pod": "resnet"}, {"resource": "gpu"}):
        assert fleet.find(HistoryQuery(**names))[:3] == ([], None, ())  # type: ignore[arg-type] # names
    assert _named(fleet, {"namespace": "n"}) == ([], [])


def test_how_a_name_matched_is_part_of_the_answer(fleet: Store) -> None:
    assert _named(fleet, {"device": "GPU-7c1f"})[1] == [NameMatch("device", "GPU-7c1f", whole=True)]
    assert _named(fleet, {"device": "7c1f", "resource": "gpu"})[1] == [
        NameMatch("resource", "gpu", False, 2, ("example.com/gpu", "nvidia.com/gpu")),
        NameMatch("device", "7c1f", False, 2, ("GPU-7C1F::0", "GPU-7c1f")),
    ]
    (near,) = _named(fleet, {"device": "GPU-7d1f"})[1]
    assert (near.number, near.names, near.near[0]) == (0, (), "GPU-7c1f")
    (near,) = _named(fleet, {"resource": "nvidia.com/gpus"})[1]
    assert (near.number, near.near[0]) == (0, "nvidia.com/gpu")


def test_many_names_with_a_part_are_not_counted(store: Store) -> None:
    rows = [_past(n, 1.0, 2.0, _key("d", pod=f"train-{n}"), HoldingFacts()) for n in range(1, 600)]
    _write(store, *rows)
    found = store.find(HistoryQuery(parts=True, pod="train", limit=50))
    assert (len(found.rows), found.matches[0].number, len(found.matches[0].names)) == (50, None, 20)
    assert _named(store, {"pod": "ain-59"})[0] == [59, *range(590, 600)]


def test_search_for_a_part_ends_in_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [_past(n, 1.0, 2.0, _key("d", pod=f"train-{n}"), HoldingFacts()) for n in range(1, 3000)]
    _write(store, *rows)
    monkeypatch.setattr("exporter.history.store.QUERY_LIMIT", -1.0)
    monkeypatch.setattr("exporter.history.store._CHECK_EVERY", 100)
    with pytest.raises(QueryTimeout, match="it took longer than"):
        store.find(HistoryQuery(parts=True, pod="x" * 4096))


def test_names_that_are_not_text_are_damage(fleet: Store) -> None:
    fleet._db.execute("UPDATE holders SET pod = x'00ff' WHERE id = 1")  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(DamagedError, match="not there"):
        _named(fleet, {"pod": "zzz"})


def _plan(store: Store, statement: str, parameters: dict[str, object]) -> list[str]:
    database = store._db  # pyright: ignore[reportPrivateUsage]
    return [step[3] for step in database.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]


def test_write_is_atomic(store: Store) -> None:
    _write(store, HoldingRow(1, _key("a"), HoldingFacts(), Bound(1.0, 2.0, Certainty.AT_ONCE)))
    database = store._db  # pyright: ignore[reportPrivateUsage]
    database.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON watches BEGIN SELECT raise(ABORT, 'as if full'); END"
    )
    gone = _past(1, 1.0, 9.0, _key("a"), HoldingFacts())
    with pytest.raises(StoreError, match="as if full"):
        _write(store, gone, watches=(CoveredSpan(1, 0.0, 1.0),))
    assert [row.end for row in store.find(HistoryQuery())[0]] == [None]


def test_expire_deletes_old_rows_and_their_coverage(store: Store) -> None:
    rows = [_past(n, float(n), float(n + 1), _key("a"), HoldingFacts()) for n in range(1, 1001)]
    held = HoldingRow(2000, _key("b"), HoldingFacts(), Bound(3.0, 4.0, Certainty.AT_ONCE))
    watches = (
        CoveredSpan(1, 0.0, 100.0),
        CoveredSpan(2, 150.0, 900.0, GapReason.DOWN),
        CoveredSpan(3, 950.0, 2000.0, GapReason.SILENT),
    )
    _write(store, *rows, held, watches=watches)
    steps = 0
    while (cut := store.expire(500.0)) is not None:
        assert cut.rows <= 256
        steps += 1
    assert steps == 2
    assert min(row.high for row in store.past()) == 500.0
    assert store.stored().rows == (held,)
    assert store.spans(None, None) == [
        CoveredSpan(2, 500.0, 900.0),
        CoveredSpan(3, 950.0, 2000.0, GapReason.SILENT),
    ]
    assert store.earliest() == 500.0


def test_shrink_deletes_the_oldest_and_the_file_gets_smaller(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    order = random.Random(1)
    with Store(path) as store:
        number = 0
        for _ in range(6):
            rows = []
            for _ in range(500):
                number += 1
                facts = HoldingFacts(uid=f"{order.getrandbits(128):032x}")
                key = _key(f"gpu-{number % 8}", pod=f"pod-{order.getrandbits(40):x}")
                rows.append(_past(number, float(number), float(number + 8), key, facts))
            _write(store, *rows, watches=(CoveredSpan(1, 0.0, float(number)),))
        store.give_back()
        full = path.stat().st_size
        assert full > 1 << 19
        while store.size() > full // 4:
            cut = store.shrink()
            assert cut is not None
            assert cut.rows == 256
            store.give_back()
        left = list(store.past())
        assert {row.id for row in left} == set(range(number - len(left) + 1, number + 1))
        assert store.earliest() == min(row.high for row in left) - 1
        assert path.stat().st_size <= full // 4
        assert Path(f"{path}-wal").stat().st_size == 0


def test_spans_are_found_with_their_neighbours(store: Store) -> None:
    watches = tuple(CoveredSpan(n, 10.0 * n, 10.0 * n + 5, GapReason.DOWN) for n in range(1, 6))
    _write(store, watches=watches)
    assert store.spans(None, None) == list(watches)
    assert store.spans(31.0, 32.0)[-2:] == [watches[2], watches[3]]
    assert store.spans(36.0, 38.0)[-2:] == [watches[2], watches[3]]
    assert store.spans(None, None, limit=2) == [watches[3], watches[4]]


@pytest.mark.parametrize(
    "content",
    [
        b"this is no database, but a text that somebody put here\n" * 100,
        b"SQLite format 3\0" + b"\xff" * 8000,
        b"\0" * 8192,
    ],
)
def test_file_that_is_no_database_is_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        Store(path)


def test_foreign_and_newer_databases_are_left_alone(tmp_path: Path) -> None:
    foreign, newer = tmp_path / "foreign.db", tmp_path / "newer.db"
    with closing(sqlite3.connect(foreign)) as database:
        database.execute("CREATE TABLE t (a)")
    Store(newer).close()
    with closing(sqlite3.connect(newer)) as database:
        database.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    for path, words in ((foreign, "another program"), (newer, "a newer devicelens wrote it")):
        before = path.read_bytes()
        with pytest.raises(StoreError, match=words):
            Store(path)
        assert path.read_bytes() == before


def test_invalid_row_is_damage(store: Store) -> None:
    _write(store, HoldingRow(1, _key("a"), HoldingFacts(), Bound(1.0, 2.0, Certainty.AT_ONCE)))
    database = store._db  # pyright: ignore[reportPrivateUsage]
    for column, value in (("device", b"\x00\xff"), ("start_certainty", "nonsense"), ("start_not_after", "x")):
        database.execute("SAVEPOINT one")
        database.execute(f"UPDATE present SET {column} = ?", (value,))
        with pytest.raises(DamagedError, match=r"is invalid|expected a time"):
            store.stored()
        database.execute("ROLLBACK TO one")
        database.execute("RELEASE one")


def test_slow_query_is_interrupted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.history.store.QUERY_LIMIT", -1.0)
    monkeypatch.setattr("exporter.history.store._CHECK_EVERY", 1)
    with pytest.raises(Exception, match="it took longer than"):
        store.find(HistoryQuery())
    monkeypatch.undo()
    assert store.find(HistoryQuery())[:2] == ([], None)


@pytest.mark.parametrize(
    "text", ["", "x", "nan.1", "inf.1", "0x1p3", "0x1p3.-1", "0x1p3.x", "1.2." + "9" * 30]
)
def test_invalid_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected what an earlier answer gave as next"):
        read_cursor(text)
