"""Tables of history's file, and the statements that upgrade an older file. Pure.

- `present`: the few holdings that last; its rows change.
- `holdings`: the many that ended; its rows never change, so each index entry is written once. A name is a
  number of `texts` where it is repeated (exporter.history.texts). `slot` and times: exporter.history.rows.
  A row with a `pool` is a claimed device's that version 3 wrote: `requested_as` is its driver, `resource` is
  "", and `device` is its name in the pool.
- `holders`: the containers of `holdings`.
- `device_spans`: the times of devices (exporter.history.devices).
- `watches`: the covered spans.
- `past`: the ended holdings of a file of version 1 or 2, until all of them are in `holdings`.

`id` is the same in `present`, `past` and `holdings`.
"""

from typing import Final

APPLICATION: Final = 0x64766C73
"""PRAGMA application_id: "dvls"."""
VERSION: Final = 4
"""PRAGMA user_version: of this schema."""

_NAMES: Final = (
    *("resource", "device", "namespace", "pod", "container"),
    *("uid", "workload_kind", "workload", "parent", "node"),
    *("claim_namespace", "claim", "share_id", "requested_as"),
)
_FORMER_NAMES: Final = (
    *("resource", "driver", "pool", "device", "share_id", "claim_namespace", "claim"),
    *("namespace", "pod", "container", "uid", "workload_kind", "workload", "parent", "node"),
)
_START: Final = ("start_not_before", "start_not_after", "start_certainty")
_END: Final = ("end_not_before", "end_not_after", "end_certainty")
_BOUND_COLUMNS: Final = (*_START, *_END, "assumed", "low")

PRESENT_COLUMNS: Final = ("id", *_NAMES, *_BOUND_COLUMNS)
"""Of `present`. The columns of the end have the bounds of `missed`."""
FORMER_COLUMNS: Final = ("id", *_FORMER_NAMES, *_BOUND_COLUMNS)
"""Of `present` before version 4."""
PAST_COLUMNS: Final = (*FORMER_COLUMNS, "span")
"""Of `past`."""
HOLDING_COLUMNS: Final = (
    *("id", "slot", "started", "lasted", "ending", "certainty"),
    *("resource", "requested_as", "pool", "device", "parent", "namespace", "claim", "holder"),
)
HOLDER_COLUMNS: Final = ("pod", "uid", "container", "workload_kind", "workload", "node")
"""Of `holders`, after its id."""
DEVICE_COLUMNS: Final = ("id", "resource", "device", "parent", "healthy", "low", "since", "until", "high")
"""Of `device_spans`, and of `devices` in version 2. `healthy` is null where the health is unknown."""

_TYPES: Final = {
    "start_not_before": "REAL",
    "start_not_after": "REAL",
    "end_not_before": "REAL",
    "end_not_after": "REAL",
    "end_certainty": "TEXT",
    "low": "REAL NOT NULL",
    "assumed": "INTEGER NOT NULL",
}

ENDED: Final = "(slot & 18014398509481983) + lasted"
"""The end of a row of `holdings`, in ticks."""

UID_BEGINS: Final = "substr(uid, 1, 6)"
"""What the index has of a uid: so much differs between pods."""

_TYPED: Final = ", ".join(f"{column} {_TYPES.get(column, 'TEXT NOT NULL')}" for column in PRESENT_COLUMNS[1:])
_PRESENT: Final = (
    f"CREATE TABLE present (id INTEGER PRIMARY KEY, {_TYPED})",
    "CREATE INDEX present_low ON present (low)",
    "CREATE INDEX present_resource ON present (resource)",
)

_COMPACT: Final = (
    "CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    f"CREATE TABLE holdings (id INTEGER PRIMARY KEY, {', '.join(HOLDING_COLUMNS[1:])})",
    f"CREATE TABLE holders (id INTEGER PRIMARY KEY, {', '.join(HOLDER_COLUMNS)})",
    f"CREATE TABLE device_spans (id INTEGER PRIMARY KEY, {', '.join(DEVICE_COLUMNS[1:])})",
    "CREATE INDEX device_spans_high ON device_spans (high)",
    "CREATE INDEX device_spans_resource ON device_spans (resource)",
    "CREATE INDEX holdings_time ON holdings (slot)",
    # Columns that are empty in most rows have partial indexes.
    "CREATE INDEX holdings_resource ON holdings (resource, slot) WHERE resource <> ''",
    # Its name is that of version 3: an index cannot be renamed.
    "CREATE INDEX holdings_driver ON holdings (requested_as, slot) WHERE requested_as <> ''",
    "CREATE INDEX holdings_device ON holdings (device, slot)",
    "CREATE INDEX holdings_parent ON holdings (parent, slot) WHERE parent <> ''",
    "CREATE INDEX holdings_namespace ON holdings (namespace, slot)",
    "CREATE INDEX holdings_holder ON holdings (holder)",
    f"CREATE INDEX holdings_end ON holdings ({ENDED})",
    "CREATE INDEX holders_pod ON holders (pod)",
    f"CREATE INDEX holders_uid ON holders ({UID_BEGINS}) WHERE uid <> ''",
)

_VERSION: Final = f"PRAGMA user_version = {VERSION}"

SCHEMA: Final = (
    *_PRESENT,
    "CREATE TABLE watches (id INTEGER PRIMARY KEY, since REAL NOT NULL, until REAL NOT NULL, gap TEXT)",
    "CREATE INDEX watches_since ON watches (since)",
    "CREATE INDEX watches_until ON watches (until)",
    f"PRAGMA application_id = {APPLICATION}",
    *_COMPACT,
    _VERSION,
)
"""Of an empty file."""


def upgrade(version: int) -> tuple[str, ...]:
    """The statements from an older version to this one. They take no longer in a large file: no row of
    `holdings` changes. The rows of `present` are read before and written again after them, those of `devices`
    and `past` converted after them.
    """
    renamed = ("ALTER TABLE holdings RENAME COLUMN driver TO requested_as",)
    return ("DROP TABLE present", *_PRESENT, *(renamed if version == 3 else _COMPACT), _VERSION)
