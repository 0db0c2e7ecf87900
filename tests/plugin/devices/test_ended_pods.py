"""A pod has ended when its kubelet shows it, and only then."""

from collections.abc import Mapping

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plugin.devices.device import Holding
from plugin.devices.ended_pods import SETTLED, EndedPods, ListAnswer

R = "a.b/c"
A: Mapping[str, frozenset[Holding]] = {"uid-a": frozenset({(R, "a")})}


def answer(*held: str, at: float, kubelet: int = 1, synced: bool = True) -> ListAnswer:
    return ListAnswer({R: frozenset(held)}, (kubelet, kubelet), synced, at)


def test_a_pod_has_ended_after_two_answers_without_it() -> None:
    pods = EndedPods()
    pods.observe(A, answer("a", at=0))
    pods.observe(A, answer(at=SETTLED))
    assert pods.listed == {"uid-a"}
    assert pods.ended == frozenset()
    pods.observe(A, answer(at=SETTLED + 1))
    assert pods.ended == {"uid-a"}
    # The checkpoint forgets the pod, and so does this.
    pods.observe({}, answer(at=SETTLED + 2))
    assert pods.listed == frozenset()
    assert pods.ended == frozenset()


def test_an_answer_with_the_pod_counts_anew() -> None:
    pods = EndedPods()
    for at, held in enumerate([("a",), (), ("a",), ()]):
        pods.observe(A, answer(*held, at=at * SETTLED))
    assert pods.ended == frozenset()


def test_a_pod_that_list_never_named_may_hold_devices_of_an_init_container() -> None:
    pods = EndedPods()
    for at in range(5):
        pods.observe(A, answer(at=at * SETTLED))
    assert pods.ended == frozenset()


def test_a_pod_ends_with_all_its_devices() -> None:
    assigned = {"uid-a": frozenset({(R, "a"), ("a.b/init", "i")})}
    pods = EndedPods()
    pods.observe(assigned, answer("a", at=0))
    for at in (1, 2):
        pods.observe(assigned, answer(at=at * SETTLED))
    assert pods.ended == {"uid-a"}


def test_a_device_that_went_to_another_pod_says_nothing_of_that_pod() -> None:
    pods = EndedPods()
    pods.observe(A, answer("a", at=0))
    for at in (1, 2):  # an ordinary init container has it now
        pods.observe({"uid-b": A["uid-a"]}, answer(at=at * SETTLED))
    assert pods.ended == frozenset()


def test_a_restarted_kubelet_settles_first() -> None:
    pods = EndedPods()
    pods.observe(A, answer("a", at=0))
    for after in (0.0, 1.0, SETTLED - 1):
        pods.observe(A, answer(at=1000 + after, kubelet=2))
    assert pods.ended == frozenset()
    # Without the API server only static pods are listed.
    for after in (SETTLED, 10 * SETTLED):
        pods.observe(A, answer(at=2000 + after, kubelet=3, synced=False))
    assert pods.ended == frozenset()
    for after in (0, 1):
        pods.observe(A, answer(at=3000 + after, kubelet=3))
    assert pods.ended == {"uid-a"}


def test_an_answer_between_two_kubelets_proves_nothing() -> None:
    pods = EndedPods()
    pods.observe(A, answer("a", at=0))
    for at in (1, 2, 3):
        pods.observe(A, ListAnswer({}, None, synced=True, at=at * SETTLED))
    assert pods.ended == frozenset()


class Kubelet(RuleBasedStateMachine):
    """Pods come, hold devices in an ordinary init container or in an app container, and end."""

    def __init__(self) -> None:
        super().__init__()
        self.pods = EndedPods()
        self.now, self.life, self.synced, self.count = 0.0, 1, True, 0
        self.running: dict[str, tuple[str, bool]] = {}
        self.checkpoint: dict[str, frozenset[Holding]] = {}

    @rule(device=st.sampled_from("abc"), init=st.booleans())
    def allocate(self, device: str, init: bool) -> None:
        if self.synced and device not in {held for held, _ in self.running.values()}:
            self.count += 1
            uid = f"uid-{self.count}"
            self.running[uid] = (device, init)
            self.checkpoint = {u: frozenset({(R, held)}) for u, (held, _) in self.running.items()}

    @rule(which=st.integers(0, 2))
    @precondition(lambda self: self.running)
    def end(self, which: int) -> None:
        del self.running[sorted(self.running)[which % len(self.running)]]

    @rule()
    def restart(self) -> None:
        self.life += 1
        self.synced = False

    @rule()
    def sync(self) -> None:
        self.synced = True

    @rule(seconds=st.sampled_from([1.0, SETTLED / 2, SETTLED]), device=st.sampled_from("abc"))
    def ask(self, seconds: float, device: str) -> None:
        self.now += seconds
        before = dict(self.checkpoint)
        self.allocate(device, init=False)  # between the two reads
        held = {d for d, init in self.running.values() if self.synced and not init}
        self.pods.observe(before, answer(*held, at=self.now, kubelet=self.life, synced=self.synced))

    @invariant()
    def none_that_runs_has_ended(self) -> None:
        assert self.pods.ended.isdisjoint(self.running)


TestKubelet = Kubelet.TestCase
