"""exporter.metrics.families: pods and history."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from exporter.history.archive import HistoryStatus
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import Doubt, Holder
from exporter.mapping.state import State
from exporter.metrics.devices import SeriesPlan
from exporter.metrics.families import HistoryFamilies, label_names, owner_unconfirmed, pod_info, pod_labels
from harness import scene
from runtime.exposition import EMPTY, Format, assemble

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


def test_pods_without_labels_have_no_series_of_labels() -> None:
    bare = PodIdentity("n", "bare", "uid-1", workload=Workload("Pod", "bare"))
    labelled = PodIdentity("n", "labelled", "uid-2", labels=(("team", "ml"),))
    state = State(pods={bare.key: bare, labelled.key: labelled})
    assert [sample.labels["pod"] for sample in pod_labels(state, "node").samples] == ["labelled"]
    assert [sample.labels["pod"] for sample in pod_info(state, "node").samples] == ["bare", "labelled"]
    assert pod_labels(State(), "node").samples == []


def test_holder_has_a_series_while_it_is_unconfirmed() -> None:
    missing, listed = Holder("n", "p", "c", "uid-1"), Holder("n", "q", "c")
    snapshot = scene.snapshot(scene.device("a", missing), scene.device("b", listed), scene.device("c"))
    doubt = Doubt("the kubelet may not list all pods yet", 0.0, 10.0)
    found = owner_unconfirmed(State(snapshot=replace(snapshot, unconfirmed={("n", "p"): doubt})), "node", ALL)
    assert [(sample.labels, sample.value) for sample in found.samples] == [
        (
            {
                "node": "node",
                "resource": scene.GPU,
                "device": "a",
                "namespace": "n",
                "pod": "p",
                "container": "c",
            },
            1,
        )
    ]
    assert owner_unconfirmed(State(snapshot=snapshot), "node", ALL).samples == []


def _values(condition: HistoryStatus) -> dict[str, float]:
    text = assemble(EMPTY, HistoryFamilies(lambda: condition), Format.OPENMETRICS, compress=False).decode()
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
