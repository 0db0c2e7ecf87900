"""The document as tables, JSON or YAML. Everything from outside is spelled out; JSON and YAML are ASCII."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, TextIO

import msgspec

from daemon.text import visible
from plugin.discover.document import (
    Allocation,
    Answer,
    DeviceDocument,
    DiscoverDocument,
    ResourceDocument,
    Specification,
)

_COLUMNS: Final = ("DEVICE", "HEALTH", "NUMA", "PATH", "ATTRIBUTES", "REASON")
_INDENT: Final = "  "
_CUT: Final = 160
"""Characters of a cell; JSON and YAML have all."""
_MOST: Final = 1000
"""Devices of a resource that the table shows."""


def as_json(document: DiscoverDocument) -> str:
    """The document. What is not ASCII is escaped, for a terminal may act upon it."""
    plain = json.dumps(msgspec.to_builtins(document), indent=2, ensure_ascii=True)
    return plain.replace("\x7f", "\\u007f")


def as_yaml(document: DiscoverDocument) -> str:
    """The document, as YAML."""
    import yaml  # noqa: PLC0415 -- for -o yaml alone

    class Dumper(yaml.SafeDumper):
        """Without references: what is said twice is written twice."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 -- as inherited
            return True

    return yaml.dump(msgspec.to_builtins(document), Dumper=Dumper, sort_keys=False, allow_unicode=False)


def print_tables(document: DiscoverDocument, out: TextIO) -> None:
    """Each resource with its devices, and what it would give."""
    for number, resource in enumerate(document.resources):
        if number:
            out.write("\n")
        out.write(f"{_headline(resource)}\n")
        if resource.devices:
            _table(resource.devices[:_MOST], out)
        if len(resource.devices) > _MOST:
            out.write(f"  and {len(resource.devices) - _MOST} more: -o json has them all\n")
        out.writelines(f"  {line}\n" for line in _remarks(resource))
        for allocation in resource.allocations:
            out.writelines(f"  {line}\n" for line in _allocated(allocation))
        if resource.cdi is not None:
            out.writelines(f"  {line}\n" for line in _specified(resource.cdi))


def _headline(resource: ResourceDocument) -> str:
    name = visible(resource.name)
    family = "" if resource.family in {None, resource.name} else f" (of {visible(resource.family or '')})"
    if resource.problem is not None:
        return f"{name}{family}: cannot look: {visible(resource.problem)}"
    if not resource.devices:
        waits = "registered with none" if resource.registers else "waits for some"
        return f"{name}{family}: no devices, {waits}"
    ids = sum(len(device.ids) for device in resource.devices)
    healthy = sum(device.health == "Healthy" for device in resource.devices)
    shared = f", advertised as {ids}" if ids != len(resource.devices) else ""
    count = "1 device" if len(resource.devices) == 1 else f"{len(resource.devices)} devices"
    return f"{name}{family}: {count}, {healthy} healthy{shared}"


def _remarks(resource: ResourceDocument) -> Iterator[str]:
    for note in resource.notes:
        yield f"note: {visible(note)}"
    for one in resource.left_out:
        yield f"left out: {visible(one.device)}: {visible(one.reason)}"
    for other in resource.conflicts:
        yield f"conflict: {visible(other.device)} is kept by {visible(other.resource)}"
    for other in resource.clashes:
        yield f"conflict: the id {visible(other.device)} is advertised by {visible(other.resource)} too"


def _allocated(allocation: Allocation) -> Iterator[str]:
    yield f"Allocate {visible(','.join(allocation.ids))}:"
    if allocation.refused is not None:
        yield f"  refused: {allocation.refused.code}: {visible(allocation.refused.message)}"
    if allocation.answer is not None:
        yield from (f"  {line}" for line in _answered(allocation.answer) or ("nothing",))
    for path in allocation.dropped:
        yield f"  optional, not there: {visible(path)}"
    for made in allocation.makes:
        yield f"  would make the {made.kind} {visible(made.path)}"
    for written in allocation.writes:
        yield f"  would write {visible(written.path)} ({written.mode}): {visible(written.content, _CUT)}"
    for command in allocation.pre_start:
        yield f"  would run before each start: {visible(' '.join(command))}"


def _answered(answer: Answer) -> list[str]:
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


def _specified(specification: Specification) -> Iterator[str]:
    path = visible(specification.path)
    if specification.content is None:
        yield f"no CDI specification {path}: it would have no device"
    else:
        yield f"would write the CDI specification {path}:"
        text = json.dumps(specification.content, indent=2, ensure_ascii=True)
        yield from (f"  {visible(line)}" for line in text.splitlines())
    for one in specification.left_out:
        yield f"not in it: {visible(one.device)}: {visible(one.reason)}"


def _table(devices: Iterable[DeviceDocument], out: TextIO) -> None:
    """In colour and fitted on a terminal, else plain and as wide as it is."""
    from rich.console import Console  # noqa: PLC0415 -- not for -o json
    from rich.table import Table  # noqa: PLC0415 -- as above
    from rich.text import Text  # noqa: PLC0415 -- as above

    terminal = out.isatty()
    console = Console(
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
        console.width -= len(_INDENT)
    rows = [tuple(visible(cell, _CUT) for cell in _cells(device)) for device in devices]
    shown = [column for column in range(len(_COLUMNS)) if column < 2 or any(row[column] for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in shown:
        table.add_column(_COLUMNS[column], overflow="fold", no_wrap=_COLUMNS[column] in {"HEALTH", "NUMA"})
    for row in rows:
        style = "bold red" if row[1] == "Unhealthy" else ""
        table.add_row(*(Text(row[column], style=style if column == 1 else "") for column in shown))
    with console.capture() as capture:
        console.print(table)
    out.writelines(f"{_INDENT}{line.rstrip()}\n" for line in capture.get().splitlines())


def _cells(device: DeviceDocument) -> tuple[str, ...]:
    return (
        device.id if len(device.ids) == 1 else f"{device.id} ({len(device.ids)} ids)",
        device.health,
        ",".join(map(str, device.numa_nodes)),
        device.path or " ".join(device.nodes),
        " ".join(f"{key}={value}" for key, value in device.attributes.items() if value),
        device.reason,
    )
