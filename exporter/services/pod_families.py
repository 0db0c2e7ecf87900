"""The families about pods: who they are, and their allowed labels.

Only pods that hold something, and of those only whose uid is beyond doubt.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from exporter.core.state import State

_NO_LABEL_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
_NEW_WORD: Final = re.compile(r"([a-z0-9])([A-Z])")


def pod_info(state: State, node: str) -> Metric:
    """Each pod that holds something."""
    family = GaugeMetricFamily(
        "devicelens_pod_info",
        "A pod that holds something (1): its uid, what it belongs to, phase and priority class. [STABLE]",
        labels=("node", "namespace", "pod", "uid", "workload_kind", "workload", "phase", "priority_class"),
    )
    for (namespace, pod), identity in state.pods.items():
        work = identity.workload
        family.add_metric(
            (
                *(node, namespace, pod, identity.uid),
                *(work.kind, work.name, identity.phase, identity.priority_class),
            ),
            1,
        )
    return family


def pod_labels(state: State, node: str) -> Metric:
    """The allowed labels of each pod that holds something and has any."""
    family = Metric(
        "devicelens_pod_labels",
        "The labels of a pod that holds something (1), those that --pod-labels allows. [STABLE]",
        "gauge",
    )
    for (namespace, pod), identity in state.pods.items():
        if identity.labels:
            names = label_names([name for name, _ in identity.labels])
            labels = {"node": node, "namespace": namespace, "pod": pod}
            labels |= {names[name]: value for name, value in identity.labels}
            family.add_sample("devicelens_pod_labels", labels, 1)
    return family


def label_names(names: Sequence[str]) -> Mapping[str, str]:
    """Prometheus' name for each of one pod's label names, as kube-state-metrics has it.

    Characters that Prometheus does not know are underscores, camelCase is snake_case, all is lower case,
    with `label_` before it; names that fall together have `_conflict1`, `_conflict2`… behind them, in
    their own order, leaving out what another label is called already.
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(f"label_{_snake_case(_NO_LABEL_NAME.sub('_', name))}", []).append(name)
    taken = {label for label, group in groups.items() if len(group) == 1}
    found: dict[str, str] = {}
    for label, group in groups.items():
        if len(group) == 1:
            found[group[0]] = label
            continue
        count = 0
        for name in group:
            count += 1
            while f"{label}_conflict{count}" in taken:
                count += 1
            found[name] = f"{label}_conflict{count}"
            taken.add(found[name])
    return found


def _snake_case(name: str) -> str:
    return _NEW_WORD.sub(r"\1_\2", name).lower()
