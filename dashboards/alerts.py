"""The alerts: device failures, then the exporter, the plugin and their configuration.

Two shares of one physical device are one alert. An alert about a device has the labels `cluster, node, resource,
parent`; `parent` is the physical device behind a share or slice, or the device itself. No alert about a device has a
label of the exporter (instance, pod), so that it stays the same alert when the exporter is replaced; `keep` covers
the scrapes that are missing in between.
"""

from typing import Final

from dashboards.rulefile import Alert, Group, Severity

# Pieces of annotations, in Prometheus' template language. A missing label reads as "".
NODE: Final = (
    "{{ with $labels.node }}node {{ . }}{{ else }}{{ $labels.instance }}{{ end }}"
    "{{ with $labels.cluster }} of cluster {{ . }}{{ end }}"
)
"""node gpu-a-17 of cluster west"""
DEVICE: Final = "{{ $labels.resource }} {{ $labels.parent }}"
RESOURCE: Final = "{{ $labels.resource }}"


def _link(dashboard: str, *labels: str) -> str:
    """A dashboard's path, with the variables of these names set to the alert's labels; All for a missing label."""
    values = "&".join(
        f"var-{label}={{{{ with $labels.{label} }}}}{{{{ . | urlquery }}}}{{{{ else }}}}$__all{{{{ end }}}}"
        for label in ("cluster", *labels)
    )
    return f"/d/devicelens-{dashboard}/devicelens-{dashboard}?{values}"


FLEET: Final = _link("fleet")
NODE_BOARD: Final = _link("node", "node")
NODE_RESOURCE: Final = _link("node", "node", "resource")

_ID: Final = "cluster, node, resource, device"
_PHYSICAL: Final = "cluster, node, resource, parent"


_OWNERS: Final = "holding:devicelens_owner:info{cluster=%[1]q, node=%[2]q, resource=%[3]q"
_PODS: Final = (
    "{{ range query (printf `group by (namespace, pod) ("
    f"{_OWNERS}, parent=%[4]q}} or {_OWNERS}, device=%[4]q}})` "
    "$labels.cluster $labels.node $labels.resource $labels.parent) | sortByLabel `pod` }}"
    " {{ .Labels.namespace }}/{{ .Labels.pod }}{{ end }}"
)
"""The pods that hold the alert's device or a share of it: " ml/llama-0 web/q-1"."""

_HOLDER: Final = ("namespace", "pod", "container")


def _anomalies(kind: str, *holder: str) -> str:
    """For each physical device, how many of its shares or their holders have an anomaly; `kind` is a regular
    expression.
    """
    labels = ", ".join((_ID, *holder))
    return f"""
          count by ({_PHYSICAL}) (
            group by ({labels}) (devicelens_anomaly_info{{kind=~"{kind}"}})
            * on ({_ID}) group_left (parent) device:devicelens_physical:info
          )
        """


_HELD: Final = "unhealthy_held|tainted_held"
"""Anomalies of held devices that are not healthy."""
_NOT_OFFERED: Final = 'devicelens_anomaly_info{kind="no_longer_offered", device=""}'
"""The kubelet no longer offers any device of a resource, or many. An administrator may have removed them."""

