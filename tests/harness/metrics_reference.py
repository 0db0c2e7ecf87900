"""docs/metrics.md, generated from the expositions of the two processes.

Each renders an example state; names, types, labels and help are read from the exposition. A family without a
sample is an error: its labels would be unknown.

`cd tests && python -m harness.metrics_reference` writes it anew.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from exporter.history.archive import HistoryStatus
from exporter.mapping.dra import DraView, PodDevices, SourceStatus
from exporter.mapping.holdings import HoldingChanges, Release, diff
from exporter.mapping.identity import PodIdentity, PodView, Workload
from exporter.mapping.model import Doubt, PluginReport, Snapshot, merge_reports
from exporter.mapping.state import StateStore
from exporter.metrics.exporter import Metrics
from exporter.metrics.process import HistoryFamilies
from exporter.refresh.protocols import NoDra, NoPods, Phase
from harness import scene
from plugin.devices.device import Device as PluginDevice
from plugin.devices.inventory import ListEntry, TrackedDevice
from plugin.serving.metrics import ConfigStatus, Exposition
from plugin.serving.status import ResourceCounters, ResourceStatus
from runtime.blocks import Block
from runtime.exposition import CollectorBlocks, Format
from runtime.http.connection import Traffic, WebFamilies
from runtime.loop_lag import LagFamily

DOCUMENT: Final = Path(__file__).parents[2] / "docs/metrics.md"

_ORDER: Final = (
    *("node", "kind", "driver", "pool", "resource", "device", "share_id", "parent"),
    *(
        "claim_namespace",
        "claim",
        "namespace",
        "pod",
        "container",
        "pod_uid",
        "uid",
        "memory_type",
        "numa_node",
    ),
)
_STABILITY: Final = re.compile(r" ?\[(?P<level>[A-Z]+)\]$")
_LABEL: Final = re.compile(r"label_\w+")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family, as it is exposed."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str
    stability: str


def families(text: str) -> list[Family]:
    """The families of an exposition. Raises ValueError for one without a sample or without its stability."""
    return sorted(_families(text), key=lambda family: family.name)


def _families(text: str) -> Iterator[Family]:
    for family in text_string_to_metric_families(text):
        if not family.samples:
            raise ValueError(
                f"the example has no sample of {family.name}: add one to harness.metrics_reference"
            )
        level = _STABILITY.search(family.documentation)
        if level is None:
            raise ValueError(f"{family.name}: its help does not end with its stability, such as [STABLE]")
        found = {_LABEL.sub("label_…", label) for sample in family.samples for label in sample.labels}
        labels = tuple(sorted(found - {"le"}, key=_place))
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield Family(name, family.type, labels, _STABILITY.sub("", family.documentation), level["level"])


def _place(label: str) -> tuple[int, str]:
    """Where a label stands: what it is about, then whose, then what else."""
    return (_ORDER.index(label) if label in _ORDER else len(_ORDER)), label


class _PodsSource(NoPods):
    name = "pods-api"
    view = PodView(connected=True)


class _DraSource(NoDra):
    view = DraView(sources=(SourceStatus("slices", up=True), SourceStatus("claims", up=True)))


def exporter_text() -> str:
    """The exposition of an exporter with a sample of each family."""
    doubt = Doubt("the kubelet may not list all pods yet", 0.0, 10.0)
    snapshot = replace(scene.node(), unconfirmed={("ml", "llama-0"): doubt})
    identity = PodIdentity(
        "ml", "llama-0", "uid-1", labels=(("team", "a"),), workload=Workload("StatefulSet", "llama")
    )
    unreadable = PodIdentity(
        "batch", "render-1", "uid-2", devices=PodDevices(unreadable="volcano.sh/gpu-index")
    )
    state = scene.state(
        snapshot,
        at=1.0,
        pods={identity.key: identity, unreadable.key: unreadable},
        advertised=merge_reports([PluginReport("http://127.0.0.1:10191", received_at=1.0)]),
    )
    states = StateStore()
    states.publish(state)
    metrics = Metrics(
        states,
        node="n",
        version="v",
        stale_after=60.0,
        clock=lambda: 1.0,
        pods=_PodsSource(),
        dra=_DraSource(),
    )
    metrics.register(HistoryFamilies(lambda: HistoryStatus(earliest=1.0)))
    metrics.register(WebFamilies("devicelens", Traffic()))
    metrics.register(LagFamily("devicelens"))
    change = diff(Snapshot(), snapshot)
    metrics.counters.changed(state, HoldingChanges(change, (Release(change.began[0], 1.0),), {}))
    metrics.counters.timed(dict.fromkeys(Phase, 1.0))
    try:
        return b"".join(asyncio.run(metrics.document(Format.TEXT, compress=False))).decode()
    finally:
        metrics.close()


def plugin_text() -> str:
    """The exposition of a plugin with a sample of each family."""
    known = TrackedDevice(PluginDevice("gpu-0", "gpu-0"), "", 1.0)
    status = ResourceStatus(
        name="example.com/gpu",
        registered=True,
        streams=1,
        ready=True,
        state="",
        advertised=(ListEntry("gpu-0", known),),
        last_allocated=lambda _: None,
        counters=ResourceCounters(),
    )
    config = ConfigStatus(successful=True, succeeded_at=1.0)

    async def further() -> list[Block]:
        parts = (WebFamilies("devicelens_plugin", Traffic()), LagFamily("devicelens_plugin"))
        return [CollectorBlocks(part).of(Format.TEXT) for part in parts]

    parts = asyncio.run(further())
    document = Exposition().document([status], config, Format.TEXT, compress=False, further=parts)
    return document.decode()


_HEAD: Final = """\
# Metrics

