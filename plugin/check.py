"""The command `devicelens check`: configuration files checked, without a host and without a kubelet."""

import json
import sys
from pathlib import Path
from typing import Final

import click

from daemon.errors import ConfigError, quoted
from daemon.text import visible
from daemon.yaml_document import MAX_BYTES, parse
from plugin.core.config import load, load_all
from plugin.presets import PRESETS

_STDIN: Final = "-"
_WEB_KEYS: Final = frozenset({"tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"})


@click.command()
@click.argument(
    "files",
    nargs=-1,
    metavar="FILE…",
    type=click.Path(path_type=Path, allow_dash=True),
)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of configuration files, for editors.")
def check(*, files: tuple[Path, ...], schema: bool) -> None:
    """Check configuration files of the plugin, each by itself and all together.

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
    good: list[tuple[str, bytes]] = []
    for name in names:
        try:
            source, content = _read(name)
            plans = load(content, source)
        except ConfigError as error:
            click.echo(str(error), err=True)
            continue
        good.append((source, content))
        count = "1 resource" if len(plans) == 1 else f"{len(plans)} resources"
        click.echo(f"{visible(source)}: ok, {count}")
    try:
        load_all(good)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    sys.exit(0 if len(good) == len(names) else 1)


def _read(name: str) -> tuple[str, bytes]:
    """What messages call the file, and its content, which looks like a plugin's. Raises ConfigError."""
    if name == _STDIN:
        source, content = "stdin", sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        source = name
        try:
            with Path(name).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            problem = f"cannot be read: {error.strerror or type(error).__name__}"
            raise ConfigError(source, None, (), problem) from None
    document = parse(content, source)
    keys = document.root.value if isinstance(document.root.value, dict) else {}
    for key in keys:
        if key in _WEB_KEYS:
            raise document.error((key,), "is a key of a web.config.file, expected a plugin's configuration")
    return source, content


def _schema() -> str:
    """The JSON Schema as docs/plugin.schema.json has it."""
    # Imported when it is asked for: it reads the language's own source.
    from plugin.core.schema import schema  # noqa: PLC0415

    return json.dumps(schema(PRESETS), indent=2, ensure_ascii=False) + "\n"
