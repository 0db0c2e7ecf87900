"""Flags that the plugin's commands share: which configuration, on which host."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from plugin.presets import PRESETS
from runtime.config_file import advice, quoted
from runtime.flags import flag

F = TypeVar("F", bound=Callable[..., Any])


class PresetName(click.ParamType[str]):
    """The name of a preset; for another one the nearest, and all that there are."""

    name = "preset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it is."""
        names = sorted(PRESETS)
        if value not in names:
            hint = advice(str(value), names)
            self.fail(f"found {quoted(value)}{hint}, expected one of {', '.join(names)}", param, ctx)
        return str(value)


def config_flag() -> Callable[[F], F]:
    """`--config FILE`."""
    return flag(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Configuration file: which resources, from which devices.",
    )


def preset_flag() -> Callable[[F], F]:
    """`--preset NAME`, several times."""
    return flag(
        "--preset",
        type=PresetName(),
        multiple=True,
        metavar="NAME",
        help=f"A ready-made configuration; may be given several times: {', '.join(sorted(PRESETS))}.",
    )


def host_root_flag() -> Callable[[F], F]:
    """`--host-root DIRECTORY`."""
    return flag(
        "--host-root",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("/"),
        metavar="DIRECTORY",
        help="Where the host's files are: devices are looked for below it. Pods are given paths without it.",
    )
