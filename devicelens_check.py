"""The command `devicelens check`: configuration files checked, without a host and without a kubelet.

Files of both kinds, so it belongs to neither process: the plugin's configuration, and what both take as
`--web.config.file`.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import click

from plugin.config.load import load as load_plugin
from plugin.config.load import load_all, read
from plugin.presets import PRESETS
from plugin.settings import PluginSettings
from runtime.config_file import MAX_BYTES, ConfigError, parse
from runtime.flags import settings_flag
from runtime.http.web_config import KEYS, read_named_files
from runtime.http.web_config import load as load_web
from runtime.text import quoted, visible

_STDIN: Final = "-"
_PLUGIN_KEYS: Final = frozenset({"version", "resources"})

Kind = Literal["plugin", "web"]


@dataclass(frozen=True, slots=True)
class _File:
    """A file that was read. `source` is what messages call it; its relative paths begin in `directory`."""

    source: str
    content: bytes
    directory: Path


@click.command()
@click.argument(
    "files",
    nargs=-1,
    metavar="FILE…",
    type=click.Path(path_type=Path, allow_dash=True),
)
@click.option(
    "--kind",
    type=click.Choice(("plugin", "web")),
    default=None,
    show_default="by its keys",
    help="What the files are: configurations of the plugin, or web configurations.",
)
@settings_flag(PluginSettings, "allow")
@click.option(
    "--syntax-only", is_flag=True, help="Do not read the certificates that a web configuration names."
)
@click.option(
    "--schema", is_flag=True, help="Print the JSON Schema of the plugin's configuration files, for editors."
)
def check(
    *, files: tuple[Path, ...], kind: Kind | None, allow: frozenset[str], syntax_only: bool, schema: bool
) -> None:
    """Check configuration files: the plugin's, each by itself and all together, and those that are given as
    --web.config.file, with the certificates that they name.

    `-` is standard input. Exit status 1 with one line for each file that cannot be used: file, line,
    place, what was found and what was expected.
    """
    if schema is bool(files):
        raise click.UsageError("expected FILE… to check, or --schema alone")
    if schema:
        click.echo(_schema(), nl=False)
        return
    names = [str(file) for file in files]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"found {quoted(name)} {names.count(name)} times, expected each file once")
    failed = False
    plugins: list[_File] = []
    for name in names:
        try:
            file = _read(name)
            if (kind or _kind(file)) == "web":
                good = _check_web(file, certificates=not syntax_only)
            else:
                good = _check_plugin(file, allow)
                plugins.append(file)
        except ConfigError as error:
            click.echo(str(error), err=True)
            failed = True
        else:
            click.echo(f"{visible(file.source)}: ok, {good}")
    try:
        _check_together(plugins, allow)
    except ConfigError as error:
        click.echo(str(error), err=True)
        failed = True
    sys.exit(int(failed))


def _read(name: str) -> _File:
    """Raises ConfigError."""
    if name == _STDIN:
        return _File("stdin", sys.stdin.buffer.read(MAX_BYTES + 1), Path())
    return _File(name, read(Path(name)), Path(name).parent)


def _kind(file: _File) -> Kind:
    """Which kind it is, by its keys: one of the plugin's makes it the plugin's. Raises ConfigError."""
    document = parse(file.content, file.source)
    keys = document.root.value if isinstance(document.root.value, dict) else {}
    return "web" if not _PLUGIN_KEYS & keys.keys() and keys.keys() & set(KEYS) else "plugin"


def _check_plugin(file: _File, allowed: frozenset[str]) -> str:
    """What is in it, in words. Raises ConfigError."""
    plans = load_plugin(file.content, file.source, allowed=allowed)
    return "1 resource" if len(plans) == 1 else f"{len(plans)} resources"


def _check_together(files: list[_File], allowed: frozenset[str]) -> None:
    """Raises ConfigError for files of the plugin that cannot be used at once."""
    if len(files) > 1:
        load_all([(file.source, file.content) for file in files], allowed=allowed)


def _check_web(file: _File, *, certificates: bool) -> str:
    """What it configures, in words. Raises ConfigError."""
    if not certificates:
        return load_web(file.content, file.source, file.directory).words()
    files = read_named_files(file.content, file.source, file.directory)
    files.tls_context()
    return files.config.words()


def _schema() -> str:
    """The JSON Schema as docs/plugin.schema.json has it."""
    # It reads the language's own source.
    from plugin.config.schema import schema  # noqa: PLC0415

    return json.dumps(schema(PRESETS), indent=2, ensure_ascii=False) + "\n"
