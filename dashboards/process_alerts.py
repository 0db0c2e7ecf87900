"""The alerts about the two processes: is the exporter there, is what it tells whole, is the plugin at work,
is what both serve protected as asked.
"""

from typing import Final

from dashboards.model import Alert, Group, Severity
from dashboards.wording import FLEET, NODE, NODE_BOARD

_TARGET: Final = "cluster, job, instance"
_RESOURCE: Final = "{{ $labels.resource }}"


def _with_node(query: str, *labels: str) -> str:
    """The series of `query`, one for each target and its `labels`, with the node's name, and without it where
    nothing tells it.
    """
    known = ", ".join((_TARGET, *labels))
    return f"""
        (
          {query}
        )
        * on ({_TARGET}) group_left (node) instance:devicelens_node:info
        or on ({known})
        (
          {query}
        )
        """


def _of_target(operation: str, selector: str, *labels: str) -> str:
    return f"{operation} by ({', '.join((_TARGET, *labels))}) ({selector})"


def _increased(counter: str, window: str, *labels: str) -> str:
    return f"{_of_target('sum', f'increase({counter}[{window}])', *labels)} > 0"


def _failing(errors: str, attempts: str, limit: float, *labels: str) -> str:
    """The share of failures in a quarter of an hour, where it is beyond the limit."""
    return (
        f"{_of_target('sum', f'rate({errors}[15m])', *labels)}\n"
        f"          / {_of_target('sum', f'rate({attempts}[15m])', *labels)}\n"
        f"          > {limit}"
    )


_EXPORTER: Final = (
    Alert(
        "DevicelensExporterDown",
        Severity.WARNING,
        _with_node("instance:devicelens_exporter_up:last == 0"),
        f"The exporter on {NODE} does not answer",
        f"Prometheus has not been able to scrape the exporter on {NODE} ({{{{ $labels.instance }}}}) for 5 minutes. "
        "Who holds which device there is not known, and no alert about its devices can fire.",
        NODE_BOARD,
        lasts="5m",
    ),
    Alert(
        "DevicelensAbsent",
        Severity.CRITICAL,
        "absent(devicelens_build_info)",
        "Prometheus knows no devicelens exporter",
        "There is not one series of an exporter: the DaemonSet is gone, or Prometheus does not find its pods any "
        "more. No other alert of devicelens can fire.",
        FLEET,
        lasts="10m",
    ),
    Alert(
        "DevicelensNotFresh",
        Severity.WARNING,
        _with_node(
            f"""{_of_target("min", "devicelens_up")} == 0
          unless on ({_TARGET})
          devicelens_anomaly_info{{kind="stale"}}"""
        ),
        f"The mapping of {NODE} is not what its kubelet says",
        f"The exporter on {NODE} has had no good answer of the kubelet for 5 minutes, or none since it started: "
        "devicelens_refresh_errors_total says which call fails, and how.",
        NODE_BOARD,
        lasts="5m",
        keep="2m",
    ),
    Alert(
        "DevicelensRefreshesFail",
        Severity.WARNING,
        _with_node(
            _failing("devicelens_refresh_errors_total", "devicelens_refresh_duration_seconds_count", 0.1)
        ),
        f"The kubelet of {NODE} often fails to answer",
        f"{{{{ $value | humanizePercentage }}}} of the exporter's refreshes on {NODE} failed in the last 15 minutes. "
        "The mapping is kept and asked for again, but it lags.",
        NODE_BOARD,
        lasts="15m",
    ),
    Alert(
        "DevicelensHistoryNotWritten",
        Severity.WARNING,
        _with_node(f"{_of_target('min', 'devicelens_history_up')} == 0"),
        f"History is not written on {NODE}",
        f"The exporter on {NODE} cannot write its history file. Who holds what now is not affected; what happens "
        "meanwhile waits in memory, within bounds.",
        NODE_BOARD,
        lasts="10m",
        keep="2m",
    ),
    Alert(
        "DevicelensHistoryLost",
        Severity.WARNING,
        _with_node(_increased("devicelens_history_dropped_holdings_total", "15m")),
        f"History of {NODE} has holes",
        f"The exporter on {NODE} forgot holdings because too many waited to be written: what history says of the "
        "last minutes is not complete.",
        NODE_BOARD,
    ),
    Alert(
        "DevicelensSeriesDropped",
        Severity.WARNING,
        _with_node(f"{_of_target('max', 'devicelens_series_dropped')} > 0"),
        f"The exporter on {NODE} leaves series out",
        f"{NODE} has {{{{ $value }}}} series more than --metrics.max-series allows, so those of single devices are "
        "not told, only sums: alerts about its devices cannot fire.",
        NODE_BOARD,
        lasts="5m",
        keep="2m",
    ),
    Alert(
        "DevicelensLabelsNotHonoured",
        Severity.WARNING,
        'count by (cluster, job) (devicelens_device_healthy{exported_pod!=""})',
        "Job {{ $labels.job }} scrapes devicelens without honor_labels",
        "The labels namespace, pod and container of {{ $value }} series of job {{ $labels.job }} have been renamed "
        "to exported_…: they name the exporter now, not the holder, and dashboards and alerts are wrong.",
        FLEET,
        lasts="10m",
    ),
    Alert(
        "DevicelensPluginSilent",
        Severity.WARNING,
        _with_node(f"{_of_target('min', 'devicelens_plugin_url_up')} == 0"),
        f"The exporter on {NODE} does not reach its plugin",
        f"A plugin that the exporter on {NODE} was told of (--plugin.url) does not tell of its devices: reasons for "
        "bad health are not known, and devices that leak are not noticed.",
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
        "If it has ended, the kubelet counts none of its devices as allocatable.",
        NODE_BOARD,
        lasts="5m",
    ),
    Alert(
        "DevicelensPluginNotRegistered",
        Severity.CRITICAL,
        _with_node(
            f"""{_of_target("max", "devicelens_plugin_registered", "resource")} == 0
          and on ({_TARGET}, resource)
          {_of_target("sum", "devicelens_plugin_devices", "resource")} > 0""",
            "resource",
        ),
        f"{_RESOURCE} is not registered with the kubelet on {NODE}",
        f"The plugin on {NODE} has devices of {_RESOURCE}, and the kubelet has not taken its registration for 5 "
        "minutes: no pod gets one of them.",
        NODE_BOARD,
        lasts="5m",
        keep="2m",
    ),
    Alert(
        "DevicelensPluginNotFollowed",
        Severity.CRITICAL,
        _with_node(
            f"""{_of_target("max", "devicelens_plugin_streams", "resource")} == 0
          and on ({_TARGET}, resource)
          {_of_target("max", "devicelens_plugin_registered", "resource")} == 1""",
            "resource",
        ),
        f"The kubelet does not follow the devices of {_RESOURCE} on {NODE}",
        f"{_RESOURCE} is registered on {NODE}, but the kubelet has no ListAndWatch stream open: it counts none of "
        "the devices as allocatable, and a device that fails is not noticed.",
        NODE_BOARD,
        lasts="5m",
        keep="2m",
    ),
    Alert(
        "DevicelensPluginConfigurationRefused",
        Severity.WARNING,
        _with_node(f"{_of_target('min', 'devicelens_plugin_config_last_reload_successful')} == 0"),
        f"The plugin on {NODE} refused its new configuration",
        f"The plugin on {NODE} could not read its configuration when it changed, and goes on with the one before. "
        "If it is restarted now, it does not start.",
        NODE_BOARD,
        lasts="2m",
        keep="2m",
    ),
    Alert(
        "DevicelensPluginDiscoveryFails",
        Severity.WARNING,
        _with_node(
            _failing(
                "devicelens_plugin_discovery_errors_total",
                "devicelens_plugin_discoveries_total",
                0.5,
                "resource",
            ),
            "resource",
        ),
        f"The plugin on {NODE} cannot look for devices of {_RESOURCE}",
        f"{{{{ $value | humanizePercentage }}}} of the looks for devices of {_RESOURCE} on {NODE} failed in the last "
        "15 minutes. What was found before is kept; what appears or vanishes is not seen.",
        NODE_BOARD,
        lasts="15m",
    ),
    Alert(
        "DevicelensAllocationsRefused",
        Severity.WARNING,
        _with_node(_increased("devicelens_plugin_allocation_errors_total", "15m", "resource"), "resource"),
        f"The plugin on {NODE} refuses to give {_RESOURCE} out",
        f"The plugin on {NODE} refused Allocate for {_RESOURCE} in the last 15 minutes: the pods that asked have "
        "failed with UnexpectedAdmissionError.",
        NODE_BOARD,
    ),
    Alert(
        "DevicelensDeviceFlapping",
        Severity.INFO,
        _with_node(_increased("devicelens_plugin_health_flaps_total", "1h", "resource"), "resource"),
        f"A device of {_RESOURCE} on {NODE} comes and goes",
        f"The plugin on {NODE} found devices of {_RESOURCE} that turn healthy and unhealthy again and again, and "
        "holds them as unhealthy until they have been quiet for a while.",
        NODE_BOARD,
    ),
)


