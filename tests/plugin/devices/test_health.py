"""Health by counts in a row, faults by quiet time, and flapping."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugin.config.compile import compile_template
from plugin.config.plan import ExistsCheck, ProbePlan, XidCheck
from plugin.devices.device import Device
from plugin.devices.health import (
    FALLS,
    LONGEST_QUIET,
    LONGEST_REASON,
    SHORTEST_QUIET,
    WINDOW,
    HealthTracker,
    concerns,
)
from plugin.discovery.source import Fault, Found

NOT_YET = "health[0].exists: has not succeeded yet"
PATH = compile_template("/x", frozenset(), frozenset())


def probe(failures: int = 1, successes: int = 1, initial: bool | None = None) -> ProbePlan:
    return ProbePlan(
        ExistsCheck(PATH), "health[0].exists", failures=failures, successes=successes, initial=initial
    )


def xid(quiet: float = 60.0) -> ProbePlan:
    return ProbePlan(XidCheck(frozenset({13}), quiet), "health[0].xid")


def known(*probes: ProbePlan) -> HealthTracker:
    health = HealthTracker(probes)
    health.survey({"a"}, 0.0)
    return health


def waits_until(health: HealthTracker) -> float | None:
    """When it is due. A function, as type checkers narrow the property."""
    return health.due


def test_without_probes_every_device_is_well() -> None:
    health = HealthTracker(())
    health.survey({"a"}, 0.0)
    assert health.reason("a") == ""
    assert health.due is None


@pytest.mark.parametrize(
    ("settings", "answers", "reasons"),
    [
        (probe(failures=3, successes=3), ["bad"], [None, "bad"]),
        (probe(failures=3, successes=3), [""], [None, ""]),
        (
            probe(failures=3, successes=2),
            ["", "x", "x", "", "x", "x", "y", "", "z", "", ""],
            [None, "", "", "", "", "", "", "y", "y", "z", "z", ""],
        ),
        (probe(failures=2, initial=True), ["x", "x"], ["", "", "x"]),
        (probe(successes=2, initial=False), ["", ""], [NOT_YET, NOT_YET, ""]),
        (probe(), ["x" * 1000], [None, "x" * LONGEST_REASON]),
    ],
)
def test_answers_in_a_row(settings: ProbePlan, answers: list[str], reasons: list[str | None]) -> None:
    health = known(settings)
    found = [health.reason("a")]
    for answer in answers:
        changed = health.answer("a", 0, answer, 0.0)
        assert changed is (health.reason("a") != found[-1])
        found.append(health.reason("a"))
    assert found == reasons


def test_the_first_failing_probe_is_the_reason() -> None:
    health = known(probe(), probe(), probe(initial=True))
    health.answer("a", 1, "", 0.0)
    assert health.reason("a") is None
    health.answer("a", 2, "third", 0.0)
    assert health.reason("a") == "third"
    health.answer("a", 0, "first", 0.0)
    assert health.reason("a") == "first"
    health.answer("a", 0, "", 0.0)
    health.answer("a", 2, "", 0.0)
    assert health.reason("a") == ""


def test_a_device_that_comes_back_is_probed_again_and_late_answers_are_ignored() -> None:
    health = known(probe())
    health.answer("a", 0, "bad", 0.0)
    health.survey(set(), 1.0)
    assert health.reason("a") is None
    assert not health.answer("a", 0, "", 1.0)
    assert not health.answer("never", 0, "", 1.0)
    health.survey({"a"}, 2.0)
    assert health.reason("a") is None
    health.answer("a", 0, "", 2.0)
    assert health.reason("a") == ""


@pytest.mark.parametrize(
    ("first", "then", "changes"),
    [
        ("/x: found '95123', expected at most 90000", "/x: found '101000', expected at most 90000", False),
        ("/bin/x: status 1: 95.25 C", "/bin/x: status 1: 96 C", False),
        ("/bin/x: status 1: 95 C", "/bin/x: status 2: 95 C", True),
        ("http://x/: status 503", "http://x/: status 404", True),
        ("/x: found '95123', expected at most 90000", "/x is not there", True),
    ],
)
def test_a_reason_that_differs_in_a_number_alone_stays(first: str, then: str, changes: bool) -> None:
    health = known(probe())
    health.answer("a", 0, first, 0.0)
    assert health.answer("a", 0, then, 1.0) is changes
    assert health.reason("a") == (then if changes else first)
    health.answer("a", 0, "", 2.0)
    health.answer("a", 0, then, 3.0)
    assert health.reason("a") == then


GPU = Device(
    "MIG-1",
    "gpu0",
    attrs={"uuid": "MIG-1", "gpu_uuid": "GPU-1"},
    found=Found("gpu0", claim="pci:0000:3b:00.0"),
)


def test_a_fault_concerns_a_device_by_its_claim_id_name_or_attributes() -> None:
    for subjects in ((), ("MIG-1",), ("GPU-1",), ("pci:0000:3b:00.0", "x"), ("gpu0",)):
        assert concerns(Fault(frozenset(subjects), 79, "", 0.0), GPU)
    assert not concerns(Fault(frozenset({"GPU-2"}), 79, "", 0.0), GPU)


def test_a_fault_lasts_until_it_has_been_quiet_for_long_enough() -> None:
    health = HealthTracker((xid(), probe()))
    health.survey({GPU.id}, 0.0)
    assert health.reason(GPU.id) is None  # the other probe has not answered
    health.answer(GPU.id, 1, "", 0.0)
    assert health.reason(GPU.id) == ""
    assert not health.fault(GPU, Fault(frozenset(), 13, "an application's own", 5.0), 5.0)
    assert waits_until(health) is None
    assert health.fault(GPU, Fault(frozenset(), 79, "XID 79", 10.0), 10.0)
    assert not health.fault(GPU, Fault(frozenset(), 79, "XID 79", 30.0), 30.0)
    assert waits_until(health) == 90.0
    assert health.advance(89.9) == ()
    assert health.reason(GPU.id) == "XID 79"
    assert health.advance(90.0) == (GPU.id,)
    assert health.reason(GPU.id) == ""
    assert health.due is None
    assert not health.fault(Device("other", "other"), Fault(frozenset(), 79, "", 91.0), 91.0)


def flap(health: HealthTracker, times: int, start: float, pause: float) -> float:
    """Fail and recover so many times; returns the time of the last recovery."""
    for n in range(times):
        health.answer("a", 0, f"bad {n}", start + n * pause)
        health.answer("a", 0, "", start + n * pause + pause / 2)
    return start + (times - 1) * pause + pause / 2


def test_a_device_that_fails_again_and_again_is_held_with_its_last_reason() -> None:
    health = known(probe())
    health.answer("a", 0, "", 0.0)
    well = flap(health, FALLS - 1, 100.0, 5.0)
    assert (health.reason("a"), health.flaps) == ("", 0)
    well = flap(health, 1, well + 2.5, 5.0)
    assert health.reason("a") == "flapping: failed 5 times within 20 s, the last time: bad 0"
    assert (health.flaps, health.due) == (1, well + 20.0)
    assert health.advance(well + 20.0) == ("a",)
    # What it did is not forgotten: once more within the time, and it is held again.
    health.answer("a", 0, "again", well + 60.0)
    assert health.flaps == 2


def test_going_away_does_not_make_a_flapping_device_forgotten() -> None:
    health = known(probe())
    health.answer("a", 0, "", 0.0)
    well = flap(health, FALLS, 1.0, 1.0)
    health.survey(set(), well + 1)
    health.survey({"a"}, well + 2)
    health.answer("a", 0, "", well + 2)
    assert health.reason("a") == "flapping: failed 5 times within 4 s, the last time: bad 4"
    health.survey(set(), well + 3)
    assert health.due == well + SHORTEST_QUIET
    health.advance(well + SHORTEST_QUIET)
    assert health.due == 5.0 + WINDOW
    health.advance(5.0 + WINDOW)
    # Then there is nothing to remember it by.
    assert health.due is None


@dataclass
class Model:
    """The expected health of a device, from its whole history."""

    falls: list[float] = field(default_factory=list[float])
    well: bool = True
    rose: float = 0.0
    held: bool = False

    def answer(self, well: bool, now: float) -> None:
        self.settle(now)
        if not well and self.well:
            self.falls.append(now)
            recent = self.falls[-FALLS:]
            self.held = self.held or (len(recent) == FALLS and recent[-1] - recent[0] <= WINDOW)
        if well and not self.well:
            self.rose = now
        self.well = well

    def settle(self, now: float) -> None:
        if self.held and self.well:
            recent = self.falls[-FALLS:]
            quiet = min(max(recent[-1] - recent[0], SHORTEST_QUIET), LONGEST_QUIET)
            self.held = now < self.rose + quiet


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.5, 5.0, 9.0, 60.0, 74.0, 299.0])), max_size=60)
)
def test_flapping_is_held_and_let_go_as_its_history_asks_for(steps: list[tuple[bool, float]]) -> None:
    health, model, now = known(probe()), Model(), 0.0
    health.answer("a", 0, "", now)
    for well, pause in steps:
        now += pause
        health.advance(now)
        health.answer("a", 0, "" if well else "bad", now)
        model.answer(well, now)
        reason = health.reason("a")
        assert reason is not None
        assert reason.startswith("flapping") == model.held
        assert bool(reason) == (model.held or not well)
        assert health.due is None or health.due > now
        assert (health.due is not None) == (model.held and well)
