"""exporter.history.feed: polls that record what changed leave the same journal as polls that record all."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from exporter.history.coverage import PollRecord, PollSequence, PollTimes
from exporter.history.feed import HistoryFeed, all_holdings, changed_holdings
from exporter.history.journal import Journal, StoredHistory
from exporter.history.record import HoldingKey, HoldingRow
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import ClaimHolding, Device, DeviceKey, Doubt, Holder, PodKey, Snapshot
from exporter.mapping.state import State
from harness import scene

NODE = "worker-3"
DOUBT = 10.0
_PODS = "pq"


class _Shown(Struct, frozen=True):
    """What a state has: the pods that hold each device and that have a claimed one, q for administration, and
    which devices there are.
    """

    holders: tuple[str, ...]
    claiming: str
    claim: str
    asked: str
    uids: tuple[str, ...]
    workloads: tuple[str, ...]
    doubted: str
    parent: str
    complete: bool


def _state(shown: _Shown, last: State | None) -> State:
    uids = dict(zip(_PODS, shown.uids, strict=True))
    holders = {pod: Holder("ns", pod, "main", uids[pod]) for pod in _PODS}
    devices = [
        Device(DeviceKey("r", f"d{n}"), shown.parent, holders=tuple(holders[pod] for pod in held))
        for n, held in enumerate(shown.holders)
    ]
    through = [
        ClaimHolding(holders[pod], "ns", shown.claim, requested_as=shown.asked, admin=pod == "q" or None)
        for pod in shown.claiming
    ]
    devices.append(scene.claimed("g", *through, driver="drv", pool="pool", parent=shown.parent))
    if last is not None:
        # As SnapshotBuilder: what is unchanged is the same object.
        known = {device.key: device for device in last.snapshot.devices}
        devices = [known[one.key] if known.get(one.key) == one else one for one in devices]
    pods: dict[PodKey, PodIdentity] = {
        ("ns", pod): PodIdentity("ns", pod, uids[pod], workload=Workload("Job", name))
        for pod, name in zip(_PODS, shown.workloads, strict=True)
        if uids[pod]
    }
    doubts = {("ns", pod): Doubt("", 0.0, 1.0) for pod in shown.doubted}
    snapshot = Snapshot(tuple(devices), complete=shown.complete, unconfirmed=doubts)
    return State(snapshot=snapshot, pods=pods)


_shown = st.builds(
    _Shown,
    st.lists(st.sampled_from(["", "p", "q", "pq"]), min_size=2, max_size=3).map(tuple),
    st.sampled_from(["", "p", "q", "pq"]),
    st.sampled_from(["mine", "mine", "other"]),
    st.sampled_from(["", "", "x/gpu"]),
    st.tuples(*[st.sampled_from(["", "u1", "u2"])] * 2),
    st.tuples(*[st.sampled_from(["web", "train"])] * 2),
    st.sampled_from(["", "", "", "p"]),
    st.sampled_from(["", "", "GPU-0"]),
    st.booleans(),
)


@settings(max_examples=80)
@given(_shown, _shown)
def test_a_step_leads_from_all_holdings_to_all_holdings(one: _Shown, other: _Shown) -> None:
    before = _state(one, None)
    after = _state(other, before)
    changed = changed_holdings(before, after, NODE)
    if changed is None:
        assert one.doubted or other.doubted or len(one.holders) != len(other.holders)
        return
    found = {**all_holdings(before, NODE), **changed}
    assert {key: facts for key, facts in found.items() if facts} == all_holdings(after, NODE)


def test_an_administrator_is_never_a_holder() -> None:
    one = _Shown(("p", ""), "pq", "mine", "x/gpu", ("", ""), ("web", "train"), "", "", complete=True)
    found = all_holdings(_state(one, None), NODE)
    assert {key.pod for key in found} == {"p"}
    (facts,) = found[HoldingKey("drv", "pool/g", "ns", "p", "main")]
    assert (facts.claim_namespace, facts.claim, facts.requested_as) == ("ns", "mine", "x/gpu")


def test_of_several_claims_the_first_that_is_not_for_administration_is_recorded() -> None:
    holder = Holder("ns", "p", "main")
    claims = [
        ClaimHolding(holder, "ns", "a", "", "r", "admin.example", admin=True),
        ClaimHolding(holder, "ns", "b", "share-2", "r", ""),
        ClaimHolding(holder, "ns", "c", "share-1", "r", "x/gpu"),
    ]
    state = State(snapshot=Snapshot((scene.claimed("g", *claims),)))
    ((facts,),) = all_holdings(state, NODE).values()
    assert facts[5:] == ("ns", "b", "share-2", "x/gpu")


def test_a_holder_through_a_plugin_of_a_device_that_is_also_claimed_has_no_claim() -> None:
    one, other = Holder("ns", "p", "main"), Holder("ns", "q", "main")
    both = replace(scene.claimed("g", ClaimHolding(one, "ns", "mine"), pool="node-1"), holders=(one, other))
    found = all_holdings(State(snapshot=Snapshot((both,))), NODE)
    assert {key.pod: [facts.claim for facts in known] for key, known in found.items()} == {
        "p": ["mine"],
        "q": [""],
    }


def test_a_step_has_only_what_changed() -> None:
    one = _Shown(("p", "q"), "pq", "mine", "", ("u1", "u2"), ("web", "train"), "", "", complete=True)
    before = _state(one, None)
    for other, devices in (
        (replace(one, holders=("p", "")), {"d1"}),
        (replace(one, uids=("u1", "u3")), {"d1", "pool/g"}),
        (replace(one, workloads=("train", "train")), {"d0", "pool/g"}),
        (replace(one, claiming=""), {"pool/g"}),
        (replace(one, asked="x/gpu"), {"pool/g"}),
        (replace(one, claim="other"), {"pool/g"}),
        (replace(one, complete=False), set[str]()),
    ):
        changed = changed_holdings(before, _state(other, before), NODE)
        assert changed is not None
        assert {key.device for key in changed} == devices


class _Process:
    """A journal that is fed polls; `steps`: with what changed, as the recorder feeds them."""

    def __init__(self, *, steps: bool) -> None:
        self._steps = steps
        self.rows: dict[int, HoldingRow] = {}
        self.past: list[HoldingRow] = []
        self.until: float | None = None
        self.start()

    def start(self) -> None:
        numbers = (max([*self.rows, *(row.id for row in self.past), 0]) + 1, 1)
        self.journal = Journal(DOUBT, StoredHistory(tuple(self.rows.values()), self.until, *numbers))
        self.feed = HistoryFeed(NODE)

    def take(self, poll: PollRecord, state: State) -> None:
        if not self._steps:
            self.feed.forget()
        self.journal.take(self.feed.filled(poll, state))
        self._write()

    def lose(self, poll: PollRecord, state: State) -> None:
        """The thread fails with a poll in hand."""
        self.feed.filled(poll, state)
        self.feed.forget()

    def extend(self, times: PollTimes) -> None:
        self.journal.extend(times)
        self._write()

    def _write(self) -> None:
        pending = self.journal.pending
        self.rows |= pending.rows
        for number, row in pending.ended.items():
            self.rows.pop(number, None)
            self.past.append(row)
        self.until = self.journal.span.until if self.journal.span else None
        self.journal.written()

    @property
    def shown(self) -> tuple[list[HoldingRow], list[HoldingRow], object]:
        """Everything but the numbers of rows."""
        rows = [
            sorted((replace(row, id=0) for row in found), key=repr)
            for found in (self.rows.values(), self.past)
        ]
        return rows[0], rows[1], self.journal.span


class _Play:
    """Two processes that see the same polls; one is fed steps."""

    def __init__(self) -> None:
        self.processes = [_Process(steps=True), _Process(steps=False)]
        self.clock = 1000.0
        self.state: State | None = None
        self.restart()

    def restart(self) -> None:
        self.sequence = PollSequence(16.0)
        self.merged: PollRecord | None = None
        for process in self.processes:
            process.start()

    @property
    def times(self) -> PollTimes:
        return PollTimes(self.clock, self.clock + 0.01, self.clock + 0.01)

    def poll(self, act: str, shown: _Shown) -> None:
        state = self.state = _state(shown, self.state)
        poll = self.sequence.again() if act == "again" else self.sequence.add(self.times, by_event=False)
        if poll is None:
            return
        if self.merged is not None:
            poll = replace(poll, before=self.merged.before, gap=self.merged.gap or poll.gap)
        self.merged = poll if act == "merged" else None
        for process in self.processes if act != "merged" else ():
            (process.lose if act == "lost" else process.take)(poll, state)

    def same(self) -> None:
        last = self.sequence.last
        if last is None or self.merged is not None or self.clock - last.answered >= 16.0:
            return
        self.sequence.add(self.times, by_event=False)
        for process in self.processes:
            process.extend(self.times)


_acts = st.one_of(
    st.tuples(st.sampled_from(["poll", "poll", "poll", "again", "merged", "lost"]), _shown),
    st.tuples(st.sampled_from(["same", "silence", "restart"]), st.none()),
)


def _holding(*holders: str, uid: str = "") -> _Shown:
    return _Shown(holders, "", "mine", "", (uid, uid), ("web", "web"), "", "", complete=True)


_NONE, _ONE = ("poll", _holding("", "")), ("poll", _holding("p", ""))
_OTHER = ("poll", _holding("", "q"))


@settings(max_examples=80)
@example([(_ONE, 1.0), (_ONE, 30.0), (("poll", _holding("p", "q")), 1.0)])
@example(
    # Missing in one process after the other: it ends within the doubt of the last.
    [
        (_ONE, 1.0),
        (("restart", None), 1.0),
        (_NONE, 1.0),
        (("restart", None), 1.0),
        (_NONE, 4.0),
        (_OTHER, 8.0),
    ]
)
@given(st.lists(st.tuples(_acts, st.sampled_from([0.05, 1.0, 4.0, 30.0])), max_size=15))
def test_feeding_steps_leaves_the_journal_of_feeding_all(
    acts: list[tuple[tuple[str, _Shown | None], float]],
) -> None:
    """Through gaps, restarts, lost and merged polls, and pods in doubt."""
    play = _Play()
    for (act, shown), after in acts:
        play.clock += after
        if shown is not None:
            play.poll(act, shown)
        elif act == "same":
            play.same()
        elif act == "silence":
            play.sequence.fail()
        else:
            play.restart()
        assert play.processes[0].shown == play.processes[1].shown
