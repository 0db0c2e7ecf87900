"""exporter.history.journal: rows and their bounds, over polls, restarts and gaps."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.history.coverage import CoveredSpan, GapReason, PollRecord, PollSequence, PollTimes
from exporter.history.journal import Journal, StoredHistory
from exporter.history.record import Bound, HoldingFacts, HoldingKey, HoldingRow, Present
from exporter.history.record import present as present_of
from exporter.mapping.holdings import HoldingTracker
from exporter.mapping.identity import UNKNOWN
from exporter.mapping.model import Device, DeviceKey, Holder, Snapshot
from exporter.mapping.snapshot import build
from harness.answers import listings
from harness.lives import PATIENCE, key

DOUBT = 10.0


A, B = key("gpu-0"), key("gpu-1")
CLAIM = key("pool/gpu-0", resource="driver.example")


@dataclass
class Exporter:
    """A journal, its polls and what is written of it. `steady` and `wall` are set by hand."""

    wall: float = 1000.0
    steady: float = 1000.0
    rows: dict[int, HoldingRow] = field(default_factory=dict[int, HoldingRow])
    past: dict[int, HoldingRow] = field(default_factory=dict[int, HoldingRow])
    spans: dict[int, CoveredSpan] = field(default_factory=dict[int, CoveredSpan])

    def __post_init__(self) -> None:
        self.start()

    @property
    def stored(self) -> StoredHistory:
        """What the next process finds."""
        until = max((span.until for span in self.spans.values()), default=None)
        next_row = max([*self.rows, *self.past, 0]) + 1
        return StoredHistory(tuple(self.rows.values()), until, next_row, max([*self.spans, 0]) + 1)

    def start(self) -> None:
        """A new process."""
        self.sequence, self.journal = PollSequence(PATIENCE), Journal(DOUBT, self.stored)

    def write(self) -> None:
        pending = self.journal.pending
        self.rows.update(pending.rows)
        for number, row in pending.ended.items():
            self.rows.pop(number, None)
            self.past[number] = row
        self.spans.update(pending.spans)
        self.journal.written()

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def poll(
        self,
        found: Present,
        *,
        after: float = 5.0,
        by_event: bool = False,
        took: float = 0.01,
        unconfirmed: frozenset[HoldingKey] = frozenset(),
    ) -> PollRecord:
        """Poll so many seconds later, without writing."""
        self.pass_time(after)
        times = PollTimes(self.wall, self.wall + took, self.steady + took)
        poll = self.sequence.add(times, found, by_event=by_event, unconfirmed=unconfirmed)
        self.journal.take(poll)
        return poll

    def unchanged(self, after: float) -> None:
        """A poll without changes."""
        self.pass_time(after)
        self.journal.extend(PollTimes(self.wall, self.wall, self.steady))

    def all(self) -> list[HoldingRow]:
        found = {**self.rows, **self.past}
        return [found[number] for number in sorted(found)]

    def join(self, other: "Exporter") -> "Exporter":
        """Continue in what `other` has written."""
        self.journal.join(other.stored, self.past.values(), self.spans.values())
        joined = Exporter(rows=dict(other.rows), past=dict(other.past), spans=dict(other.spans))
        joined.journal = self.journal
        joined.write()
        return joined


def held(*keys: HoldingKey, uid: str = "") -> Present:
    return {key: (HoldingFacts(uid),) for key in keys}


_NAMES = {"A": A, "B": B, "C": CLAIM}


def _facts(key: HoldingKey, claim: str, uid: str) -> HoldingFacts:
    if key != CLAIM:
        return HoldingFacts(uid)
    return HoldingFacts(uid, claim_namespace="ns", claim=claim or "claim")


def _play(exporter: Exporter, script: str) -> None:
    """Polls, separated by bars: `-` finds nothing, `A B:u1` finds A, and B held by a pod with the uid u1,
    `C/x` a claimed device through the claim x.

    `A?`: A is unconfirmed. `+60`: so many seconds after the poll before. `event`: an allocation triggered it.
    `slow`: it took 3 s.
    Other steps: `restart`, `failure` of a poll, the `clock` is set, a poll finds the `same`.
    """
    for step in script.split(" | "):
        words = step.split()
        after = float(words.pop(0)) if words[0][1:2].isdigit() else 5.0
        match words[0]:
            case "restart":
                exporter.start()
            case "failure":
                exporter.sequence.fail()
            case "clock":
                exporter.wall += after
            case "same":
                exporter.unchanged(after)
            case _:
                doubted = frozenset(_NAMES[word[0]] for word in words if word.endswith("?"))
                found = [word.partition(":") for word in words if word[0] in _NAMES and word[-1] != "?"]
                present = {_NAMES[n[0]]: (_facts(_NAMES[n[0]], n[2:], uid),) for n, _, uid in found}
                took = 3.0 if "slow" in words else 0.01
                exporter.poll(present, after=after, by_event="event" in words, took=took, unconfirmed=doubted)
        exporter.write()


def _shown(row: HoldingRow) -> str:
    """`A:u1 from 5..10 between_polls to …`, in seconds since the exporter's start; `?`: no such poll."""

    def shown(bound: Bound) -> str:
        times = ["?" if at is None else f"{at - 1000:.2f}".rstrip("0").rstrip(".") for at in bound[:2]]
        return f"{'..'.join(times)} {bound.certainty}"

    name = next(name for name, key in _NAMES.items() if key == row.key)
    name += f"/{row.facts.claim}" if row.facts.claim not in {"", "claim"} else ""
    parts = [f"{name}:{row.facts.uid}" if row.facts.uid else name, f"from {shown(row.start)}"]
    parts += [f"to {shown(row.end)}"] if row.end is not None else []
    parts += [f"missed {shown(row.missed)}"] if row.missed is not None else []
    return " ".join([*parts, *(["assumed"] if row.assumed else [])])


