"""The command `devicelens discover`, and its output as tables, JSON or YAML.

Untrusted text is escaped; JSON and YAML are ASCII.
"""

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import click
import msgspec
import yaml

from plugin.config.load import PRESET_SOURCE, load_all, read
from plugin.config.plan import ResourcePlan
from plugin.discover.dry_run import (
    AllocateAnswer,
    DiscoveredDevice,
    DiscoveredResource,
    DryAllocation,
    DryRunDocument,
    DryRunSpecification,
    dry_run,
)
from plugin.discovery.host import HostRoot
from plugin.presets import PRESETS
from plugin.settings import PluginSettings
from runtime.config_file import ConfigError
from runtime.flags import settings_flag
from runtime.text import advice, named, quoted, visible

_EPILOG = """\b
Exit status:
  0  scanned, with devices or without
  1  the configuration is invalid, or a source failed
  2  wrong usage
"""


class ContainerRequest(click.ParamType[tuple[str, tuple[str, ...]]]):
    """RESOURCE=ID,ID…: the request of one container."""

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
@settings_flag(PluginSettings, "config")
@settings_flag(PluginSettings, "preset")
@settings_flag(PluginSettings, "allow")
@settings_flag(PluginSettings, "host_root")
@click.option(
    "--allocate",
    type=ContainerRequest(),
    multiple=True,
    metavar="RESOURCE=ID,…",
    help="The request of a container; may be given several times. By default one request for the first"
    " healthy id of each resource.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(("table", "json", "yaml")),
    default="table",
    show_default=True,
    help="Output format.",
)
def discover(
    *,
    config: Path | None,
    preset: tuple[str, ...],
    allow: frozenset[str],
    host_root: Path,
    allocate: tuple[tuple[str, tuple[str, ...]], ...],
    output: str,
) -> None:
    """A dry run: what would be advertised on this host, and what Allocate would answer.

    It scans the host once and runs every probe once, including programs of the configuration. It writes
    nothing and uses no kubelet.
    """
    if config is None and not preset:
        raise click.UsageError("expected --config FILE or --preset NAME: no resource is configured")
    try:
        plans = _plans(config, preset, allow)
    except ConfigError as error:
        click.echo(f"devicelens: {error}", err=True)
        sys.exit(1)
    requests: dict[str, list[Sequence[str]]] = {}
    for resource, ids in allocate:
        requests.setdefault(resource, []).append(ids)
    resources = asyncio.run(dry_run(plans, HostRoot(host_root), requests))
    names = [resource.name for resource in resources]
    for resource in requests:
        if resource not in names:
            hint = advice(resource, names) or f", expected one of {', '.join(names)}"
            raise click.BadParameter(
                f"found no resource {quoted(resource)}{visible(hint)}", param_hint="--allocate"
            )
    document = DryRunDocument(1, str(host_root), resources)
    if output == "json":
        click.echo(as_json(document))
    elif output == "yaml":
        click.echo(as_yaml(document), nl=False)
    else:
        print_tables(document, sys.stdout)
    if any(resource.problem is not None for resource in resources):
        sys.exit(1)


def _plans(config: Path | None, presets: Sequence[str], allowed: frozenset[str]) -> tuple[ResourcePlan, ...]:
    files = [(str(config), read(config))] if config is not None else []
    named = ((PRESET_SOURCE + name, PRESETS[name].read_bytes()) for name in presets)
    return load_all([*files, *named], allowed=allowed)


_COLUMNS: Final = ("DEVICE", "HEALTH", "NUMA", "PATH", "ATTRIBUTES", "REASON")
_INDENT: Final = "  "
_CUT: Final = 160
"""Characters of a table cell."""
_REASONS: Final = 16
"""Reasons why devices of a resource are not offered."""
_MOST: Final = 1000
"""Devices in the table of a resource."""


def as_json(document: DryRunDocument) -> str:
    """The document as JSON. Other characters than ASCII are escaped, as a terminal may interpret them."""
    plain = json.dumps(msgspec.to_builtins(document), indent=2, ensure_ascii=True)
    return plain.replace("\x7f", "\\u007f")


def as_yaml(document: DryRunDocument) -> str:
    """The document as YAML."""
    return yaml.dump(msgspec.to_builtins(document), Dumper=_Dumper, sort_keys=False, allow_unicode=False)