<!-- Made from the code: cd tests && python -m harness.metrics_reference -->

Both processes serve `/metrics` in Prometheus' text format 0.0.4 and in OpenMetrics 1.0. `node` is the node of
the exporter; `namespace`, `pod`, and `container` are the *holder's*, so scrape with `honor_labels: true`.

Names carry type and unit. `_total` is a counter, `_seconds` without `_timestamp` or `_lag` a histogram of
seconds, and any other family a gauge: `_timestamp_seconds` is unix time, `_lag_seconds` seconds, `_bytes`
bytes, `_info` and `_labels` always 1, `_up`, `_healthy`, `_successful`, and `_registered` 0 or 1, all others
counts.

A family marked STABLE keeps its name, type, labels, and meaning until the next major version, as in
Kubernetes. The others are ALPHA: they may change or go in any minor version, and the changelog says so.

`devicelens_device_healthy` has one series for each device. To see the health of the devices that a pod holds,
join it with the holders:

```promql
devicelens_device_healthy * on (node, resource, device) group_right () devicelens_device_owner_info
```
"""

_EXPORTER: Final = """\
## The exporter

On `:10190`. When the mapping is older than `--stale-after`, every family about devices, resources,
containers, claims, and pods is withdrawn, and `devicelens_anomaly_info{kind="stale"}` takes its place.
Families about health are left out if the kubelet does not serve GetAllocatableResources. The
[messages](messages.md#what-is-wrong) explain each `kind` of anomaly.
"""

_PLUGIN: Final = """\
## The plugin

On `:10191`.
"""


def _table(found: Iterable[Family]) -> str:
    rows = ["| family | labels | |", "|---|---|---|"]
    for family in found:
        if family.type != _type(family.name):
            raise ValueError(f"{family.name}: a {family.type} that is named as a {_type(family.name)}")
        mark = " STABLE." if family.stability == "STABLE" else ""
        rows.append(f"| `{family.name}` | {', '.join(family.labels)} | {family.help}{mark} |")
    return "\n".join(rows) + "\n"


def _type(name: str) -> str:
    """The type that the page derives from a name."""
    if name.endswith("_total"):
        return "counter"
    seconds = name.endswith("_seconds") and not name.endswith(("_timestamp_seconds", "_lag_seconds"))
    return "histogram" if seconds else "gauge"


def document() -> str:
    """The whole of docs/metrics.md."""
    exporter, plugin = families(exporter_text()), families(plugin_text())
    return "\n".join((_HEAD, _EXPORTER, _table(exporter), _PLUGIN, _table(plugin)))


if __name__ == "__main__":
    DOCUMENT.write_text(document())