ROWS = {
    # Held in the first poll.
    "A": ["A from ?..5.01 held_already"],
    # Start and end lie between two polls.
    "- | A | -": ["A from 5..10.01 between_polls to 10..15.01 between_polls"],
    # Polls within a second.
    "- | +0.5 A": ["A from 5..5.51 at_once"],
    # An allocation event narrows the start of plugin devices only.
    "- | +4 event A C": ["A from 8.25..9.01 at_once", "C from 5..9.01 between_polls"],
    # No event after a failed poll.
    "- | failure | +4 event A": ["A from 5..9.01 between_polls"],
    # No event during the poll before.
    "- | slow - | +3.1 event A": ["A from 10..13.11 between_polls"],
    # Restart.
    "- | A:u | restart | +60 A:u": ["A:u from 5..10.01 between_polls"],
    # Missing after a restart is in doubt.
    "A | A | restart | +60 B": [
        "A from ?..5.01 held_already missed 10..70.01 while_down",
        "B from 10..70.01 while_down",
    ],
    # Missing beyond the doubt has ended.
    "A | A | restart | +60 B | +11 B": [
        "A from ?..5.01 held_already to 10..70.01 while_down",
        "B from 10..70.01 while_down",
    ],
    # Polls without changes within the doubt.
    "A | restart | - | +9 same": ["A from ?..5.01 held_already missed 5..10.01 while_down"],
    # Polls without changes beyond the doubt.
    "A | restart | - | +9 same | +2 same": ["A from ?..5.01 held_already to 5..10.01 while_down"],
    # An empty first List ends no holding.
    "- | A:u B:u | restart | +3 - | +1 A:u B:u": [
        "A:u from 5..10.01 between_polls",
        "B:u from 5..10.01 between_polls",
    ],
    # The doubt ends despite repeated crashes.
    "A | restart | +2 - | restart | +4 - | restart | +4 - | restart | +4 -": [
        "A from ?..5.01 held_already to 5..7.01 while_down"
    ],
    # Another uid is another holding.
    "A:u1 | restart | +60 A:u2": [
        "A:u1 from ?..5.01 held_already to 5..65.01 while_down",
        "A:u2 from 5..65.01 while_down",
    ],
    # The same pod is assumed.
    "A | A | restart | A": ["A from ?..5.01 held_already assumed"],
    # Known uids are assumed too.
    "A:u1 B:u1 | restart | +60 A B": [
        "A:u1 from ?..5.01 held_already assumed",
        "B:u1 from ?..5.01 held_already assumed",
    ],
    # A late uid confirms or refutes.
    "A:u1 B:u1 | restart | +60 A B | +0.1 A:u1 B:u2": [
        "A:u1 from ?..5.01 held_already",
        "B:u1 from ?..5.01 held_already to 5..65.11 while_down assumed",
        "B:u2 from 5..65.11 while_down",
    ],
    # A successor is not dated by polls without a uid.
    "A:u1 | A:u1 | restart | A | restart | A:u2": [
        "A:u1 from ?..5.01 held_already to 5.01..20.01 while_down assumed",
        "A:u2 from 5.01..20.01 while_down",
    ],
    # Without a uid it may have ended at its last proof.
    "A:u1 | restart | A | restart | B | +11 B": [
        "A:u1 from ?..5.01 held_already to 5.01..26.01 while_down assumed",
        "B from 10..15.01 while_down",
    ],
    # The kubelet does not answer.
    "- | - | failure | +17 A": ["A from 10..27.01 while_silent"],
    # Unconfirmed since a kubelet restart: nothing is known of the time from the last poll that found it.
    "- | A | A?": ["A from 5..10.01 between_polls missed 10..15.01 between_polls"],
    "- | A | A? | +0.2 A? B | +2 -": [
        "A from 5..10.01 between_polls to 10..17.21 while_silent",
        "B from 15..15.21 at_once to 15.2..17.21 between_polls",
    ],
    "- | A | A? | A": ["A from 5..10.01 between_polls"],
    # The doubt after the exporter's start ends before, or after.
    "A | +2 A? | +2 -": ["A from ?..5.01 held_already to 5..9.01 while_silent"],
    "A | +8 A? | +5 A? | +4 A": ["A from ?..5.01 held_already"],
    # A successor of its name may have come meanwhile.
    "A | +11 A? | +11 A? | A": ["A from ?..5.01 held_already assumed"],
    "A:u1 | +11 A? | +11 A? | A:u1": ["A:u1 from ?..5.01 held_already"],
    # Another claim is another pod, whether polls, a gap or a restart lie between, unless the uid says no.
    "- | C/x | C/y": [
        "C/x from 5..10.01 between_polls to 10..15.01 between_polls",
        "C/y from 10..15.01 between_polls",
    ],
    "C/x:u | C/y": [
        "C/x:u from ?..5.01 held_already to 5..10.01 between_polls",
        "C/y from 5..10.01 between_polls",
    ],
    "C/x | failure | +60 C/y": [
        "C/x from ?..5.01 held_already to 5..65.01 while_silent",
        "C/y from 5..65.01 while_silent",
    ],
    "C/x | restart | +60 C/y": [
        "C/x from ?..5.01 held_already to 5..65.01 while_down",
        "C/y from 5..65.01 while_down",
    ],
    "C/x:u | C/y:u": ["C/y:u from ?..5.01 held_already"],
    "C/x | C/x:u": ["C/x:u from ?..5.01 held_already"],
    # The clock is set forward.
    "- | A | +3600 clock | -": ["A from 5..10.01 between_polls to 10..3615.01 between_polls"],
}


