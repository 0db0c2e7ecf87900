"""exporter.views.bodies: whole lists made in blocks equal those made at once, and a change makes few anew."""
# pyright: reportPrivateUsage=false

import gzip
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.mapping.device_status import device_statuses
from exporter.mapping.holdings import HoldingTracker
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import NO_REPORTS, ClaimHolding, Holder
from exporter.mapping.state import Moment, State
from exporter.views import bodies, documents
from exporter.views.bodies import LATELY, ListBodies
from exporter.views.encoding import encode, list_items
from harness import scene

DEVICES = [(resource, str(number)) for resource in ("a/a", "a/b") for number in range(70)]
_PODS: Mapping[tuple[str, str], PodIdentity] = {
    ("n", pod): PodIdentity("n", pod, "uid", "Running", Workload("Job", pod)) for pod in ("p1", "p\ud800")
}
STEP = st.fixed_dictionaries(
    {
        "held": st.dictionaries(
            st.sampled_from(DEVICES), st.sampled_from(["p1", "p2", "p\ud800"]), max_size=8
        ),
        "claimed": st.sets(st.sampled_from(["p1", "q"])),
        "gone": st.integers(0, 140),
        "identified": st.booleans(),
    }
)


class States:
    """States that share what did not change, as those of refreshes."""

    def __init__(self) -> None:
        self._holdings = HoldingTracker()
        self._last = State()

    def next(self, step: Mapping[str, Any]) -> State:
        """The state after one more refresh."""
        known = {device.key: device for device in self._last.snapshot.devices}
        made = [
            scene.device(name, *self._holders(step["held"].get((resource, name))), resource=resource)
            for number, (resource, name) in enumerate(DEVICES)
            if number != step["gone"]
        ]
        through = [ClaimHolding(Holder("n", pod, "main"), "n", "wish") for pod in sorted(step["claimed"])]
        made += [scene.claimed("gpu-0", *through)] if through else []
        snapshot = scene.snapshot(*[known[one.key] if known.get(one.key) == one else one for one in made])
        self._holdings.advance(snapshot, 1.0)
        parts = (snapshot, self._holdings.since, _PODS if step["identified"] else {}, NO_REPORTS)
        self._last = State(
            *(self._last.generation + 1, snapshot, scene.START),
            since=parts[1],
            pods=parts[2],
            statuses=device_statuses(*parts, self._last.statuses),
        )
        return self._last

    @staticmethod
    def _holders(pod: str | None) -> tuple[Holder, ...]:
        return () if pod is None else (Holder("n", pod, "main"),)


def _moment(state: State) -> Moment:
    return Moment(state, "worker-3", scene.START + 2.5, 60.0)


MAKE: Mapping[str, Callable[[Moment], msgspec.Struct]] = {
    "devices": documents.devices,
    "pods": documents.pods,
}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(STEP, min_size=1, max_size=5))
def test_a_body_of_blocks_is_the_document(steps: list[dict[str, Any]]) -> None:
    states, found = States(), ListBodies()
    for step in steps:
        state = states.next(step)
        moment = _moment(state)
        for name, make in MAKE.items():
            whole = found.find(name)
            assert whole is not None
            body, expected = whole.made(state), encode(make(moment))
            assert b"".join(body.text(moment)) == expected
            assert gzip.decompress(b"".join(body.gzipped(moment))) == expected
            assert whole.ready(state) is body


def _node(pods: int) -> dict[str, Any]:
    return {
        "held": {DEVICES[number]: f"pod-{number:03}" for number in range(pods)},
        "claimed": set[str](),
        "gone": 999,
        "identified": False,
    }


@pytest.mark.parametrize("name", MAKE)
def test_a_pod_that_comes_makes_few_items_anew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[object]()

    def written(items: Sequence[msgspec.Struct]) -> bytes:
        made.extend(items)
        return list_items(items)

    monkeypatch.setattr(bodies, "list_items", written)
    states, whole = States(), ListBodies().find(name)
    assert whole is not None
    whole.made(states.next(_node(139)))
    assert len(made) >= 139
    made.clear()
    whole.made(states.next(_node(140)))
    assert 0 < len(made) < 70
    made.clear()
    state = states.next(_node(140))
    whole.made(replace(state, generation=9, taken_at=5.0, anomalies=()))
    assert made == [], "nothing of them changed"


def test_only_what_was_asked_for_lately_is_made() -> None:
    clock = SimpleNamespace(now=0.0)
    found, states = ListBodies(lambda: clock.now), States()
    first, second, third = (states.next(_node(pods)) for pods in (1, 2, 3))

    def ready(name: str, state: State) -> bool:
        return found._lists[name].ready(state) is not None

    found.prepare(first)
    assert not ready("devices", first)
    assert found.find("claims") is None
    found.find("devices")
    clock.now += LATELY
    found.prepare(second)
    assert (ready("devices", second), ready("pods", second)) == (True, False)
    clock.now += 0.1
    found.prepare(third)
    assert not ready("devices", third)
    assert not ready("devices", second), "its memory is free"


def test_pods_are_those_of_the_state_though_a_refresh_goes_on_meanwhile() -> None:
    refresh = list[Callable[[], object]]()

    class Interrupted(ListBodies):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_pods" and refresh:
                refresh.pop()()

    clock, states = SimpleNamespace(now=0.0), States()
    found, first, second = Interrupted(lambda: clock.now), states.next(_node(3)), states.next(_node(5))
    whole = found.find("pods")
    assert whole is not None

    def forget() -> None:
        clock.now += LATELY + 1
        found.prepare(second)

    for meanwhile in (lambda: whole.made(second), forget):
        whole.forget()
        refresh.append(meanwhile)
        body = whole.made(first)
        assert not refresh
        assert b"".join(body.text(_moment(first))) == encode(documents.pods(_moment(first)))


def test_a_body_that_is_very_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "KEPT_BYTES", 1000)
    whole, state = ListBodies().find("devices"), States().next(_node(5))
    assert whole is not None
    body = whole.made(state)
    assert b"".join(body.text(_moment(state))) == encode(documents.devices(_moment(state)))
    assert whole.ready(state) is None
