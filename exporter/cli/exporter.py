"""The command `devicelens exporter`: flags in, exit status out."""

import re
import sys
from pathlib import Path
from typing import Any, Final

import click

from exporter.plugins.client import PluginAccess
from runtime.flags import DURATION, SIZE, Address, ListenAddress, flag, parse_address, process_flags, variable
from runtime.log import configure
from runtime.process import end_at_once_on_signals, run
from runtime.version import __version__

_LEAST_HISTORY: Final = 8 << 20
"""Bytes: room for ten thousand holdings, beside what SQLite needs to work."""
_PATTERN_LIMIT: Final = 1024


class _Pattern(click.ParamType[Any]):
    """A regular expression."""

    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if len(value) > _PATTERN_LIMIT:
            self.fail(f"found {len(value)} characters, expected at most {_PATTERN_LIMIT}", param, ctx)
        try:
            return re.compile(value, re.ASCII)
        except re.error as error:
            self.fail(f"found {value!r}, expected a regular expression: {error}", param, ctx)


class _PluginUrl(click.ParamType[Any]):
    """Where a plugin is."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse_address(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


PLUGIN_URL: Final = _PluginUrl()


@click.command()
@process_flags(":10190")
@flag(
    "--poll.interval",
    type=DURATION,
    default="5s",
    metavar="DURATION",
    help="The kubelet is asked at least this often; a change that it tells of is seen at once.",
)
@flag("--poll.timeout", type=DURATION, default="3s", metavar="DURATION", help="Limit of each call.")
@flag(
    "--stale-after",
    type=DURATION,
    default="60s",
    metavar="DURATION",
    help="Age at which the mapping is no longer told to Prometheus.",
)
@flag(
    "--pods.source",
    type=click.Choice(("auto", "pods-api", "apiserver", "none")),
    default="auto",
    help="Who tells pods' uids, labels and owners: the kubelet's Pods API (auto: where it is served), the "
    "API server, or nobody.",
)
@flag(
    "--pod-labels",
    type=_Pattern(),
    default=None,
    metavar="REGEX",
    help="Pods' labels that are told to Prometheus, by their whole names; none without it.",
)
@flag(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=[variable("--kubeconfig"), "KUBECONFIG"],
    default=None,
    metavar="FILE",
    help="How to reach the API server, for --pods.source apiserver; in a pod it is known without.",
)
@flag(
    "--history.path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    show_default="in memory",
    help="Where to keep who held what, when.",
)
@flag(
    "--history.retention",
    type=DURATION,
    default="30d",
    metavar="DURATION",
    help="How long what has ended is kept.",
)
@flag(
    "--history.max-bytes",
    type=SIZE,
    default="256MiB",
    metavar="SIZE",
    help="How large the file may become; then the oldest goes first. In memory it is 8MiB at most.",
)
@flag(
    "--metrics.max-series",
    type=click.IntRange(min=1),
    default=100_000,
    metavar="COUNT",
    help="Series that the mapping may have; of more than that the devices' are not told, and sums are.",
)
@flag(
    "--plugin.url",
    type=PLUGIN_URL,
    multiple=True,
    metavar="URL",
    help="A devicelens plugin on this node, which tells what devices are and why they are unhealthy: "
    "http://HOST:PORT or unix:PATH. May be given several times.",
)
@flag(
    "--plugin.ca-file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    show_default="the system's",
    help="Who is trusted where a --plugin.url is https (PEM).",
)
@flag(
    "--plugin.cert-file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="The certificate that is shown to plugins (PEM); with --plugin.key-file.",
)
@flag(
    "--plugin.key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Its private key (PEM).",
)
@flag(
    "--plugin.password-file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="A file with one line USER:PASSWORD, for plugins whose --plugin.url has none of its own.",
)
@flag(
    "--id-rules",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Further forms of device ids, to tell the device behind a share or a slice.",
)
def exporter(
    *,
    web_listen_address: ListenAddress,
    web_config_file: Path | None,
    kubelet_root: Path,
    node_name: str,
    poll_interval: float,
    poll_timeout: float,
    stale_after: float,
    pods_source: str,
    pod_labels: re.Pattern[str] | None,
    kubeconfig: Path | None,
    history_path: Path | None,
    history_retention: float,
    history_max_bytes: int,
    metrics_max_series: int,
    plugin_url: tuple[Address, ...],
    plugin_ca_file: Path | None,
    plugin_cert_file: Path | None,
    plugin_key_file: Path | None,
    plugin_password_file: Path | None,
    id_rules: Path | None,
    log_level: str,
    log_format: str,
) -> None:
    """The sidecar: asks the kubelet who holds what, and tells Prometheus, people and programs."""
    for name, value, least in (
        ("--poll.interval", poll_interval, 0.1),
        ("--poll.timeout", poll_timeout, 0.1),
        ("--stale-after", stale_after, poll_interval),
        ("--history.retention", history_retention, 60.0),
    ):
        if value < least:
            raise click.BadParameter(f"found {value:g}s, expected at least {least:g}s", param_hint=name)
    if history_max_bytes < _LEAST_HISTORY:
        raise click.BadParameter(
            f"found {history_max_bytes} bytes, expected at least {_LEAST_HISTORY >> 20}MiB",
            param_hint="--history.max-bytes",
        )
    if (plugin_cert_file is None) is not (plugin_key_file is None):
        missing = "--plugin.cert-file" if plugin_cert_file is None else "--plugin.key-file"
        raise click.UsageError(f"expected {missing} too: a certificate is shown with its key")
    configure(log_level, log_format)
    end_at_once_on_signals()
    # Imported when it is sure to run: --help and a wrong flag answer at once.
    from exporter.main import Settings, main  # noqa: PLC0415

    settings = Settings(
        version=__version__,
        listen_address=web_listen_address,
        web_config=web_config_file,
        kubelet_root=kubelet_root,
        node=node_name,
        poll_interval=poll_interval,
        poll_timeout=poll_timeout,
        stale_after=stale_after,
        pods_source=pods_source,
        pod_labels=pod_labels,
        kubeconfig=kubeconfig,
        history_path=history_path,
        history_retention=history_retention,
        history_max_bytes=history_max_bytes,
        plugin_urls=plugin_url,
        plugin_access=PluginAccess(plugin_ca_file, plugin_cert_file, plugin_key_file, plugin_password_file),
        id_rules=id_rules,
        max_series=metrics_max_series,
    )
    sys.exit(run(lambda stop: main(settings, stop)))