class _Dumper(yaml.SafeDumper):
    """Writes repeated values again instead of references."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 -- as inherited
        return True


def print_tables(document: DryRunDocument, out: TextIO) -> None:
    """Write each resource with its devices and allocations."""
    members = {resource.family for resource in document.resources if resource.family != resource.name}
    for number, resource in enumerate(document.resources):
        if number:
            out.write("\n")
        out.write(f"{_headline(resource, is_family=resource.name in members)}\n")
        if resource.devices:
            _table(resource.devices[:_MOST], out)
        if len(resource.devices) > _MOST:
            out.write(f"  and {len(resource.devices) - _MOST} more: -o json has them all\n")
        out.writelines(f"  {line}\n" for line in _remarks(resource))
        for allocation in resource.allocations:
            out.writelines(f"  {line}\n" for line in _allocated(allocation))
        if resource.cdi is not None:
            out.writelines(f"  {line}\n" for line in _specified(resource.cdi))


def _headline(resource: DiscoveredResource, *, is_family: bool) -> str:
    name = visible(resource.name)
    if is_family:
        return f"{name}: what none of its resources offers"
    family = "" if resource.family in {None, resource.name} else f" (of {visible(resource.family or '')})"
    if resource.problem is not None:
        return f"{name}{family}: scan failed: {visible(resource.problem)}"
    if not resource.devices:
        waits = "registered with none" if resource.registers else "waits for some"
        return f"{name}{family}: no devices, {waits}"
    ids = sum(len(device.ids) for device in resource.devices)
    healthy = sum(device.health == "Healthy" for device in resource.devices)
    shared = f", advertised as {ids}" if ids != len(resource.devices) else ""
    count = "1 device" if len(resource.devices) == 1 else f"{len(resource.devices)} devices"
    return f"{name}{family}: {count}, {healthy} healthy{shared}"


def _remarks(resource: DiscoveredResource) -> Iterator[str]:
    for note in resource.notes:
        yield f"note: {visible(note)}"
    for one in resource.left_out:
        yield f"left out: {visible(one.device)}: {visible(one.reason)}"
    yield from _not_offered(resource)
    for other in resource.conflicts:
        yield f"conflict: {visible(other.device)} is kept by {visible(other.resource)}"
    for other in resource.clashes:
        yield f"conflict: the id {visible(other.device)} is advertised by {visible(other.resource)} too"


def _not_offered(resource: DiscoveredResource) -> Iterator[str]:
    """One line for each reason, at most `_REASONS`."""
    names: dict[str, list[str]] = {}
    for one in resource.not_offered:
        names.setdefault(one.reason, []).append(visible(one.device, _CUT))
    groups = list(names.items())
    for reason, devices in groups[:_REASONS]:
        yield f"not offered: {named(devices)}: {visible(reason)}"
    more = resource.not_listed + sum(len(devices) for _, devices in groups[_REASONS:])
    if more:
        yield f"not offered: {more} more"


def _allocated(allocation: DryAllocation) -> Iterator[str]:
    yield f"Allocate {visible(','.join(allocation.ids))}:"
    if allocation.refused is not None:
        yield f"  refused: {allocation.refused.code}: {visible(allocation.refused.message)}"
    if allocation.answer is not None:
        yield from (f"  {line}" for line in _answered(allocation.answer) or ("nothing",))
    for path in allocation.dropped:
        yield f"  optional, not there: {visible(path)}"
    for made in allocation.makes:
        yield f"  would create the {made.kind} {visible(made.path)}"
    for written in allocation.writes:
        yield f"  would write {visible(written.path)} ({written.mode}): {visible(written.content, _CUT)}"
    for command in allocation.pre_start:
        yield f"  would run before each start: {visible(' '.join(command))}"


def _answered(answer: AllocateAnswer) -> list[str]:
    return [
        *(f"env {visible(name)}={visible(value)}" for name, value in answer.envs.items()),
        *(
            f"device {visible(node.host_path)}{_at(node.host_path, node.container_path)} {node.permissions}"
            for node in answer.devices
        ),
        *(
            f"mount {visible(mount.host_path)}{_at(mount.host_path, mount.container_path)}"
            f" {'ro' if mount.read_only else 'rw'}"
            for mount in answer.mounts
        ),
        *(f"annotation {visible(key)}={visible(value)}" for key, value in answer.annotations.items()),
        *(f"cdi {visible(device.name)}" for device in answer.cdi_devices),
    ]


def _at(host: str, container: str) -> str:
    return "" if host == container else f" at {visible(container)}"


def _specified(specification: DryRunSpecification) -> Iterator[str]:
    path = visible(specification.path)
    if specification.content is None:
        yield f"no CDI specification {path}: it would have no device"
    else:
        yield f"would write the CDI specification {path}:"
        text = json.dumps(specification.content, indent=2, ensure_ascii=True)
        yield from (f"  {visible(line)}" for line in text.splitlines())
    for one in specification.left_out:
        yield f"not in it: {visible(one.device)}: {visible(one.reason)}"


def _table(devices: Iterable[DiscoveredDevice], out: TextIO) -> None:
    """On a terminal coloured and fitted to its width, otherwise plain and as wide as needed."""
    # Not at start: -o json does without.
    from rich import console, table, text  # noqa: PLC0415

    terminal = out.isatty()
    screen = console.Console(
        file=out,
        width=None if terminal else 1_000_000,
        color_system="auto" if terminal else None,
        force_terminal=terminal,
        force_interactive=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    if terminal:
        screen.width -= len(_INDENT)
    rows = [tuple(visible(cell, _CUT) for cell in _cells(device)) for device in devices]
    shown = [column for column in range(len(_COLUMNS)) if column < 2 or any(row[column] for row in rows)]
    drawn = table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in shown:
        drawn.add_column(_COLUMNS[column], overflow="fold", no_wrap=_COLUMNS[column] in {"HEALTH", "NUMA"})
    for row in rows:
        style = "bold red" if row[1] == "Unhealthy" else ""
        drawn.add_row(*(text.Text(row[column], style=style if column == 1 else "") for column in shown))
    with screen.capture() as capture:
        screen.print(drawn)
    out.writelines(f"{_INDENT}{line.rstrip()}\n" for line in capture.get().splitlines())


def _cells(device: DiscoveredDevice) -> tuple[str, ...]:
    return (
        device.id if len(device.ids) == 1 else f"{device.id} ({len(device.ids)} ids)",
        device.health,
        ",".join(map(str, device.numa_nodes)),
        device.path or " ".join(device.nodes),
        " ".join(f"{key}={value}" for key, value in device.attributes.items() if value),
        device.reason,
    )
