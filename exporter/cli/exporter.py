"""The command `devicelens exporter`: flags in, exit status out."""

import gc
import sys

import click

from exporter.settings import ExporterSettings
from runtime.flags import settings_command
from runtime.http.client import without_system_authorities
from runtime.log import configure
from runtime.process import end_at_once_on_signals, run


@settings_command(ExporterSettings)
def exporter(settings: ExporterSettings) -> None:
    """The sidecar: asks the kubelet who holds what, and serves it to Prometheus, people and programs."""
    if (settings.plugin_cert_file is None) is not (settings.plugin_key_file is None):
        missing = "--plugin.cert-file" if settings.plugin_cert_file is None else "--plugin.key-file"
        raise click.UsageError(f"expected {missing} too: a certificate is shown with its key")
    configure(settings.log_level, settings.log_format)
    end_at_once_on_signals()
    gc.disable()  # until `run`: modules are no garbage
    # Imported when it is sure to run: --help and a wrong flag answer at once.
    with without_system_authorities():
        from exporter.main import main  # noqa: PLC0415

    sys.exit(run(lambda stop: main(settings, stop)))
