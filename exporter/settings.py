"""The flags of `devicelens exporter`, each declared once. Times are in seconds, sizes in bytes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from runtime.flags import (
    DIRECTORY,
    DURATION,
    FILE,
    SIZE,
    Address,
    ListenAddress,
    Parsed,
    ProcessSettings,
    listen_address_setting,
    parse_address,
    setting,
    variable,
)
from runtime.patterns import Pattern, compiled
from runtime.text import quoted


def _parse_pattern(text: str) -> Pattern:
    try:
        return compiled(text)
    except ValueError as error:
        raise ValueError(f"found {quoted(text)}, {error}") from None


PATTERN: Final = Parsed("regex", _parse_pattern)
URL: Final = Parsed("url", parse_address)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings(ProcessSettings):
    """What the exporter's flags say. Without a history path the history is kept in memory."""

    web_listen_address: ListenAddress = listen_address_setting(":10190")
    poll_interval: float = setting(
        "--poll.interval",
        type=DURATION,
        default="5s",
        at_least=0.1,
        help="Longest time between two polls of the kubelet; a change that the kubelet announces is read "
        "at once.",
    )
    poll_timeout: float = setting(
        "--poll.timeout", type=DURATION, default="3s", at_least=0.1, help="Limit of each call to the kubelet."
    )
    stale_after: float = setting(
        "--stale-after",
        type=DURATION,
        default="60s",
        at_least="poll_interval",
        help="Age at which the mapping is withdrawn from Prometheus.",
    )
    forget_after: float = setting(
        "--forget-after",
        type=DURATION,
        default="24h",
        at_least=0.0,
        help="How long a device that the kubelet no longer offers stays in the mapping; 0s: not at all.",
    )
    pods_source: str = setting(
        "--pods.source",
        type=click.Choice(("auto", "pods-api", "apiserver", "none")),
        default="auto",
        help="Source of pods' uids, labels and owners: the kubelet's Pods API (auto: where it is served), "
        "the API server, or none.",
    )
    pod_labels: Pattern | None = setting(
        "--pod-labels",
        type=PATTERN,
        help="Labels of pods that are exported to Prometheus, by their whole names; none without it.",
    )
    cgroup_root: Path | None = setting(
        "--cgroup.root",
        type=DIRECTORY,
        help="The node's cgroups (/sys/fs/cgroup, or a controller's directory in it): a release shows when "
        "the pod's is removed. Without this flag and a source of pods it shows at the next poll.",
    )
    kubeconfig: Path | None = setting(
        "--kubeconfig",
        type=FILE,
        envvar=[variable("--kubeconfig"), "KUBECONFIG"],
        help="How to reach the API server, for --pods.source apiserver and --dra.source slices; not needed "
        "in a pod.",
    )
    dra_source: str = setting(
        "--dra.source",
        type=click.Choice(("auto", "slices", "cdi", "none")),
        default="auto",
        help="Source of what claimed devices are: the API server's ResourceSlices and claims (auto: in a pod "
        "with a token, or with --kubeconfig), the node's CDI specifications (auto: if found), or none.",
    )
    history_path: Path | None = setting(
        "--history.path",
        type=FILE,
        show_default="in memory",
        help="Database of who held what, when.",
    )
    history_retention: float = setting(
        "--history.retention",
        type=DURATION,
        default="30d",
        at_least=60.0,
        help="How long holdings that have ended are kept.",
    )
    history_max_bytes: int = setting(
        "--history.max-bytes",
        type=SIZE,
        default="256MiB",
        # Room for ten thousand holdings, beside what SQLite needs to work.
        at_least=8 << 20,
        help="Largest size of the database; the oldest holdings are removed first. In memory it is at most "
        "8MiB.",
    )
    metrics_max_series: int = setting(
        "--metrics.max-series",
        type=click.IntRange(min=1),
        default=100_000,
        metavar="COUNT",
        help="Most series of the mapping; above it, devices of the largest resources have none.",
    )
    plugin_url: tuple[Address, ...] = setting(
        "--plugin.url",
        type=URL,
        multiple=True,
        help="A devicelens plugin on this node, the source of devices' attributes and health reasons: "
        "http://HOST:PORT or unix:PATH. May be given several times.",
    )
    plugin_ca_file: Path | None = setting(
        "--plugin.ca-file",
        type=FILE,
        show_default="the system's",
        help="Certificate authorities for a --plugin.url with https (PEM).",
    )
    plugin_cert_file: Path | None = setting(
        "--plugin.cert-file",
        type=FILE,
        help="Client certificate for plugins (PEM); with --plugin.key-file.",
    )
    plugin_key_file: Path | None = setting(
        "--plugin.key-file", type=FILE, help="Private key of the client certificate (PEM)."
    )
    plugin_password_file: Path | None = setting(
        "--plugin.password-file",
        type=FILE,
        help="A file with one line USER:PASSWORD, for plugins whose --plugin.url has no password of its own.",
    )
    id_rules: Path | None = setting(
        "--id-rules",
        type=FILE,
        help="Further forms of device ids, to find the device behind a share or a slice.",
    )
