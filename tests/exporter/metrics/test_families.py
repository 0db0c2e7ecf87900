"""exporter.metrics.families and process: pods, unconfirmed holders, history."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.history.archive import HistoryStatus
from exporter.mapping.dra import ChosenDevice, PodDevices
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import Container, Doubt, Holder, Snapshot
from exporter.mapping.state import State
from exporter.metrics.families import MappingFamilies, label_names
from exporter.metrics.process import HistoryFamilies
from exporter.metrics.series_limit import SeriesPlan
from harness import scene
from runtime.blocks import Block, plain
from runtime.exposition import Format

ALL = SeriesPlan(0, {})
PROMETHEUS = re.compile(r"label_[a-zA-Z0-9_]*")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["app"], ["label_app"]),
        (["app.kubernetes.io/name"], ["label_app_kubernetes_io_name"]),
        (["a-b", "3d"], ["label_a_b", "label_3d"]),
        (["camelCase", "ABTest", "aBCd"], ["label_camel_case", "label_abtest", "label_a_bcd"]),
        # Names that fall together, by their own order.
        (["foo-bar", "foo_bar"], ["label_foo_bar_conflict1", "label_foo_bar_conflict2"]),
        (["foo_bar", "foo-bar"], ["label_foo_bar_conflict2", "label_foo_bar_conflict1"]),
        (["a.b", "a-b", "a_b"], ["label_a_b_conflict2", "label_a_b_conflict1", "label_a_b_conflict3"]),
        # What is called so already keeps its name.
        (
            ["a.b", "a-b", "a_b_conflict1"],
            ["label_a_b_conflict3", "label_a_b_conflict2", "label_a_b_conflict1"],
        ),
    ],
)
def test_label_names(names: list[str], expected: list[str]) -> None:
    found = label_names(names)
    assert [found[name] for name in names] == expected


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.text("aAbB1._-/é", min_size=1, max_size=4) | st.sampled_from(["a_conflict1"]), unique=True)
)
def test_no_two_labels_have_the_same_name_and_prometheus_takes_each(names: list[str]) -> None:
    found = label_names(names)
    assert found.keys() == set(names)
    assert len(set(found.values())) == len(names)
    assert all(PROMETHEUS.fullmatch(label) for label in found.values())


def _samples(state: State, name: str) -> list[dict[str, str]]:
    """The labels of the samples of devicelens_NAME."""
    text = plain(MappingFamilies("node").of(state, ALL)).decode()
    return [
        dict(sample.labels)
        for family in parse_text(text)
        for sample in family.samples
        if sample.name == f"devicelens_{name}"
    ]


def test_pods_without_labels_have_no_series_of_labels() -> None:
    bare = PodIdentity("n", "bare", "uid-1", workload=Workload("Pod", "bare"))
    labelled = PodIdentity("n", "labelled", "uid-2", labels=(("team", "ml"),))
    state = State(pods={bare.key: bare, labelled.key: labelled})
    assert [labels["pod"] for labels in _samples(state, "pod_labels")] == ["labelled"]
    assert [labels["pod"] for labels in _samples(state, "pod_info")] == ["bare", "labelled"]
    assert _samples(State(), "pod_labels") == []


def test_holder_has_a_series_while_it_is_unconfirmed() -> None:
    missing, listed = Holder("n", "p", "c", "uid-1"), Holder("n", "q", "c")
    snapshot = scene.snapshot(scene.device("a", missing), scene.device("b", listed), scene.device("c"))
    doubt = Doubt("the kubelet may not list all pods yet", 0.0, 10.0)
    state = State(snapshot=replace(snapshot, unconfirmed={("n", "p"): doubt}))
    holder = {"namespace": "n", "pod": "p", "container": "c"}
    assert _samples(state, "device_owner_unconfirmed") == [
        {"node": "node", "resource": scene.GPU, "device": "a", **holder}
    ]
    assert _samples(State(snapshot=snapshot), "device_owner_unconfirmed") == []


def test_holder_has_the_physical_device_that_another_scheduler_chose_or_is_not_provable() -> None:
    one, two = Holder("n", "p", "c", "uid-1"), Holder("n", "q", "c", "uid-2")
    snapshot = scene.snapshot(
        scene.device("GPU-a-0", one), scene.device("GPU-a-1", two), scene.device("GPU-b::0", parent="GPU-b")
    )
    chosen = PodDevices(chosen=(ChosenDevice("HAMi", "c", "GPU-b"),))
    unreadable = PodDevices(unreadable="hami.io/vgpu-devices-allocated")
    pods = {
        ("n", "p"): PodIdentity("n", "p", "uid-1", devices=chosen),
        ("n", "q"): PodIdentity("n", "q", "uid-2", devices=unreadable),
    }
    state = State(snapshot=snapshot, pods=pods)
    owners = _samples(state, "device_owner_info")
    assert [(one["device"], one["parent"], one["pod"]) for one in owners] == [
        ("GPU-a-0", "GPU-b", "p"),
        ("GPU-a-1", "", "q"),
    ]
    holder = {"namespace": "n", "pod": "q", "container": "c"}
    assert _samples(state, "device_owner_unprovable") == [
        {"node": "node", "resource": scene.GPU, "device": "GPU-a-1", **holder}
    ]


PODS = tuple(f"pod-{number}" for number in range(200))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_kept_blocks_of_pods_equal_newly_written_ones(data: st.DataObject) -> None:
    """As pods come, go and change, whichever pods a block begins with."""
    kept = MappingFamilies("n")
    pods = {name: PodIdentity("ns", name, f"uid-{name}", labels=(("a.b", name),)) for name in PODS}
    for step in range(3):
        present = sorted(set(PODS) - data.draw(st.sets(st.sampled_from(PODS), max_size=3)))
        for name in data.draw(st.sets(st.sampled_from(PODS), max_size=2)):
            pods[name] = replace(pods[name], phase=str(step))
        containers = tuple(
            Container(Holder("ns", name, container), {"r/a": len(name)}, numa_nodes=(0,))
            for name in present
            for container in ("a", "b")
        )
        identities = {pods[name].key: pods[name] for name in present}
        state = State(snapshot=Snapshot(containers=containers), pods=identities)
        assert plain(kept.of(state, ALL)) == plain(MappingFamilies("n").of(state, ALL))


def test_a_pod_that_comes_moves_few_blocks() -> None:
    families, pods = MappingFamilies("n"), [PodIdentity("ns", name, "uid") for name in PODS]

    def blocks(found: list[PodIdentity]) -> list[Block]:
        return families.of(State(pods={pod.key: pod for pod in found}), ALL)

    before = blocks(pods)
    after = blocks([pods[0], PodIdentity("ns", "pod-0000", "uid"), *pods[1:]])
    assert len(after) > 20
    # Its own, and no more than one that it divides.
    assert len({id(block) for block in after} - {id(block) for block in before}) <= 3


def _values(condition: HistoryStatus) -> dict[str, float]:
    families = HistoryFamilies(lambda: condition).families()
    text = "".join([family.text(Format.OPENMETRICS) for family in families]) + "# EOF\n"
    found = list(parse(text))  # type: ignore[no-untyped-call] # prometheus_client leaves it so
    assert all(family.documentation.endswith("[ALPHA]") for family in found)
    return {sample.name: sample.value for family in found for sample in family.samples}


def test_every_part_of_the_condition_is_exposed() -> None:
    condition = HistoryStatus(True, 1, 2, 3, 4.5, 6, 7, 8)
    assert _values(condition) == {
        "devicelens_history_up": 1,
        "devicelens_history_pending_holdings": 1,
        "devicelens_history_holdings": 2,
        "devicelens_history_size_bytes": 3,
        "devicelens_history_earliest_timestamp_seconds": 4.5,
        "devicelens_history_errors_total": 6,
        "devicelens_history_dropped_holdings_total": 7,
        "devicelens_history_expired_holdings_total": 8,
    }


def test_history_without_polls_has_no_earliest_time() -> None:
    values = _values(HistoryStatus())
    assert values["devicelens_history_up"] == 0
    assert "devicelens_history_earliest_timestamp_seconds" not in values