@pytest.mark.parametrize("script", ROWS)
def test_rows_follow_polls_restarts_and_gaps(script: str) -> None:
    exporter = Exporter()
    _play(exporter, script)
    assert [_shown(row) for row in exporter.all()] == ROWS[script]


@pytest.mark.parametrize(
    "known",
    [
        HoldingFacts("u1", "Deployment", "web", "GPU-0"),
        HoldingFacts("u1", claim_namespace="ns", claim="c", requested_as="example.com/gpu"),
    ],
)
def test_later_facts_belong_to_the_same_holding(known: HoldingFacts) -> None:
    exporter = Exporter()
    first = HoldingFacts(claim_namespace=known.claim_namespace, claim=known.claim)
    for facts in (first, known, first):
        exporter.poll({A: (facts,)})
    exporter.write()
    (row,) = exporter.all()
    assert row.facts == known
    exporter.poll({A: (known,)})
    assert exporter.journal.pending.changes == 0


def test_polls_leave_a_gap_after_too_much_time_or_a_set_clock() -> None:
    exporter = Exporter(wall=1e6)
    _play(exporter, "- | failure | +16 - | +17 - | failure | +17 - | -3600 clock | -")
    assert [span.gap for span in exporter.spans.values()] == [
        *(None, GapReason.PAUSED, GapReason.SILENT, GapReason.CLOCK)
    ]


