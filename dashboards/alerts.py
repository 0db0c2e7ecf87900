"""The alerts about devices and who holds them: each anomaly, and what comes of them.

Expressions have no label of the exporter's own (instance, pod of the exporter): an alert about a device stays the
same one when the exporter is replaced. `keep` covers the scrapes that are missing meanwhile.
"""

from typing import Final

from dashboards.model import Alert, Group, Severity
from dashboards.wording import (
    CLUSTER,
    DEVICE,
    DEVICE_BOARD,
    FLEET_RESOURCE,
    HOLDER_BOARD,
    NODE,
    NODE_BOARD,
    NODE_RESOURCE,
    POD,
)


def _anomaly(kind: str, *labels: str) -> str:
    names = ", ".join(("cluster", "node", *labels))
    return f'group by ({names}) (devicelens_anomaly_info{{kind="{kind}"}})'


_HELD: Final = ("resource", "device", "namespace", "pod", "container")

_ANOMALIES: Final = (
    Alert(
        "DevicelensUnhealthyDeviceHeld",
        Severity.CRITICAL,
        _anomaly("unhealthy_held", *_HELD),
        f"{POD} holds a device that is not healthy",
        f"{POD} holds {DEVICE} on {NODE}, and the kubelet does not count that device as allocatable any more: "
        "it has failed under the pod, or its plugin says so.",
        DEVICE_BOARD,
        lasts="2m",
        keep="3m",
    ),
    Alert(
        "DevicelensDevicePluginGone",
        Severity.CRITICAL,
        _anomaly("plugin_gone", "resource"),
        f"The device plugin of {{{{ $labels.resource }}}} is gone on {NODE}",
        f"None of the devices of {{{{ $labels.resource }}}} on {NODE} is allocatable, while pods hold some of them. "
        "Those pods go on; new ones, and those that restart, find no device.",
        NODE_RESOURCE,
        lasts="3m",
        keep="3m",
    ),
    Alert(
        "DevicelensDeviceDoubleHeld",
        Severity.CRITICAL,
        _anomaly("double_held", *_HELD),
        f"{POD} holds a device that another pod holds too",
        f"{POD} holds {DEVICE} on {NODE}, which is not shared, and another pod holds it or a part of it as well. "
        "Each believes that it has the device for itself.",
        DEVICE_BOARD,
        lasts="2m",
        keep="3m",
    ),
    Alert(
        "DevicelensDeviceUnattributed",
        Severity.WARNING,
        _anomaly("unattributed", "resource", "device"),
        f"{DEVICE} was given out and no pod has it",
        f"The plugin gave {DEVICE} on {NODE} out, and no pod lists it: a long init container has it, the pod was "
        "refused after all, or the device leaked and cannot be given out again.",
        DEVICE_BOARD,
        lasts="10m",
        keep="3m",
    ),
    Alert(
        "DevicelensNumaSplit",
        Severity.INFO,
        _anomaly("numa_split", "resource", "namespace", "pod", "container"),
        f"{POD} spans NUMA nodes without need",
        f"The devices of {POD} on {NODE} are on several NUMA nodes, although one of them had enough free devices: "
        "traffic between them crosses the sockets.",
        HOLDER_BOARD,
        lasts="15m",
        keep="3m",
    ),
    Alert(
        "DevicelensMappingStale",
        Severity.CRITICAL,
        _anomaly("stale"),
        f"Nobody knows who holds which device on {NODE}",
        f"The mapping of {NODE} is older than --stale-after, so it is no longer told: the kubelet has not given a "
        "good answer for that long. Pods go on; alerts about this node's devices cannot fire.",
        NODE_BOARD,
        lasts="1m",
        keep="3m",
    ),
)

_DEVICES: Final = (
    Alert(
        "DevicelensDeviceUnhealthy",
        Severity.WARNING,
        """
        (max by (cluster, node, resource, device) (devicelens_device_healthy{pod=""}) == 0)
        and on (cluster, node, resource)
        (node_resource:devicelens_allocatable_devices:max > 0)
        """,
        f"{DEVICE} is not healthy",
        f"{DEVICE} on {NODE} is known, but the kubelet does not count it as allocatable. Nobody holds it; the node "
        "has one device less to give.",
        DEVICE_BOARD,
        lasts="10m",
        keep="3m",
    ),
    Alert(
        "DevicelensResourceUnavailable",
        Severity.WARNING,
        """
        node_resource:devicelens_devices:max > 0
        and on (cluster, node, resource)
        (node_resource:devicelens_allocatable_devices:max == 0)
        unless on (cluster, node, resource)
        devicelens_anomaly_info{kind="plugin_gone"}
        """,
        f"No device of {{{{ $labels.resource }}}} can be given out on {NODE}",
        f"{NODE} has {{{{ $value }}}} of {{{{ $labels.resource }}}}, and the kubelet counts none of them as "
        "allocatable: each has failed, or their plugin is not registered.",
        NODE_RESOURCE,
        lasts="10m",
        keep="3m",
    ),
    Alert(
        "DevicelensResourceExhausted",
        Severity.WARNING,
        """
        cluster_resource:devicelens_free_devices:sum == 0
        and on (cluster, resource)
        (cluster_resource:devicelens_allocatable_devices:sum > 0)
        """,
        f"No {{{{ $labels.resource }}}} is free{CLUSTER}",
        f"Every allocatable device of {{{{ $labels.resource }}}}{CLUSTER} has been held for an hour or more: pods "
        "that ask for one wait.",
        FLEET_RESOURCE,
        lasts="1h",
        keep="5m",
    ),
    Alert(
        "DevicelensDeviceHeldIdle",
        Severity.INFO,
        """
        max by (cluster, node, resource, device, namespace, pod, container) (
          max_over_time(holding:devicelens_utilisation:ratio[30m])
        ) < 0.01
        and on (cluster, node, resource, device, namespace, pod, container)
        (
          time()
          - max by (cluster, node, resource, device, namespace, pod, container) (
            devicelens_device_held_since_timestamp_seconds
          ) > 3600
        )
        """,
        f"{POD} holds a device and does not use it",
        f"{POD} has held {DEVICE} on {NODE} for more than an hour, and in the last half of it the device was never "
        "busier than {{ $value | humanizePercentage }}.",
        HOLDER_BOARD,
        lasts="30m",
        keep="10m",
    ),
)

GROUPS: Final = (
    Group("devicelens-anomalies", _ANOMALIES),
    Group("devicelens-devices", _DEVICES),
)
