"""Tables of history's file, and the statements that upgrade an older file. Pure.

- `present`: the few holdings that last; its rows change.
- `holdings`: the many that ended; its rows never change, so each index entry is written once. A name is a
  number of `texts` where it is repeated (exporter.history.texts). `slot` and times: exporter.history.rows.
- `holders`: the containers of `holdings`.
- `device_spans`: the times of devices (exporter.history.devices).
- `watches`: the covered spans.
- `past`: the ended holdings of a file of version 1 or 2, until all of them are in `holdings`.

`id` is the same in `present`, `past` and `holdings`.
"""

from typing import Final

APPLICATION: Final = 0x64766C73
"""PRAGMA application_id: "dvls"."""
VERSION: Final = 3
"""PRAGMA user_version: of this schema."""

_NAMES: Final = (
    *("resource", "driver", "pool", "device", "share_id", "claim_namespace", "claim"),
    *("namespace", "pod", "container", "uid", "workload_kind", "workload", "parent", "node"),
)
_START: Final = ("start_not_before", "start_not_after", "start_certainty")
_END: Final = ("end_not_before", "end_not_after", "end_certainty")

PRESENT_COLUMNS: Final = ("id", *_NAMES, *_START, *_END, "assumed", "low")
"""Of `present`. The columns of the end have the bounds of `missed`."""
PAST_COLUMNS: Final = (*PRESENT_COLUMNS, "span")
"""Of `past`."""
HOLDING_COLUMNS: Final = (
    *("id", "slot", "started", "lasted", "ending", "certainty"),
    *("resource", "driver", "pool", "device", "parent", "namespace", "claim", "holder"),
)
HOLDER_COLUMNS: Final = ("pod", "uid", "container", "workload_kind", "workload", "node")
"""Of `holders`, after its id."""
DEVICE_COLUMNS: Final = ("id", "resource", "device", "parent", "healthy", "low", "since", "until", "high")
"""Of `device_spans`, and of `devices` in version 2."""

_TYPES: Final = {
    "start_not_before": "REAL",
    "start_not_after": "REAL",
    "end_not_before": "REAL",
    "end_not_after": "REAL",
    "end_certainty": "TEXT",
    "low": "REAL NOT NULL",
    "assumed": "INTEGER NOT NULL",
}
_PRESENT: Final = ", ".join(f"{column} {_TYPES.get(column, 'TEXT NOT NULL')}" for column in _NAMES)
_BOUNDS: Final = ", ".join(
    f"{column} {_TYPES.get(column, 'TEXT NOT NULL')}" for column in (*_START, *_END, "assumed", "low")
)

ENDED: Final = "(slot & 18014398509481983) + lasted"
"""The end of a row of `holdings`, in ticks."""

UID_BEGINS: Final = "substr(uid, 1, 6)"
"""What the index has of a uid: so much differs between pods."""

_COMPACT: Final = (
    "CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    f"CREATE TABLE holdings (id INTEGER PRIMARY KEY, {', '.join(HOLDING_COLUMNS[1:])})",
    f"CREATE TABLE holders (id INTEGER PRIMARY KEY, {', '.join(HOLDER_COLUMNS)})",
    f"CREATE TABLE device_spans (id INTEGER PRIMARY KEY, {', '.join(DEVICE_COLUMNS[1:])})",
    "CREATE INDEX device_spans_high ON device_spans (high)",
    "CREATE INDEX device_spans_resource ON device_spans (resource)",
    "CREATE INDEX present_low ON present (low)",
    "CREATE INDEX present_resource ON present (resource)",
    "CREATE INDEX holdings_time ON holdings (slot)",
    # Columns that are empty in most rows have partial indexes.
    "CREATE INDEX holdings_resource ON holdings (resource, slot) WHERE resource <> ''",
    "CREATE INDEX holdings_driver ON holdings (driver, slot) WHERE driver <> ''",
    "CREATE INDEX holdings_device ON holdings (device, slot)",
    "CREATE INDEX holdings_parent ON holdings (parent, slot) WHERE parent <> ''",
    "CREATE INDEX holdings_namespace ON holdings (namespace, slot)",
    "CREATE INDEX holdings_holder ON holdings (holder)",
    f"CREATE INDEX holdings_end ON holdings ({ENDED})",
    "CREATE INDEX holders_pod ON holders (pod)",
    f"CREATE INDEX holders_uid ON holders ({UID_BEGINS}) WHERE uid <> ''",
    f"PRAGMA user_version = {VERSION}",
)

SCHEMA: Final = (
    f"CREATE TABLE present (id INTEGER PRIMARY KEY, {_PRESENT}, {_BOUNDS})",
    "CREATE TABLE watches (id INTEGER PRIMARY KEY, since REAL NOT NULL, until REAL NOT NULL, gap TEXT)",
    "CREATE INDEX watches_since ON watches (since)",
    "CREATE INDEX watches_until ON watches (until)",
    f"PRAGMA application_id = {APPLICATION}",
    *_COMPACT,
)
"""Of an empty file."""

UPGRADE: Final = _COMPACT
"""From version 1 or 2 to this one. The rows of `devices` and `past` are converted after it."""
