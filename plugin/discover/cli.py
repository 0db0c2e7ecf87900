"""The command: flags, exit codes, and the one clear line when it cannot."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from daemon.errors import ConfigError, advice, quoted
from daemon.text import visible
from daemon.yaml_document import MAX_BYTES
from plugin.core.config import PRESET_SOURCE, load_all
from plugin.core.plan import ResourcePlan
from plugin.flags import config_flag, host_root_flag, preset_flag
from plugin.presets import PRESETS

_EPILOG = """\b
Exit status:
  0  looked, whether there are devices or not
  1  the configuration cannot be used, or the host not be looked at
  2  wrong usage
"""


class Containers(click.ParamType[tuple[str, tuple[str, ...]]]):
    """RESOURCE=ID,ID…: what one container asks for."""

    name = "request"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[str, ...]]:
        """The resource and the ids."""
        if isinstance(value, tuple):
            return value
        resource, _, ids = str(value).partition("=")
        given = tuple(i for i in ids.split(",") if i)
        if not resource or not given:
            self.fail(f"found {quoted(str(value))}, expected RESOURCE=ID or RESOURCE=ID,ID", param, ctx)
        return resource, given


@click.command(epilog=_EPILOG)
@config_flag()
@preset_flag()
@host_root_flag()
@click.option(
    "--allocate",
    type=Containers(),
    multiple=True,
    metavar="RESOURCE=ID,…",
    help="What a container asks for; may be given several times. Without it each resource is asked for"
    " its first healthy id.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(("table", "json", "yaml")),
    default="table",
    show_default=True,
    help="How to answer.",
)
def discover(
    *,
    config: Path | None,
    preset: tuple[str, ...],
    host_root: Path,
    allocate: tuple[tuple[str, tuple[str, ...]], ...],
    output: str,
) -> None:
    """A dry run: what would be advertised on this host, and what Allocate would answer.

    Devices are looked for once and every probe is asked once; programs of the configuration that find
    devices or probe them are run, nothing is written and no kubelet is spoken to.
    """
    if config is None and not preset:
        raise click.UsageError("expected --config FILE or --preset NAME: nothing says what to look for")
    try:
        plans = _plans(config, preset)
    except ConfigError as error:
        click.echo(f"devicelens: {error}", err=True)
        sys.exit(1)
    asked: dict[str, list[Sequence[str]]] = {}
    for resource, ids in allocate:
        asked.setdefault(resource, []).append(ids)
    # Imported when it is sure to run: --help and a wrong flag answer at once.
    from plugin.discover.document import DiscoverDocument  # noqa: PLC0415
    from plugin.discover.dry_run import dry_run  # noqa: PLC0415
    from plugin.discover.show import as_json, as_yaml, print_tables  # noqa: PLC0415
    from plugin.discovery.host import HostRoot  # noqa: PLC0415

    resources = asyncio.run(dry_run(plans, HostRoot(host_root), asked))
    names = [resource.name for resource in resources]
    for resource in asked:
        if resource not in names:
            hint = advice(resource, names) or f", expected one of {', '.join(names)}"
            raise click.BadParameter(
                f"found no resource {quoted(resource)}{visible(hint)}", param_hint="--allocate"
            )
    document = DiscoverDocument(1, str(host_root), resources)
    if output == "json":
        click.echo(as_json(document))
    elif output == "yaml":
        click.echo(as_yaml(document), nl=False)
    else:
        print_tables(document, sys.stdout)
    if any(resource.problem is not None for resource in resources):
        sys.exit(1)


def _plans(config: Path | None, presets: Sequence[str]) -> tuple[ResourcePlan, ...]:
    files = [(str(config), _read(config))] if config is not None else []
    return load_all([*files, *((PRESET_SOURCE + name, PRESETS[name]) for name in presets)])


def _read(path: Path) -> bytes:
    """A file's content, bounded. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or type(error).__name__}"
        raise ConfigError(str(path), None, (), problem) from None