def test_trim_drops_only_rows_never_written() -> None:
    exporter = Exporter()
    _play(exporter, "A")
    for number in range(10):
        exporter.poll(held(key(f"x{number}")))
    exporter.poll({})
    assert len(exporter.journal.pending.ended) == 11
    assert exporter.journal.trim(4) == 7
    exporter.write()
    assert [row.key.device for row in exporter.past.values()] == ["gpu-0", "x7", "x8", "x9"]
    assert exporter.spans[max(exporter.spans)].gap is GapReason.LOST


_presents = st.dictionaries(
    st.sampled_from([A, B, key("gpu-0", "q"), CLAIM]),
    st.lists(st.sampled_from(["", "u1", "u2"]), min_size=1, max_size=2, unique=True).map(
        lambda found: tuple(HoldingFacts(uid) for uid in found)
    ),
    max_size=4,
)
_acts = st.one_of(
    st.tuples(st.just("poll"), _presents, st.sampled_from([0.06, 1.0, 5.0, 30.0]), st.booleans()),
    st.tuples(st.sampled_from(["restart", "silence"]), st.floats(0.1, 100.0)),
    st.tuples(st.just("clock"), st.floats(-1e4, 1e4)),
)


@settings(max_examples=150)
@given(st.lists(_acts, max_size=25))
def test_open_rows_are_the_present_holders_through_restarts_gaps_and_clocks(
    acts: list[tuple[Any, ...]],
) -> None:
    exporter = Exporter(wall=1e6)
    shown: dict[int, HoldingRow] = {}
    for act in acts:
        match act:
            case ("poll", found, after, by_event):
                exporter.poll(found, after=after, by_event=by_event)
                exporter.write()
                _check_present(exporter, found)
            case ("restart", after):
                exporter.pass_time(after)
                exporter.start()
            case ("silence", after):
                exporter.sequence.fail()
                exporter.pass_time(after)
            case _:
                exporter.wall += act[1]
        for row in exporter.past.values():
            _check_bounds(row)
        # Nothing that ended is ever changed or lost.
        assert shown.items() <= exporter.past.items()
        shown.update(exporter.past)
        assert not exporter.rows.keys() & exporter.past.keys()
        assert all(span.since <= span.until for span in exporter.spans.values())


def _check_present(exporter: Exporter, found: Present) -> None:
    assert {row.id: row for row in exporter.journal.rows()} == exporter.rows
    rows = [row for row in exporter.rows.values() if row.missed is None]
    for name in {row.key for row in rows} | found.keys():
        known = [row.facts.uid for row in rows if row.key == name]
        facts = found.get(name, ())
        assert len(known) == len(facts)
        # A uid that is seen is a row's; one that is in doubt may be remembered.
        assert {fact.uid for fact in facts if fact.uid} <= set(known)