_DEVICES: Final = (
    Alert(
        "DevicelensUnhealthyDeviceHeld",
        Severity.CRITICAL,
        _anomalies("unhealthy_held", *_HOLDER),
        f"Pods hold the unhealthy device {DEVICE}",
        f"{DEVICE} on {NODE} is held and unhealthy: the device failed under its pods, or its plugin or driver "
        f"reports so. Pods:{_PODS}.",
        NODE_RESOURCE,
        lasts="2m",
        keep="3m",
    ),
    Alert(
        "DevicelensTaintedDeviceHeld",
        Severity.WARNING,
        _anomalies("tainted_held", *_HOLDER),
        f"Pods hold the tainted device {DEVICE}",
        f"A taint keeps new pods away from {DEVICE} on {NODE}, and pods still hold it: they tolerate the taint, or had "
        f"the device before. Pods:{_PODS}.",
        NODE_RESOURCE,
        lasts="10m",
        keep="3m",
    ),
    Alert(
        "DevicelensDeviceDoubleHeld",
        Severity.CRITICAL,
        _anomalies("double_held", *_HOLDER),
        f"Several pods hold {DEVICE}, which is not shared",
        f"{{{{ $value }}}} containers hold {DEVICE} on {NODE} or parts of it, and the device is not shared. Each of "
        f"them uses it as its own. Pods:{_PODS}.",
        NODE_RESOURCE,
        lasts="2m",
        keep="3m",
    ),
    Alert(
        "DevicelensDeviceUnattributed",
        Severity.WARNING,
        _anomalies("unattributed"),
        f"{DEVICE} is allocated and no pod holds it",
        f"The plugin allocated {DEVICE} on {NODE}, and the kubelet lists no pod with it: a long init container has "
        "it, the kubelet refused the pod after Allocate, or the device leaked and cannot be allocated again.",
        NODE_RESOURCE,
        lasts="10m",
        keep="3m",
    ),
    Alert(
        "DevicelensClaimUnprepared",
        Severity.WARNING,
        f"""
        count by ({_PHYSICAL}) (
          label_replace(
            group by ({_ID}) (devicelens_anomaly_info{{kind="unprepared"}}), "parent", "$1", "device", "(.+)"
          )
        )
        """,
        f"A pod waits for {DEVICE}, which its claim reserves",
        f"A ResourceClaim reserves {DEVICE} for a pod on {NODE}, and the kubelet does not list it: the driver fails to "
        "prepare the claim or is gone, and the pod does not start.",
        NODE_RESOURCE,
        lasts="5m",
        keep="3m",
    ),
    Alert(
        "DevicelensDeviceUnhealthy",
        Severity.WARNING,
        f"""
        (
          count by ({_PHYSICAL}) (
            (max by ({_ID}) (devicelens_device_healthy) == 0)
            * on ({_ID}) group_left (parent) device:devicelens_physical:info
          )
          unless on ({_PHYSICAL})
          {_anomalies(_HELD, *_HOLDER).strip()}
        )
        and on (cluster, node, resource)
        (node_resource:devicelens_allocatable_devices:max > 0)
        unless on (cluster, node, resource)
        {_NOT_OFFERED}
        """,
        f"{DEVICE} is not healthy",
        f"{DEVICE} on {NODE} is free and unhealthy or tainted: the node has one device less to allocate.",
        NODE_RESOURCE,
        lasts="10m",
        keep="3m",
    ),
    Alert(
        "DevicelensResourceUnavailable",
        Severity.CRITICAL,
        f"""
        node_resource:devicelens_devices:max > 0
        and on (cluster, node, resource)
        (node_resource:devicelens_allocatable_devices:max == 0)
        unless on (cluster, node, resource)
        (
          count by (cluster, node, resource) (group by ({_PHYSICAL}) (device:devicelens_physical:info)) == 1
          and on (cluster, node, resource)
          {_anomalies(_HELD, *_HOLDER).strip()}
        )
        unless on (cluster, node, resource)
        ({_NOT_OFFERED} and on (cluster, node, resource) (node_resource:devicelens_allocated_devices:max == 0))
        """,
        f"No device of {RESOURCE} is allocatable on {NODE}",
        f"{NODE} has {{{{ $value }}}} devices of {RESOURCE}, and none of them is allocatable: the plugin is gone or "
        "not registered, or every device failed or is tainted. Pods that hold one go on; new and restarted ones get "
        "none.",
        NODE_RESOURCE,
        lasts="5m",
        keep="3m",
    ),
    Alert(
        "DevicelensResourceNotOffered",
        Severity.WARNING,
        f"""
        group by (cluster, node, resource) ({_NOT_OFFERED})
        unless on (cluster, node, resource)
        (
          node_resource:devicelens_allocatable_devices:max == 0
          and on (cluster, node, resource)
          (node_resource:devicelens_allocated_devices:max > 0)
        )
        """,
        f"The kubelet no longer offers devices of {RESOURCE} on {NODE}",
        f"The kubelet on {NODE} no longer offers any device of {RESOURCE}, or many of them, and no pod holds them: "
        "their plugin is gone, was reconfigured, or reports them unhealthy.",
        NODE_RESOURCE,
        lasts="10m",
        keep="3m",
    ),
    Alert(
        "DevicelensDeviceHeldIdle",
        Severity.INFO,
        f"""
        (
          max by ({_PHYSICAL}) (
            label_replace(
              max by ({_ID}) (
                max_over_time(holding:devicelens_utilisation:ratio{{scope!="shared"}}[30m])
                and holding:devicelens_utilisation:ratio
                and holding:devicelens_utilisation:ratio offset 1h
              ),
              "parent", "$1", "device", "(.+)"
            )
          )
          or
          max by ({_PHYSICAL}) (
            max_over_time(holding:devicelens_utilisation:ratio{{scope="shared"}}[30m])
            and holding:devicelens_utilisation:ratio
            and holding:devicelens_utilisation:ratio offset 1h
          )
        )
        < 0.01
        """,
        f"{DEVICE} is held and idle",
        f"Pods have held {DEVICE} on {NODE} for more than an hour, and in the last 30 minutes it was never busier "
        f"than {{{{ $value | humanizePercentage }}}}. Pods:{_PODS}.",
        NODE_RESOURCE,
        lasts="30m",
        keep="10m",
    ),
)

_TARGET: Final = "cluster, job, instance"


def _with_node(query: str, *labels: str) -> str:
    """The series of `query` with the label `node`, where it is known; one series for each target and `labels`."""
    return f"""
        (
          {query}
        )
        * on ({_TARGET}) group_left (node) instance:devicelens_node:info
        or on ({", ".join((_TARGET, *labels))})
        (
          {query}
        )
        """


