"""SQL of history: the schema, the query, and the conversion of rows. Pure.

The table `present` has the few rows that are held, and changes. The table `past` has the many rows that
ended, and never changes: each of its index entries is written once. `id` is the same in both. The table
`watches` has the covered spans, `devices` the times of the devices. Values that are read are checked: the
file may be damaged.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from exporter.history.coverage import CoveredSpan, GapReason
from exporter.history.devices import DeviceRow, RecordedDevice
from exporter.history.query import HistoryQuery, reach, span_of, spellings
from exporter.history.record import Bound, Certainty, HoldingFacts, HoldingKey, HoldingRow
from exporter.mapping.model import DeviceKey

NOTHING_CHOSEN: Final[Mapping[str, Sequence[str] | None]] = MappingProxyType({})

APPLICATION: Final = 0x64766C73
"""PRAGMA application_id: "dvls"."""
VERSION: Final = 2
"""PRAGMA user_version: of this schema."""

_NAMES: Final = (
    *("resource", "driver", "pool", "device", "share_id", "claim_namespace", "claim"),
    *("namespace", "pod", "container", "uid", "workload_kind", "workload", "parent", "node"),
)
_START: Final = ("start_not_before", "start_not_after", "start_certainty")
_END: Final = ("end_not_before", "end_not_after", "end_certainty")

# A present row has the bounds of `missed` in the columns of the end.
PRESENT_COLUMNS: Final = ("id", *_NAMES, *_START, *_END, "assumed", "low")
PAST_COLUMNS: Final = (*PRESENT_COLUMNS, "span")
TABLES: Final = {"past": PAST_COLUMNS, "present": PRESENT_COLUMNS}

_TYPES: Final = {
    "id": "INTEGER PRIMARY KEY",
    "start_not_before": "REAL",
    "start_not_after": "REAL",
    "end_not_before": "REAL",
    "end_not_after": "REAL",
    "end_certainty": "TEXT",
    "low": "REAL NOT NULL",
    "span": "INTEGER NOT NULL",
    "assumed": "INTEGER NOT NULL",
}


def _table(name: str, columns: tuple[str, ...]) -> str:
    body = ", ".join(f"{column} {_TYPES.get(column, 'TEXT NOT NULL')}" for column in columns)
    return f"CREATE TABLE {name} ({body})"


_INDEXES: Final = {
    "past_time": "span, low",
    "past_resource": "resource, span, low",
    "past_driver": "driver, span, low",
    "past_device": "device, span, low",
    "past_parent": "parent, span, low",
    "past_namespace": "namespace, span, low",
    "past_pod": "pod, span, low",
    "past_uid": "uid, span, low",
    "past_end": "end_not_after",
}
# Columns that are empty in most rows have partial indexes.
_PARTIAL: Final = {"past_driver": "driver", "past_parent": "parent", "past_uid": "uid"}

DEVICE_COLUMNS: Final = ("id", "resource", "device", "parent", "healthy", "low", "since", "until", "high")

UPGRADE: Final = (
    # Version 2: the devices that nobody holds.
    """CREATE TABLE IF NOT EXISTS devices (id INTEGER PRIMARY KEY, resource TEXT NOT NULL,
device TEXT NOT NULL, parent TEXT NOT NULL, healthy INTEGER NOT NULL, low REAL NOT NULL,
since REAL NOT NULL, until REAL, high REAL)""",
    "CREATE INDEX IF NOT EXISTS devices_high ON devices (high)",
    f"PRAGMA user_version = {VERSION}",
)
"""From any earlier version to this one."""

SCHEMA: Final = (
    *(_table(name, columns) for name, columns in TABLES.items()),
    "CREATE TABLE watches (id INTEGER PRIMARY KEY, since REAL NOT NULL, until REAL NOT NULL, gap TEXT)",
    "CREATE INDEX watches_since ON watches (since)",
    "CREATE INDEX watches_until ON watches (until)",
    *(
        f"CREATE INDEX {name} ON past ({columns})"
        + (f" WHERE {_PARTIAL[name]} > ''" if name in _PARTIAL else "")
        for name, columns in _INDEXES.items()
    ),
    f"PRAGMA application_id = {APPLICATION}",
    *UPGRADE,
)


def _insert(table: str, columns: tuple[str, ...]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 -- constants


WRITE_PRESENT: Final = _insert("present", PRESENT_COLUMNS)
WRITE_PAST: Final = _insert("past", PAST_COLUMNS)
WRITE_SPAN: Final = _insert("watches", ("id", "since", "until", "gap"))
WRITE_DEVICE: Final = _insert("devices", DEVICE_COLUMNS)
DELETE_PRESENT: Final = "DELETE FROM present WHERE id = ?"

RESOURCES: Final = """\
WITH RECURSIVE known(name) AS (
  SELECT min(resource) FROM past INDEXED BY past_resource WHERE resource > ''
  UNION ALL
  SELECT (SELECT min(resource) FROM past INDEXED BY past_resource WHERE resource > name)
  FROM known WHERE name IS NOT NULL
)
SELECT name FROM known WHERE name IS NOT NULL
UNION SELECT resource FROM present WHERE resource > ''
UNION SELECT resource FROM devices WHERE resource > ''
ORDER BY 1 LIMIT 1000"""
"""All resources: one step in the index for each, whatever its number of rows of holdings."""

SPANS: Final = """\
WITH RECURSIVE known(span) AS (
  SELECT min(span) FROM past INDEXED BY past_time
  UNION ALL
  SELECT (SELECT min(span) FROM past INDEXED BY past_time WHERE past.span > known.span)
  FROM known WHERE known.span IS NOT NULL
)
SELECT span FROM known WHERE span IS NOT NULL"""
"""All classes of length."""

DRIVERS: Final = """\
SELECT DISTINCT driver FROM past INDEXED BY past_driver WHERE driver > ''
UNION SELECT driver FROM present WHERE driver > ''
ORDER BY 1 LIMIT 1000"""
"""All drivers."""

FEW: Final = 256
"""Names with a part up to which each is searched by its index. Rows of more names are met soon by going back
in time.
"""

_ALL: Final = 1_000_000

PARTS: Final = {"device": ("device", "parent"), "pod": ("pod",)}
"""The fields that match by a part of the name in the first column, and the columns that have whole names."""


def _named(column: str) -> tuple[str, ...]:
    """The tables with the names of a column."""
    holdings = (f"past INDEXED BY past_{column}", "present")
    return (*holdings, "devices") if column in PARTS["device"] else holdings


Chosen = Mapping[str, Sequence[str] | None]
"""The names that replace a field's, by field; None: those with the field's text as a part."""


def names(field: str, part: str, limit: int) -> tuple[str, dict[str, object]]:
    """The query for `limit` different names of a field with this part, and its parameters."""
    parameters: dict[str, object] = {"names": limit}
    where = f"WHERE {_has(field, part, parameters)}" if part else ""
    searches = " UNION ".join(
        # LIMIT -1: the condition is evaluated once for each name, not for each row.
        f"SELECT {field} FROM (SELECT DISTINCT {field} FROM {table} LIMIT -1) {where}"  # noqa: S608 -- constants
        for table in _named(field)
    )
    return f"{searches} LIMIT :names", parameters


def is_name(field: str, given: str) -> tuple[str, dict[str, object]]:
    """The query whether history has `given` as a whole name of a field, and its parameters."""
    parameters: dict[str, object] = {}
    conditions = [(column, _is(column, given, parameters)) for column in PARTS[field]]
    searches = [
        f"EXISTS (SELECT 1 FROM {table} WHERE {condition})"  # noqa: S608 -- constants
        for column, condition in conditions
        for table in _named(column)
    ]
    return f"SELECT {' OR '.join(searches)}", parameters


_CHOICES: Final = (
    ("uid", "past_uid"),
    ("device", "past_device"),
    ("pod", "past_pod"),
    ("driver", "past_driver"),
    ("namespace", "past_namespace"),
    ("resource", "past_resource"),
)
"""Filters, the most selective first, and their indexes."""


def find(
    question: HistoryQuery, spans: Iterable[int], chosen: Chosen = NOTHING_CHOSEN
) -> tuple[str, dict[str, object]]:
    """The query for the ids of limit + 1 rows, in order, each with `low`, and its parameters. `spans` are the
    existing classes of length: the query has a search for each.
    """
    parameters: dict[str, object] = {"rows": question.limit + 1}
    wanted = [
        _is(name, asked, parameters)
        for name in ("resource", "driver", "namespace", "pod", "container", "uid")
        if (asked := getattr(question, name)) and name not in chosen
    ]
    wanted += [
        _has(name, getattr(question, name), parameters) if found is None else _among(name, found, parameters)
        for name, found in chosen.items()
    ]
    if question.until is not None:
        parameters["until"] = question.until
        # At the moment of the last poll without it, it was not held.
        wanted.append("low <= :until AND (start_not_before IS NULL OR start_not_before < :until)")
    if question.after is not None:
        parameters |= {"low": question.after.low, "number": question.after.id}
        wanted.append("low <= :low AND (low < :low OR id < :number)")
    by_name = [(n, i) for n, i in _CHOICES if getattr(question, n) and chosen.get(n, ()) is not None]
    index = next((i for _, i in by_name), "past_time")
    searches: list[tuple[str, list[str]]] = [(index, wanted)]
    if question.device and "device" not in chosen:
        of_parent = "past_parent" if index == "past_device" else index
        searches = [
            (index, [_is("device", question.device, parameters), *wanted]),
            # A whole device is not its own parent: no row comes twice.
            (of_parent, [_is("parent", question.device, parameters), "device <> parent", *wanted]),
        ]
    parts: list[str] = []
    for by, conditions in searches:
        parts.extend(_past(conditions, by, spans, question.since, parameters))
        parts.append(_part("present", conditions))
    return f"{' UNION ALL '.join(parts)} ORDER BY low DESC, id DESC LIMIT :rows", parameters


# At the moment of the last poll without it, and of the first one, it was not known.
_OPEN_AT: Final = (
    "(low < :at OR since <= :at) AND (high IS NULL OR high > :at OR (high >= :at AND until >= :at))"
)


def devices(
    question: HistoryQuery, at: float, chosen: Chosen = NOTHING_CHOSEN
) -> tuple[str, dict[str, object]]:
    """The query for the rows of devices that may be of the moment `at`, and its parameters."""
    parameters: dict[str, object] = {"at": at}
    wanted: list[str] = []
    if question.resource or "resource" in chosen:
        resources = chosen.get("resource") or spellings(question.resource)
        wanted.append(_among("resource", resources, parameters))
    if "device" in chosen:
        found = chosen["device"]
        wanted.append(
            _has("device", question.device, parameters)
            if found is None
            else _among("device", found, parameters)
        )
    elif question.device:
        whole = (_is(column, question.device, parameters) for column in PARTS["device"])
        wanted.append(f"({' OR '.join(f'({one})' for one in whole)})")
    columns = ", ".join(DEVICE_COLUMNS)
    condition = " AND ".join(["device > ''", *wanted])
    statement = f"SELECT {columns} FROM devices WHERE {_OPEN_AT} AND (device = '' OR ({condition}))"  # noqa: S608 -- constants
    return statement, parameters


def held(
    question: HistoryQuery, spans: Iterable[int], chosen: Chosen = NOTHING_CHOSEN
) -> tuple[str, dict[str, object]]:
    """The query for the devices of all rows that `find` finds, on all pages, and its parameters."""
    statement, parameters = find(replace(question, after=None, limit=_ALL), spans, chosen)
    parts = [
        f"SELECT resource, device FROM {table} WHERE id IN (SELECT id FROM found)"  # noqa: S608 -- constants
        for table in TABLES
    ]
    return f"WITH found AS MATERIALIZED ({statement}) {' UNION '.join(parts)}", parameters


def fetch(table: str, columns: tuple[str, ...], count: int) -> str:
    """The query for `count` rows by their ids."""
    marks = ", ".join("?" * count)
    return f"SELECT {', '.join(columns)} FROM {table} WHERE id IN ({marks})"  # noqa: S608 -- constants


def _is(column: str, asked: str, parameters: dict[str, object]) -> str:
    return _among(column, spellings(asked), parameters)


def _has(column: str, part: str, parameters: dict[str, object]) -> str:
    """The condition of exporter.mapping.names.has_part."""
    parameters |= {f"{column}_part": part}
    return f"has_part({column}, :{column}_part)"


def _among(column: str, texts: Sequence[str], parameters: dict[str, object]) -> str:
    names = [f"{column}_{number}" for number in range(len(texts))]
    parameters.update(zip(names, texts, strict=True))
    # A partial index requires the second condition.
    condition = f"{column} = :{names[0]}" if len(names) == 1 else f"{column} IN (:{', :'.join(names)})"
    return f"{condition} AND {column} > ''"


def _past(
    wanted: list[str],
    index: str,
    spans: Iterable[int],
    since: float | None,
    parameters: dict[str, object],
) -> Iterator[str]:
    """A search for each class of length."""
    for span in spans:
        conditions = [f"span = {span}", *wanted]
        if since is not None:
            parameters |= {"since": since, f"from{span}": since - reach(span)}
            conditions.append(f"low > :from{span} AND end_not_after > :since")
        yield _part(f"past INDEXED BY {index}", conditions)


def _part(table: str, conditions: list[str]) -> str:
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    return (
        f"SELECT * FROM (SELECT id, low FROM {table} {where}"  # noqa: S608 -- constants
        "ORDER BY low DESC, id DESC LIMIT :rows)"
    )


class DamagedError(Exception):
    """The file is damaged; the message says what was found."""


def read_text(raw: bytes) -> str:
    """Decode text. Damaged text is shown as it is, instead of failing the whole answer."""
    return raw.decode(errors="replace")


def optional(value: object) -> float | None:
    """A time, or None. Raises DamagedError."""
    return None if value is None else real(value)


def real(value: object) -> float:
    """A time. Raises DamagedError."""
    if isinstance(value, float | int) and math.isfinite(value):
        return float(value)
    raise DamagedError(f"found {type(value).__name__}, expected a time")


def present_values(row: HoldingRow) -> tuple[object, ...]:
    """The values of PRESENT_COLUMNS."""
    end = row.end or row.missed
    bounds = (*_bound(row.start), *(_bound(end) if end is not None else (None, None, None)))
    return (row.id, *row.key, *row.facts, *bounds, int(row.assumed), row.low)


def past_values(row: HoldingRow) -> tuple[object, ...]:
    """The values of PAST_COLUMNS."""
    if row.end is None:
        raise ValueError(f"row {row.id} has not ended")
    return (*present_values(row), span(row))


def span(row: HoldingRow) -> int:
    """The class of length of a row that ended."""
    return span_of(row.high - row.low)


def _bound(bound: Bound) -> tuple[float | None, float | None, str]:
    return bound.not_before, bound.not_after, bound.certainty.value


def read_row(values: Sequence[object]) -> HoldingRow:
    """A row of PRESENT_COLUMNS or PAST_COLUMNS. Raises DamagedError."""
    try:
        number, *rest = values
        texts = [_string(value) for value in rest[:15]]
        start = _read_bound(rest[15:18])
        end = None if rest[20] is None else _read_bound(rest[18:21])
        over = len(rest) > 23 and rest[23] is not None
        return HoldingRow(
            id=int(str(number)),
            key=HoldingKey(*texts[:10]),
            facts=HoldingFacts(*texts[10:]),
            start=start,
            end=end if over else None,
            missed=None if over else end,
            assumed=bool(rest[21]),
        )
    except (TypeError, ValueError, IndexError) as error:
        raise DamagedError(f"a row is invalid: {error}") from error


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"found {type(value).__name__}, expected text")


def _read_bound(values: Sequence[object]) -> Bound:
    first, last, certainty = values
    return Bound(optional(first), optional(last), Certainty(_string(certainty)))


def device_values(row: DeviceRow) -> tuple[object, ...]:
    """The values of DEVICE_COLUMNS."""
    return (
        row.id,
        *row.key,
        row.facts.parent,
        int(row.facts.healthy),
        row.low,
        row.since,
        row.until,
        row.high,
    )


def read_device(values: Sequence[object]) -> DeviceRow:
    """A row of DEVICE_COLUMNS. Raises DamagedError."""
    number, resource, device, parent, healthy, low, since, until, high = values
    try:
        key, facts = (
            DeviceKey(_string(resource), _string(device)),
            RecordedDevice(_string(parent), bool(healthy)),
        )
        return DeviceRow(
            int(str(number)), key, facts, real(low), real(since), optional(until), optional(high)
        )
    except (TypeError, ValueError) as error:
        raise DamagedError(f"a row of a device is invalid: {error}") from error


def read_span(values: Sequence[object]) -> CoveredSpan:
    """A covered span. Raises DamagedError."""
    number, since, until, gap = values
    try:
        return CoveredSpan(
            int(str(number)), real(since), real(until), None if gap is None else GapReason(_string(gap))
        )
    except (TypeError, ValueError) as error:
        raise DamagedError(f"a covered span is invalid: {error}") from error
