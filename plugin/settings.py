"""The flags of `devicelens plugin`, each declared once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import click

from plugin.config.privileges import PRIVILEGES, parse_privileges
from plugin.presets import PRESETS
from runtime.flags import (
    DIRECTORY,
    FILE,
    ListenAddress,
    Parsed,
    ProcessSettings,
    listen_address_setting,
    setting,
)
from runtime.text import advice, quoted


def _parse_preset(text: str) -> str:
    names = sorted(PRESETS)
    if text not in names:
        raise ValueError(f"found {quoted(text)}{advice(text, names)}, expected one of {', '.join(names)}")
    return text


PRESET: Final = Parsed("preset", _parse_preset)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings(ProcessSettings):
    """What the plugin's flags say. At least one of `config` and `preset` is given."""

    web_listen_address: ListenAddress = listen_address_setting(":10191")
    config: Path | None = setting(
        "--config", type=FILE, help="Configuration file: which resources, from which devices."
    )
    preset: tuple[str, ...] = setting(
        "--preset",
        type=PRESET,
        multiple=True,
        metavar="NAME",
        help=f"A ready-made configuration; may be given several times: {', '.join(sorted(PRESETS))}.",
    )
    allow: frozenset[str] = setting(
        "--allow",
        type=Parsed("list", parse_privileges),
        default=",".join(PRIVILEGES),
        metavar="LIST",
        help="What configurations may use: exec (programs, run as root) and host-mounts (host paths in "
        "containers, files written on the host); none forbids both.",
    )
    kubelet_registration: Literal["socket", "registry"] = setting(
        "--kubelet.registration",
        type=click.Choice(("socket", "registry")),
        default="socket",
        help="How to register with the kubelet: by a call to its socket in device-plugins, or by a socket in "
        "plugins_registry, which it watches.",
    )
    host_root: Path = setting(
        "--host-root",
        type=DIRECTORY,
        default=Path("/"),
        help="Where the host's files are: devices are discovered below it. Pods are given paths without it.",
    )