def _of_target(operation: str, selector: str, *labels: str) -> str:
    return f"{operation} by ({', '.join((_TARGET, *labels))}) ({selector})"


def _increased(counter: str, window: str, *labels: str) -> str:
    return _of_target("sum", f"increase({counter}[{window}])", *labels)


_EXPORTER: Final = (
    Alert(
        "DevicelensAbsent",
        Severity.CRITICAL,
        "absent(devicelens_build_info)",
        "Prometheus scrapes no devicelens exporter",
        "Prometheus has no series of any exporter: the DaemonSet is gone, or Prometheus does not discover its pods. "
        "No other devicelens alert can fire.",
        FLEET,
        lasts="10m",
    ),
    Alert(
        "DevicelensExporterDown",
        Severity.WARNING,
        _with_node("instance:devicelens_exporter_up:last == 0"),
        f"The exporter on {NODE} does not answer",
        f"Prometheus has not been able to scrape the exporter on {NODE} ({{{{ $labels.instance }}}}) for 5 minutes. "
        "The holders of its devices are unknown, and no alert about its devices can fire.",
        NODE_BOARD,
        lasts="5m",
    ),
    Alert(
        "DevicelensMappingStale",
        Severity.WARNING,
        _with_node(f"{_of_target('min', 'devicelens_up')} == 0"),
        f"The mapping of {NODE} is stale",
        f"The exporter on {NODE} has had no good answer from the kubelet for 3 minutes, or none since it started. "
        "After --stale-after it exposes no holders, so no alert about the node's devices can fire. "
        "devicelens_refresh_errors_total names the failing call and its gRPC code.",
        NODE_BOARD,
        lasts="3m",
        keep="3m",
    ),
    Alert(
        "DevicelensHistoryNotWritten",
        Severity.WARNING,
        _with_node(
            f"""{_of_target("min", "devicelens_history_up")} == 0
          or {_increased("devicelens_history_dropped_holdings_total", "15m")} > 0"""
        ),
        f"The exporter on {NODE} does not write its history",
        f"The exporter on {NODE} cannot write its history file. Records wait in memory; when too many wait, the "
        "oldest are dropped. Live data is not affected.",
        NODE_BOARD,
        lasts="10m",
        keep="2m",
    ),
)

_PLUGIN: Final = (
    Alert(
        "DevicelensPluginDown",
        Severity.WARNING,
        _with_node("instance:devicelens_plugin_up:last == 0"),
        f"The device plugin on {NODE} does not answer",
        f"Prometheus has not been able to scrape the plugin on {NODE} ({{{{ $labels.instance }}}}) for 5 minutes. "
        "If the plugin has ended, none of its devices is allocatable.",
        NODE_BOARD,
        lasts="5m",
    ),
    Alert(
        "DevicelensPluginNotRegistered",
        Severity.CRITICAL,
        _with_node(
            f"""(
            {_of_target("max", "devicelens_plugin_registered", "resource")} == 0
            or {_of_target("max", "devicelens_plugin_streams", "resource")} == 0
          )
          and on ({_TARGET}, resource)
          {_of_target("sum", "devicelens_plugin_devices", "resource")} > 0""",
            "resource",
        ),
        f"{RESOURCE} is not registered with the kubelet on {NODE}",
        f"The plugin on {NODE} has devices of {RESOURCE}, and for 5 minutes the kubelet has not accepted the "
        "registration, or has no ListAndWatch stream open: no pod gets one of the devices.",
        NODE_BOARD,
        lasts="5m",
        keep="2m",
    ),
    Alert(
        "DevicelensAllocationsRefused",
        Severity.WARNING,
        _with_node(
            # One refusal is a race that the pod's controller repeats.
            f"{_increased('devicelens_plugin_allocation_errors_total', '15m', 'resource')} >= 3",
            "resource",
        ),
        f"The plugin on {NODE} refuses to allocate {RESOURCE}",
        f"The plugin on {NODE} refused Allocate for {RESOURCE} at least three times in 15 minutes. The pods failed "
        "with UnexpectedAdmissionError.",
        NODE_BOARD,
    ),
    Alert(
        "DevicelensConfigurationRefused",
        Severity.WARNING,
        _with_node(
            _of_target(
                "min",
                '{__name__=~"devicelens_(plugin_|web_|plugin_web_)config_last_reload_successful"}',
            )
            + " == 0"
        ),
        f"{{{{ $labels.instance }}}} on {NODE} refused a changed configuration file",
        f"{{{{ $labels.instance }}}} on {NODE} could not use its configuration file, or a file of "
        "--web.config.file, when the file changed. It goes on with the last good one, and does not start again "
        "with this one.",
        NODE_BOARD,
        lasts="5m",
        keep="2m",
    ),
)

GROUPS: Final = (
    Group("devicelens-devices", _DEVICES),
    Group("devicelens-exporter", _EXPORTER),
    Group("devicelens-plugin", _PLUGIN),
)