def _of_web(name: str) -> str:
    """The families of that name of both processes, one series for each target."""
    return _of_target("min", f"devicelens_web_{name} or devicelens_plugin_web_{name}")


_WEB: Final = (
    Alert(
        "DevicelensWebConfigurationRefused",
        Severity.WARNING,
        _with_node(f"{_of_web('config_last_reload_successful')} == 0"),
        f"{{{{ $labels.instance }}}} on {NODE} refused its new web configuration",
        f"{{{{ $labels.instance }}}} on {NODE} could not use --web.config.file or a file that it names (certificate, "
        "key, clients' authorities) when it changed, and goes on with what was in force before. If it is restarted "
        "now, it does not start; if it is a certificate that was renewed, the old one goes on to its end.",
        NODE_BOARD,
        lasts="5m",
        keep="2m",
    ),
    Alert(
        "DevicelensWebCertificateEnds",
        Severity.WARNING,
        # A sixth of its life: whoever renews by itself has done so at a third, be it of a year or of a day.
        _with_node(
            f"""{_of_web("certificate_expiry_timestamp_seconds")}
          < time() + clamp_max(
            (
              {_of_web("certificate_expiry_timestamp_seconds")}
              - {_of_web("certificate_not_before_timestamp_seconds")}
            ) / 6,
            7 * 86400
          )"""
        ),
        f"The certificate of {{{{ $labels.instance }}}} on {NODE} ends",
        f"{{{{ $labels.instance }}}} on {NODE} serves a certificate that ends at {{{{ $value | humanizeTimestamp }}}}, and "
        "it has not been renewed. From then on nobody gets an answer: not Prometheus, not the status page, not "
        "the exporter that asks its plugin.",
        NODE_BOARD,
        lasts="15m",
        keep="2m",
    ),
)

GROUPS: Final = (
    Group("devicelens-exporter", _EXPORTER),
    Group("devicelens-plugin", _PLUGIN),
    Group("devicelens-web", _WEB),
)
