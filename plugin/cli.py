"""The command `devicelens plugin`: flags in, exit status out."""

import os
import sys
from pathlib import Path
from typing import Literal

import click

from plugin.flags import config_flag, host_root_flag, preset_flag
from runtime.flags import ListenAddress, flag, process_flags
from runtime.log import configure
from runtime.process import end_at_once_on_signals, run
from runtime.version import __version__


@click.command()
@config_flag()
@preset_flag()
@process_flags(":10191")
@flag(
    "--kubelet.registration",
    type=click.Choice(("socket", "registry")),
    default="socket",
    help="How the kubelet is told: by a call to its socket in device-plugins, or by a socket in"
    " plugins_registry, which it watches.",
)
@host_root_flag()
def plugin(
    *,
    config: Path | None,
    preset: tuple[str, ...],
    web_listen_address: ListenAddress,
    web_config_file: Path | None,
    kubelet_root: Path,
    node_name: str,
    log_level: str,
    log_format: str,
    kubelet_registration: Literal["socket", "registry"],
    host_root: Path,
) -> None:
    """The device plugin: advertises the devices that a configuration describes."""
    if config is None and not preset:
        raise click.UsageError("expected --config FILE or --preset NAME: nothing says which devices to serve")
    configure(log_level, log_format)
    end_at_once_on_signals()
    # gRPC's core would write lines of its own form; what matters of them comes as errors too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Imported when it is sure to run: --help and a wrong flag answer at once.
    from plugin.main import Settings, main  # noqa: PLC0415

    settings = Settings(
        version=__version__,
        listen_address=web_listen_address,
        web_config=web_config_file,
        kubelet_root=kubelet_root,
        node=node_name,
        config=config,
        presets=preset,
        host_root=host_root,
        way=kubelet_registration,
    )
    sys.exit(run(lambda stop: main(settings, stop)))
