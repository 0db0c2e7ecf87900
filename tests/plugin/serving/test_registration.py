from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugin.serving.context import Patience
from plugin.serving.registration import (
    LAST_RETRY,
    LAST_RETRY_REFUSED,
    Decision,
    RegistrationState,
    Step,
    decide,
    decide_by_directory,
    retry_delay,
)
from plugin.serving.sockets import SocketIdentity

OLD, NEW = SocketIdentity(1, 1, 1), SocketIdentity(1, 1, 2)
served = partial(RegistrationState, own_socket=True, kubelet=NEW)
registered = partial(served, accepted_by=NEW)
REGISTER, RENEW, WAIT = Decision(Step.REGISTER), Decision(Step.RENEW), Decision(Step.WAIT)


@pytest.mark.parametrize(
    ("state", "decision"),
    [
        # Nothing there yet.
        (RegistrationState(own_socket=True, kubelet=None), WAIT),
        # A kubelet: register at once, or when the last failure allows it.
        (served(), REGISTER),
        (served(retry_at=101.0), Decision(Step.WAIT, 101.0)),
        # An attempt that was given up may have left a stream: registering once more is harmless.
        (served(streams=1), REGISTER),
        # Registered and served.
        (registered(streams=1, had_stream=True), WAIT),
        # Registered, but no stream was opened.
        (registered(quiet_since=99.0), Decision(Step.WAIT, 104.0)),
        (registered(quiet_since=95.0), REGISTER),
        # The stream ended.
        (registered(quiet_since=99.5, had_stream=True), Decision(Step.WAIT, 100.5)),
        (registered(quiet_since=99.0, had_stream=True), REGISTER),
        # The kubelet restarted: its streams ended already, or are to be ended first.
        (served(accepted_by=OLD), REGISTER),
        (served(accepted_by=OLD, streams=1), RENEW),
        (RegistrationState(own_socket=False, kubelet=NEW, accepted_by=OLD), RENEW),
        (RegistrationState(own_socket=False, kubelet=None), RENEW),
        # The kubelet's socket is gone, its stream is not: nothing to do but wait.
        (RegistrationState(own_socket=True, kubelet=None, accepted_by=OLD, streams=1), WAIT),
        # Requested.
        (registered(streams=1, renew=True), RENEW),
    ],
)
def test_next_step_by_call(state: RegistrationState, decision: Decision) -> None:
    assert decide(state, 100.0, Patience()) == decision


identities = st.sampled_from([OLD, NEW])
states = st.builds(
    RegistrationState,
    own_socket=st.booleans(),
    kubelet=st.none() | identities,
    accepted_by=st.none() | identities,
    streams=st.integers(0, 2),
    quiet_since=st.floats(0, 100),
    had_stream=st.booleans(),
    retry_at=st.floats(0, 200),
    renew=st.booleans(),
)


@settings(max_examples=50)
@given(states)
def test_rules_of_every_step(state: RegistrationState) -> None:
    decision = decide(state, 100.0, Patience())
    if decision.step is Step.REGISTER and state.accepted_by is not None:
        assert state.streams == 0
    if decision.step is Step.WAIT:
        served = state.accepted_by == state.kubelet and state.streams > 0
        assert (decision.until is None) == (state.kubelet is None or served)
        assert decision.until is None or decision.until > 100.0


@pytest.mark.parametrize(("refused", "last"), [(False, LAST_RETRY), (True, LAST_RETRY_REFUSED)])
def test_attempts_are_quick_at_first_and_bounded_at_last(*, refused: bool, last: float) -> None:
    delays = [retry_delay(n, refused=refused) for n in range(1, 100)]
    assert delays[0] == 0.01
    assert delays == sorted(delays)
    assert delays[-1] == last
    # A kubelet that comes back within half a second is met without a long pause.
    assert sum(delays[:5]) < 0.5


@pytest.mark.parametrize(
    ("state", "now", "expected"),
    [
        (RegistrationState(own_socket=False, kubelet=NEW), 0, RENEW),
        (served(streams=1, renew=True), 0, RENEW),
        (served(streams=1), 1e9, WAIT),
        (RegistrationState(own_socket=True, kubelet=None), 1e9, WAIT),
        (served(quiet_since=10), 14, Decision(Step.WAIT, 15)),
        (served(quiet_since=10), 15, RENEW),
        (served(quiet_since=10, had_stream=True), 10.5, Decision(Step.WAIT, 11)),
        (served(quiet_since=10, renewals=2), 11, Decision(Step.WAIT, 30)),
        (served(quiet_since=10, renewals=99), 11, Decision(Step.WAIT, 70)),
        (served(refused=True, retry_at=20), 19, Decision(Step.WAIT, 20)),
        (served(refused=True, retry_at=20), 20, RENEW),
    ],
)
def test_next_step_by_directory(state: RegistrationState, now: float, expected: Decision) -> None:
    assert decide_by_directory(state, now, Patience()) == expected
