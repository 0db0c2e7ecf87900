"""exporter.mapping.identity: what people call the thing that a pod belongs to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.identity import Workload
from exporter.pods.source import NAME_LIMIT, Owner, workload

CREATED = 1_793_227_263.0  # 2026-10-28T22:41:03Z
MINUTES = int(CREATED) // 60


def _of(kind: str, name: str, group: str = "apps/v1", **labels: str) -> Workload:
    names = {name.replace("_", "-"): value for name, value in labels.items()}
    return workload("pod-1", [Owner(group, kind, name)], names, created=CREATED)


@pytest.mark.parametrize(
    ("name", "hash_label", "expected"),
    [
        ("web-7d4b9c6f5", "7d4b9c6f5", Workload("Deployment", "web")),
        ("a-b-c-7d4b9c6f5", "7d4b9c6f5", Workload("Deployment", "a-b-c")),
        ("7d4b9c6f5-7d4b9c6f5", "7d4b9c6f5", Workload("Deployment", "7d4b9c6f5")),
        # A ReplicaSet of its own, or one whose name somebody else made.
        ("web-7d4b9c6f5", "", Workload("ReplicaSet", "web-7d4b9c6f5")),
        ("web-7d4b9c6f5", "6f5", Workload("ReplicaSet", "web-7d4b9c6f5")),
        ("web", "web", Workload("ReplicaSet", "web")),
        ("-web", "web", Workload("ReplicaSet", "-web")),
        ("web-", "", Workload("ReplicaSet", "web-")),
        ("", "", Workload("ReplicaSet", "")),
        # Cut by the Deployment controller to fit: what it was called is not known any more.
        ("x" * 242 + "-7d4b9c6f55", "7d4b9c6f55", Workload("ReplicaSet", "x" * 242 + "-7d4b9c6f55")),
    ],
)
def test_a_replica_set_is_its_deployment_where_the_pods_hash_says_so(
    name: str, hash_label: str, expected: Workload
) -> None:
    assert _of("ReplicaSet", name, pod_template_hash=hash_label) == expected


def test_rollouts_have_a_hash_of_their_own_and_other_groups_replica_sets_are_not_meant() -> None:
    assert _of("ReplicaSet", "web-abc", rollouts_pod_template_hash="abc") == ("Rollout", "web")
    assert _of("ReplicaSet", "web-abc", "other.example/v1", pod_template_hash="abc") == (
        "ReplicaSet",
        "web-abc",
    )
    assert _of("ReplicaSet", "web-abc", "v1", pod_template_hash="abc") == ("ReplicaSet", "web-abc")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"backup-{MINUTES}", Workload("CronJob", "backup")),
        (f"a-b-{MINUTES - 60 * 24 * 30}", Workload("CronJob", "a-b")),
        # Before Kubernetes 1.21: in seconds.
        (f"backup-{int(CREATED) - 3}", Workload("CronJob", "backup")),
        # Dates, hashes and numbers that a person chose.
        ("train-20261028", Workload("Job", "train-20261028")),
        ("train-20261028224103", Workload("Job", "train-20261028224103")),
        (f"train-0{MINUTES}", Workload("Job", f"train-0{MINUTES}")),
        ("train-1", Workload("Job", "train-1")),
        (f"{MINUTES}", Workload("Job", f"{MINUTES}")),
        (f"-{MINUTES}", Workload("Job", f"-{MINUTES}")),
        ("train-٢٩٨٨٧١٢١", Workload("Job", "train-٢٩٨٨٧١٢١")),
        # Scheduled after the pod was made.
        (f"backup-{MINUTES + 120}", Workload("Job", f"backup-{MINUTES + 120}")),
        ("backup-", Workload("Job", "backup-")),
    ],
)
def test_a_job_is_its_cron_job_where_its_name_is_the_scheduled_time(name: str, expected: Workload) -> None:
    assert _of("Job", name, "batch/v1") == expected


def test_a_job_of_another_group_or_of_an_unknown_time_is_itself() -> None:
    name = f"backup-{MINUTES}"
    assert _of("Job", name, "batch.volcano.sh/v1alpha1") == ("Job", name)
    assert workload("p", [Owner("batch/v1", "Job", name)], {}) == ("Job", name)


def test_everything_else_is_called_by_its_own_name() -> None:
    assert _of("StatefulSet", "db") == ("StatefulSet", "db")
    assert _of("DaemonSet", "agent-7d4b9c6f5", pod_template_hash="7d4b9c6f5") == (
        "DaemonSet",
        "agent-7d4b9c6f5",
    )
    assert _of("RayCluster", "ray", "ray.io/v1") == ("RayCluster", "ray")
    assert workload("bare", [], {}) == ("Pod", "bare")
    assert workload("kube-proxy-n", [Owner("v1", "Node", "n")], {}) == ("Node", "n")
    assert workload("kube-proxy-n", [], {}, static_on="n") == ("Node", "n")


def test_the_controller_counts_and_without_one_the_only_owner() -> None:
    one, two = Owner("v1", "A", "a", controller=False), Owner("v1", "B", "b", controller=True)
    assert workload("p", [one, two], {}) == ("B", "b")
    assert workload("p", [one], {}) == ("A", "a")
    assert workload("p", [one, two._replace(controller=False)], {}) == ("Pod", "p")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=300), st.text(max_size=20), st.sampled_from(["ReplicaSet", "Job"]), st.floats(0, 4e9))
def test_no_name_is_invented(name: str, hash_label: str, kind: str, created: float) -> None:
    group = "apps/v1" if kind == "ReplicaSet" else "batch/v1"
    found = workload("p", [Owner(group, kind, name)], {"pod-template-hash": hash_label}, created=created)
    if found.kind == kind:
        assert found.name == name
    else:
        assert found.kind in {"Deployment", "CronJob"}
        assert found.name
        assert name.startswith(f"{found.name}-")
        assert len(name) < NAME_LIMIT or kind == "Job"
