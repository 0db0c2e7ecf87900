"""The answer as a table or as JSON. Everything from outside is spelled out; JSON is pure ASCII."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TextIO

import msgspec

from exporter.web.api.schema import DeviceEntry, DevicesDocument, HolderEntry
from exporter.web.words import clock_time, lasting, ranges, spelled, text
from exporter.who.select import Pod, of_pod

_TABLE = ("RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER", "SINCE")
_WIDE = (*_TABLE, "PARENT", "NUMA", "UID")
_CUT = 120
"""Characters of a cell of the plain table; the wide one and JSON have all."""
_STYLES = {"unhealthy": "bold red", "free": "green", "perhaps": "yellow"}


def as_json(document: msgspec.Struct) -> str:
    """The document in the API's shape. What is not ASCII is escaped, for a terminal may act upon it."""
    plain = json.dumps(msgspec.to_builtins(document), indent=2, ensure_ascii=True)
    return plain.replace("\x7f", "\\u007f")


def rows(document: DevicesDocument, pod: Pod | None, *, wide: bool) -> list[tuple[str, ...]]:
    """The table's cells: a row for each holder (of `pod` only, if one is given), one for each free device."""
    now = _now(document)
    found = _rows(document, pod, now, wide=wide)
    if wide:
        return list(found)
    return [tuple(text(cell, limit=_CUT).shown for cell in cells[: len(_TABLE)]) for cells in found]


def _rows(document: DevicesDocument, pod: Pod | None, now: float, *, wide: bool) -> Iterator[tuple[str, ...]]:
    for device in document.devices:
        holders: list[HolderEntry | None] = [
            h for h in device.holders if pod is None or of_pod(h.namespace, h.pod, pod)
        ]
        for holder in holders or [None]:
            yield (
                *(spelled(device.resource), spelled(device.device), state(device)),
                *(
                    ("", "", "")
                    if holder is None
                    else (
                        spelled(f"{holder.namespace}/{holder.pod}"),
                        spelled(holder.container),
                        _since(holder, now, wide=wide),
                    )
                ),
                *(spelled(device.parent or ""), ranges(device.numa_nodes)),
                spelled((holder.pod_uid if holder is not None else None) or ""),
            )


def state(device: DeviceEntry) -> str:
    """unhealthy, held or free, in one word; who holds it stands beside."""
    if device.healthy is False:
        return "unhealthy"
    return "held" if device.holders else "free"


def _since(holder: HolderEntry, now: float, *, wide: bool) -> str:
    if holder.since is None:
        return ""
    at = unix(holder.since)
    if at is None:
        return spelled(holder.since)
    before = "" if holder.since_exact else "before "
    clock = spelled(holder.since) if wide else f"{clock_time(at, now)}Z"
    return f"{before}{clock} ({lasting(now - at)})"


def unix(stamp: str) -> float | None:
    """Unix time of an RFC 3339 text, None for any other."""
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


def _now(document: DevicesDocument) -> float:
    """The exporter's present, by its own clock: this machine's may differ."""
    taken = unix(document.taken_at or "")
    return (taken or 0.0) + max(0.0, document.age_seconds or 0.0)


def print_table(document: DevicesDocument, pod: Pod | None, *, wide: bool, out: TextIO) -> None:
    """A table of `document` on `out`."""
    print_rows(_WIDE if wide else _TABLE, rows(document, pod, wide=wide), out)


def print_rows(names: Sequence[str], cells: Iterable[Sequence[str]], out: TextIO) -> None:
    """A table on `out`, in colour on a terminal. Lines are as long as they are: where a terminal breaks one,
    an id can still be copied whole. The third column tells the state.
    """
    from rich.console import Console  # noqa: PLC0415 -- not for -o json
    from rich.table import Table  # noqa: PLC0415 -- as above
    from rich.text import Text  # noqa: PLC0415 -- as above

    terminal = out.isatty()
    console = Console(
        file=out,
        width=1_000_000,
        color_system="auto" if terminal else None,
        force_terminal=terminal,
        force_interactive=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=True)
    for row in cells:
        table.add_row(
            *(Text(cell, style=_STYLES.get(cell, "") if i == 2 else "") for i, cell in enumerate(row))
        )
    with console.capture() as capture:
        console.print(table)
    out.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())
