"""exporter.pods.source: identities and workloads of pods."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.identity import UNKNOWN, Workload
from exporter.pods.source import (
    LABELS_LIMIT,
    NAME_LIMIT,
    ApiPod,
    LabelFilter,
    Owner,
    of_message,
    of_object,
    workload,
)
from kubelet.pb.core.v1 import pod_pb2
from runtime.patterns import compiled

NONE = LabelFilter(None)


def _message(**changes: object) -> pod_pb2.Pod:
    pod = pod_pb2.Pod(
        metadata=pod_pb2.ObjectMeta(
            name="web-1",
            namespace="n",
            uid="uid-1",
            creationTimestamp=pod_pb2.Time(seconds=1_793_227_263),
            labels={"app": "web", "pod-template-hash": "abc", "team": "x"},
            ownerReferences=[
                pod_pb2.OwnerReference(
                    kind="ReplicaSet", name="web-abc", apiVersion="apps/v1", controller=True
                )
            ],
        ),
        spec=pod_pb2.PodSpec(nodeName="node-1", priorityClassName="high"),
        status=pod_pb2.PodStatus(phase="Running"),
    )
    pod.MergeFrom(pod_pb2.Pod(**changes))  # type: ignore[arg-type] # fields as they are called
    return pod


OBJECT = """{
  "apiVersion": "v1", "kind": "Pod",
  "metadata": {
    "name": "web-1", "namespace": "n", "uid": "uid-1", "resourceVersion": "17",
    "creationTimestamp": "2026-10-28T22:41:03Z",
    "labels": {"app": "web", "pod-template-hash": "abc", "team": "x"},
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-abc", "uid": "o",
                         "controller": true, "blockOwnerDeletion": true}]
  },
  "spec": {"nodeName": "node-1", "priorityClassName": "high", "containers": [{"name": "c"}]},
  "status": {"phase": "Running", "startTime": "2026-10-28T22:41:04Z", "conditions": null}
}"""


def _object(text: str = OBJECT) -> ApiPod:
    return msgspec.json.decode(text, type=ApiPod)


def test_both_sources_give_the_same_identity() -> None:
    allowed = LabelFilter(compiled("app|team"))
    identity = of_message(_message(), allowed)
    assert identity is not None
    assert identity.key == ("n", "web-1")
    assert (identity.uid, identity.phase, identity.priority_class) == ("uid-1", "Running", "high")
    assert identity.workload == Workload("Deployment", "web")
    assert identity.labels == (("app", "web"), ("team", "x"))
    assert of_object(_object(), allowed) == identity


def test_labels_match_by_whole_name() -> None:
    labels = {"app": "1", "app.kubernetes.io/name": "2", "application": "3"}
    assert NONE(labels) == ()
    assert LabelFilter(compiled("app"))(labels) == (("app", "1"),)
    assert LabelFilter(compiled(r"app(\\.kubernetes\\.io/.*)?".replace("\\\\", "\\")))(labels) == (
        ("app", "1"),
        ("app.kubernetes.io/name", "2"),
    )
    everything = LabelFilter(compiled(".*"))
    assert len(everything({f"l{n}": "v" for n in range(1000)})) == LABELS_LIMIT
    assert everything({"x" * 400: "v", "y": "v" * 64, "z": "v"}) == (("z", "v"),)


def test_static_pod_has_its_node_as_workload_and_the_kubelets_uid() -> None:
    meta = pod_pb2.ObjectMeta(
        name="proxy-node-1",
        namespace="n",
        uid="0123abcd",
        annotations={"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "0123abcd"},
    )
    static = of_message(pod_pb2.Pod(metadata=meta, spec=pod_pb2.PodSpec(nodeName="node-1")), NONE)
    assert static is not None
    assert (static.static, static.workload) == (True, ("Node", "node-1"))
    mirror = _object()
    mirror.metadata.uid = "11111111-2222"
    mirror.metadata.name = "proxy-node-1"
    mirror.metadata.annotations = {
        "kubernetes.io/config.mirror": "0123abcd",
        "kubernetes.io/config.source": "file",
    }
    seen = of_object(mirror, NONE)
    assert seen is not None
    assert (seen.uid, seen.static, seen.workload) == ("0123abcd", True, ("Node", "node-1"))
    # An ordinary pod has the annotation too, with the kubelet.
    api = _message(metadata=pod_pb2.ObjectMeta(annotations={"kubernetes.io/config.source": "api"}))
    ordinary = of_message(api, NONE)
    assert ordinary is not None
    assert not ordinary.static


@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
@pytest.mark.parametrize("text", ["", "x" * 254])
def test_pod_without_a_valid_name_has_no_identity(field: str, text: str) -> None:
    pod = _message()
    setattr(pod.metadata, field, text)
    assert of_message(pod, NONE) is None


def test_too_long_or_unknown_values_are_left_out() -> None:
    pod = _message(
        status=pod_pb2.PodStatus(phase="x" * 100), spec=pod_pb2.PodSpec(priorityClassName="x" * 300)
    )
    pod.metadata.ownerReferences[0].name = "x" * 300
    identity = of_message(pod, NONE)
    assert identity is not None
    assert (identity.phase, identity.priority_class, identity.workload) == ("", "", UNKNOWN)


def test_pod_with_only_names_has_an_identity() -> None:
    bare = of_object(
        _object('{"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": null}}'), NONE
    )
    assert bare is not None
    assert (bare.workload, bare.created, bare.labels) == (("Pod", "p"), 0.0, ())


CREATED = 1_793_227_263.0  # 2026-10-28T22:41:03Z
MINUTES = int(CREATED) // 60


CUT = "x" * 242
WORKLOADS = {
    # A ReplicaSet's pods have the hash at the end of its name in a label.
    "apps/v1 ReplicaSet web-7d4b9c6f5 7d4b9c6f5": "Deployment web",
    "apps/v1 ReplicaSet a-b-c-7d4b9c6f5 7d4b9c6f5": "Deployment a-b-c",
    "apps/v1 ReplicaSet 7d4b9c6f5-7d4b9c6f5 7d4b9c6f5": "Deployment 7d4b9c6f5",
    # A ReplicaSet without a Deployment, or with a name that somebody chose.
    "apps/v1 ReplicaSet web-7d4b9c6f5": "ReplicaSet web-7d4b9c6f5",
    "apps/v1 ReplicaSet web-7d4b9c6f5 6f5": "ReplicaSet web-7d4b9c6f5",
    "apps/v1 ReplicaSet web web": "ReplicaSet web",
    "apps/v1 ReplicaSet -web web": "ReplicaSet -web",
    "apps/v1 ReplicaSet web-": "ReplicaSet web-",
    "other.example/v1 ReplicaSet web-abc abc": "ReplicaSet web-abc",
    "v1 ReplicaSet web-abc abc": "ReplicaSet web-abc",
    # The Deployment controller has cut the name to fit.
    f"apps/v1 ReplicaSet {CUT}-7d4b9c6f55 7d4b9c6f55": f"ReplicaSet {CUT}-7d4b9c6f55",
    "apps/v1 DaemonSet agent-7d4b9c6f5 7d4b9c6f5": "DaemonSet agent-7d4b9c6f5",
    "apps/v1 StatefulSet db": "StatefulSet db",
    "ray.io/v1 RayCluster ray": "RayCluster ray",
    "v1 Node n": "Node n",
    # A CronJob's Job has the scheduled time at the end of its name, in minutes, and before 1.21 in seconds.
    f"batch/v1 Job backup-{MINUTES}": "CronJob backup",
    f"batch/v1 Job a-b-{MINUTES - 60 * 24 * 30}": "CronJob a-b",
    f"batch/v1 Job backup-{int(CREATED) - 3}": "CronJob backup",
    # Dates, hashes and numbers that a person chose, and a time after the pod's creation.
    "batch/v1 Job train-20261028": "Job train-20261028",
    "batch/v1 Job train-20261028224103": "Job train-20261028224103",
    f"batch/v1 Job train-0{MINUTES}": f"Job train-0{MINUTES}",
    "batch/v1 Job train-1": "Job train-1",
    f"batch/v1 Job {MINUTES}": f"Job {MINUTES}",
    f"batch/v1 Job -{MINUTES}": f"Job -{MINUTES}",
    "batch/v1 Job train-٢٩٨٨٧١٢١": "Job train-٢٩٨٨٧١٢١",
    f"batch/v1 Job backup-{MINUTES + 120}": f"Job backup-{MINUTES + 120}",
    "batch/v1 Job backup-": "Job backup-",
    f"batch.volcano.sh/v1alpha1 Job backup-{MINUTES}": f"Job backup-{MINUTES}",
}


@pytest.mark.parametrize("owner", WORKLOADS)
def test_workload_is_the_object_that_people_name(owner: str) -> None:
    group, kind, name, pod_hash = f"{owner} ".split(" ", 3)
    labels = {"pod-template-hash": pod_hash.strip()}
    found = workload("pod-1", [Owner(group, kind, name)], labels, created=CREATED)
    assert " ".join(found) == WORKLOADS[owner]


def test_workload_without_such_an_owner() -> None:
    rollout = workload(
        "p", [Owner("apps/v1", "ReplicaSet", "web-abc")], {"rollouts-pod-template-hash": "abc"}
    )
    assert rollout == ("Rollout", "web")
    name = f"backup-{MINUTES}"
    assert workload("p", [Owner("batch/v1", "Job", name)], {}) == ("Job", name), "its time is unknown"
    assert workload("bare", [], {}) == ("Pod", "bare")
    assert workload("kube-proxy-n", [], {}, static_on="n") == ("Node", "n")


def test_the_controller_counts_and_without_one_the_only_owner() -> None:
    one, two = Owner("v1", "A", "a", controller=False), Owner("v1", "B", "b", controller=True)
    assert workload("p", [one, two], {}) == ("B", "b")
    assert workload("p", [one], {}) == ("A", "a")
    assert workload("p", [one, Owner("v1", "B", "b")], {}) == ("Pod", "p")


@settings(max_examples=100)
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