def _check_bounds(row: HoldingRow) -> None:
    """Each bound is in order, and so are the start and the end."""
    assert row.end is not None
    (began, seen, _), (last, gone, _) = row.start, row.end
    assert seen is not None
    assert last is not None
    assert gone is not None
    assert row.low <= seen <= gone
    assert (last if began is None else began) <= last <= gone
    assert row.low <= row.high


@settings(max_examples=15)
@given(st.lists(listings().map(lambda listed: build(listed, None)), min_size=1, max_size=5))
def test_journal_begins_and_ends_match_the_mapping(snapshots: list[Snapshot]) -> None:
    exporter, tracker = Exporter(), HoldingTracker()
    began = ended = 0
    for number, snapshot in enumerate(snapshots):
        step = tracker.advance(snapshot, float(number))
        began += len(step.change.began) if number else len(step.since)
        ended += len(step.released)
        exporter.poll(present_of(snapshot, lambda _: UNKNOWN))
        exporter.write()
    assert (len(exporter.all()), len(exporter.past)) == (began, ended)


def test_joined_run_continues_the_stored_one() -> None:
    old = Exporter()
    _play(old, "- | A:u B:u")
    new = Exporter(wall=old.wall + 60, steady=0.0)
    _play(new, "A:u C:u | A:u | A:u")
    joined = new.join(old)
    assert [_shown(row) for row in joined.all()] == [
        "A:u from 5..10.01 between_polls",
        "B:u from 5..10.01 between_polls to 10..75.01 while_down",
        "C:u from 10..75.01 while_down to 75..80.01 between_polls",
    ]
    assert [span.gap for span in joined.spans.values()] == [None, GapReason.DOWN]
    joined.sequence = new.sequence
    joined.wall, joined.steady = new.wall, new.steady
    _play(joined, "-")
    assert not joined.rows


def test_names_of_any_length_stay_distinct() -> None:
    def present(device: str) -> HoldingKey:
        holder = Holder("n", "\ud800", "c")
        (found,) = present_of(
            Snapshot((Device(DeviceKey("r", device), holders=(holder,)),)), lambda _: UNKNOWN
        )
        return found

    one, two = present("x" * 5000 + "a"), present("x" * 5000 + "b")
    assert one != two
    assert len(one.device) <= 1024
    for name in one:
        name.encode()


@settings(max_examples=150)
@given(
    st.lists(st.sets(st.sampled_from([A, B, CLAIM])), min_size=1, max_size=14),
    st.integers(0, 13),
    st.integers(0, 13),
    st.booleans(),
)
def test_two_runs_join_with_each_holding_once(
    truth: list[set[HoldingKey]], old_until: int, new_from: int, named: bool
) -> None:
    """One exporter polls from the beginning to `old_until`, another from `new_from` to the end."""
    runs: dict[HoldingKey, list[str]] = {}
    seen: set[str] = set()
    old, new = Exporter(), Exporter()
    before: set[HoldingKey] = set()
    for step, holding in enumerate(truth):
        for started in holding - before:
            names = runs.setdefault(started, [])
            names.append(f"{started.device}-{len(names)}")
        before = holding
        present: Present = {name: (HoldingFacts(runs[name][-1] if named else ""),) for name in holding}
        for exporter, polls in ((old, step <= old_until), (new, step >= new_from)):
            if polls:
                seen.update(runs[name][-1] for name in holding)
                exporter.poll(present)
                exporter.write()
            else:
                exporter.pass_time(5.0)
    joined = new.join(old)
    if new_from >= len(truth):
        # It has polled nothing: all is as the other left it.
        assert joined.rows == old.rows
        return
    assert {row.key for row in joined.rows.values()} == truth[-1]
    if named:
        assert sorted(row.facts.uid for row in joined.all()) == sorted(seen)
    for row in joined.past.values():
        _check_bounds(row)
