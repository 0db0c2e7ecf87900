"""exporter.metrics.families: labels' names as kube-state-metrics has them."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.state import State
from exporter.metrics.families import label_names, pod_info, pod_labels

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


@settings(max_examples=300, deadline=None, derandomize=True)
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
