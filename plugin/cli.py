"""The command `devicelens plugin`: flags in, exit status out."""

import gc
import os
import sys

import click

from plugin.settings import PluginSettings
from runtime.flags import settings_command
from runtime.http.client import without_system_authorities
from runtime.log import configure
from runtime.process import end_at_once_on_signals, run


@settings_command(PluginSettings)
def plugin(settings: PluginSettings) -> None:
    """The device plugin: advertises the devices that a configuration describes."""
    if settings.config is None and not settings.preset:
        raise click.UsageError("expected --config FILE or --preset NAME: nothing says which devices to serve")
    configure(settings.log_level, settings.log_format)
    end_at_once_on_signals()
    gc.disable()  # until `run`: modules are no garbage
    # gRPC's core would write lines of its own form; what matters of them comes as errors too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Imported when it is sure to run: --help and a wrong flag answer at once.
    with without_system_authorities():
        from plugin.main import main  # noqa: PLC0415

    sys.exit(run(lambda stop: main(settings, stop)))
