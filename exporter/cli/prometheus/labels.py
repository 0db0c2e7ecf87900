"""Whose a label is: the exporter's own, or that of whoever scraped it. Pure.

Where a scrape does not honour the exporter's labels (honor_labels false, Prometheus' default), a label that
both have is the scrape's, and the exporter's is called `exported_…` (Prometheus: scrape, label clashes). An
empty label is none to Prometheus, so there a free device's `pod` reads as the scrape's: of what may be empty,
only what is certain is taken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

_HOLDER: Final = ("namespace", "pod", "container")

DEVICE_INFO: Final = "devicelens_device_info"
OWNER_INFO: Final = "devicelens_device_owner_info"
HEALTHY: Final = "devicelens_device_healthy"
HELD_SINCE: Final = "devicelens_device_held_since_timestamp_seconds"
CLAIM_INFO: Final = "devicelens_claim_device_info"
CPUS: Final = "devicelens_container_exclusive_cpus"
POD_INFO: Final = "devicelens_pod_info"
ANOMALY_INFO: Final = "devicelens_anomaly_info"
RESOURCE_DEVICES: Final = "devicelens_resource_devices"
UP: Final = "devicelens_up"
LAST_SUCCESS: Final = "devicelens_last_refresh_success_timestamp_seconds"
DROPPED: Final = "devicelens_series_dropped"
REFRESHES: Final = "devicelens_refresh_duration_seconds_count"

OWN: Final[Mapping[str, frozenset[str]]] = {
    DEVICE_INFO: frozenset({"node", "resource", "device", "parent", "numa_node"}),
    OWNER_INFO: frozenset({"node", "resource", "device", "parent", *_HOLDER, "pod_uid"}),
    HEALTHY: frozenset({"node", "resource", "device", *_HOLDER}),
    HELD_SINCE: frozenset({"node", "resource", "device", *_HOLDER}),
    CLAIM_INFO: frozenset(
        {"node", "driver", "pool", "device", "share_id", "claim_namespace", "claim", *_HOLDER}
    ),
    CPUS: frozenset({"node", *_HOLDER}),
    POD_INFO: frozenset(
        {"node", "namespace", "pod", "uid", "workload_kind", "workload", "phase", "priority_class"}
    ),
    ANOMALY_INFO: frozenset({"node", "kind", "resource", "device", *_HOLDER}),
    RESOURCE_DEVICES: frozenset({"node", "resource"}),
    UP: frozenset(),
    LAST_SUCCESS: frozenset(),
    DROPPED: frozenset(),
    REFRESHES: frozenset(),
}
"""Each family's own labels (docs/metrics.md)."""

OF_NODES: Final = tuple(name for name, own in OWN.items() if "node" in own)
"""The families that tell whose node they are of; the others tell of the exporter alone."""

_ALL_OWN: Final = frozenset[str]().union(*OWN.values())

_SCRAPE: Final = frozenset(
    {
        *("instance", "job", "endpoint", "service", "prometheus", "prometheus_replica", "replica"),
        *("__replica__", "receive", "tenant_id", "receive_replica", "controller_revision_hash"),
        *("pod_template_generation", "pod_template_hash", "node", *_HOLDER),
    }
)
"""Labels that tell of the way by which a series came, and not of what it is about."""

Key = tuple[tuple[str, str], ...]
"""Labels, sorted by name."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series read: its family, the exporter's own labels, the scrape's, and the target it is of.

    `target` are the labels that every series of one scrape target has, whatever its family: what an
    exporter may have set itself is left out.
    """

    family: str
    own: Mapping[str, str]
    scrape: Mapping[str, str]
    target: Key

    def __getitem__(self, name: str) -> str:
        """An own label, "" where it is empty."""
        return self.own.get(name, "")

    @property
    def holder(self) -> tuple[str, str, str]:
        """Namespace, pod and container."""
        return self["namespace"], self["pod"], self["container"]

    @property
    def renamed(self) -> bool:
        """Whether the scrape has a label of the name of one of the exporter's own."""
        return any(name in self.scrape for name in OWN[self.family])


def read(metric: Mapping[str, str]) -> Series | None:
    """One series; None for a family that is not known."""
    family = metric.get("__name__", "")
    known = OWN.get(family)
    if known is None:
        return None
    own: dict[str, str] = {}
    scrape: dict[str, str] = {}
    for name, value in metric.items():
        plain = name.removeprefix("exported_")
        if name == "__name__":
            continue
        if plain in known and (name != plain or f"exported_{name}" not in metric):
            own[plain] = value
        else:
            scrape[name] = value
    target = tuple(sorted((name, value) for name, value in scrape.items() if name not in _ALL_OWN))
    return Series(family, own, scrape, target)


def place(target: Key) -> Key:
    """What tells a target's node from others of its name: a cluster, a region, whatever was put there."""
    return tuple((name, value) for name, value in target if name not in _SCRAPE)


def telling(places: Iterable[Key]) -> frozenset[str]:
    """The labels that are not the same in all `places`: those that must be told."""
    known = [dict(one) for one in places]
    names = {name for one in known for name in one}
    return frozenset(name for name in names if len({one.get(name, "") for one in known}) > 1)
