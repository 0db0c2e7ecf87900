"""SQL of history's queries. Pure.

A query searches three tables: `present`, which is small, `holdings`, whose names are mostly numbers, and
`past` while an older file is upgraded. Of both large tables it has a search for each class of length
(exporter.history.query), so that each search reads little more than what it finds.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from exporter.history.query import SPANS, HistoryQuery, reach, spellings
from exporter.history.rows import LATEST, LOW_BITS, TICKS, Encode, ticks, uid_value
from exporter.history.schema import (
    DEVICE_COLUMNS,
    ENDED,
    HOLDER_COLUMNS,
    HOLDING_COLUMNS,
    PAST_COLUMNS,
    PRESENT_COLUMNS,
    UID_BEGINS,
)


def _insert(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 -- constants


WRITE_PRESENT: Final = _insert("present", PRESENT_COLUMNS)
WRITE_HOLDING: Final = _insert("holdings", HOLDING_COLUMNS)
WRITE_HOLDER: Final = _insert("holders", HOLDER_COLUMNS)
WRITE_TEXT: Final = _insert("texts", ("id", "text"))
WRITE_SPAN: Final = _insert("watches", ("id", "since", "until", "gap"))
WRITE_DEVICE: Final = _insert("device_spans", DEVICE_COLUMNS)
DELETE_PRESENT: Final = "DELETE FROM present WHERE id = ?"


def _uid_begins(value: str) -> str:
    return f"{UID_BEGINS} = substr({value}, 1, 6) AND uid <> ''"


_SAME_HOLDER: Final = " AND ".join(f"{column} = ?{n}" for n, column in enumerate(HOLDER_COLUMNS, start=1))
_HOLDER: Final = "SELECT id FROM holders INDEXED BY"
HOLDER_BY_UID: Final = f"{_HOLDER} holders_uid WHERE {_SAME_HOLDER} AND {_uid_begins('?2')}"
HOLDER_BY_POD: Final = f"{_HOLDER} holders_pod WHERE {_SAME_HOLDER}"

LOW: Final = f"(slot & {LATEST})"
"""The `low` of a row of `holdings`, in ticks."""

_FETCHED: Final = {
    "holdings": (
        f"SELECT {', '.join(f'h.{column}' for column in HOLDING_COLUMNS)}, "  # noqa: S608 -- constants
        f"{', '.join(f'c.{column}' for column in HOLDER_COLUMNS)} "
        "FROM holdings h LEFT JOIN holders c ON c.id = h.holder"
    ),
    "past": f"SELECT {', '.join(PAST_COLUMNS)} FROM past",  # noqa: S608 -- constants
    "present": f"SELECT {', '.join(PRESENT_COLUMNS)} FROM present",  # noqa: S608 -- constants
}


def fetch(table: str, condition: str = "") -> str:
    """The query for whole rows of holdings: HOLDING_COLUMNS and HOLDER_COLUMNS, PAST_COLUMNS, or
    PRESENT_COLUMNS.
    """
    return f"{_FETCHED[table]} {condition}"


def fetch_some(table: str, count: int) -> str:
    """The same for `count` rows by their ids."""
    number = "h.id" if table == "holdings" else "id"
    return fetch(table, f"WHERE {number} IN ({', '.join('?' * count)})")


def distinct(table: str, column: str) -> str:
    """The query for the different values of a column. In a large table it is one step in the column's index
    for each, whatever its number of rows.
    """
    if table in {"present", "device_spans"}:
        return f"SELECT DISTINCT {column} FROM {table} WHERE {column} <> ''"  # noqa: S608 -- constants
    # As in the conditions of the partial indexes.
    named = f"{column} > ''" if table == "past" else f"{column} <> ''"
    values = f"FROM {table} INDEXED BY {table}_{column} WHERE {named}"
    return f"""\
WITH RECURSIVE known(value) AS (
  SELECT min({column}) {values}
  UNION ALL
  SELECT (SELECT min({column}) {values} AND {column} > value) FROM known WHERE value IS NOT NULL
)
SELECT value FROM known WHERE value IS NOT NULL"""  # noqa: S608 -- constants


PAST_SPANS: Final = """\
WITH RECURSIVE known(span) AS (
  SELECT min(span) FROM past INDEXED BY past_time
  UNION ALL
  SELECT (SELECT min(span) FROM past INDEXED BY past_time WHERE past.span > known.span)
  FROM known WHERE known.span IS NOT NULL
)
SELECT span FROM known WHERE span IS NOT NULL"""
"""The classes of length in `past`."""


def has_span(span: int) -> str:
    """The query whether `holdings` has a class of length."""
    return f"SELECT EXISTS (SELECT 1 FROM holdings WHERE {_of_span(span)})"  # noqa: S608 -- a number


def _of_span(span: int) -> str:
    return f"slot >= {span << LOW_BITS} AND slot < {span + 1 << LOW_BITS}"


FEW: Final = 256
"""Names with a part up to which each is searched by its index. Rows of more names are met soon by going back
in time.
"""

FEW_ROWS: Final = 8192
"""Holdings of a pod or a uid up to which they are searched by the pod. More are met soon in other ways."""

PARTS: Final = {"device": ("device", "parent"), "pod": ("pod",)}
"""The fields that match by a part of the name in the first column, and the columns that have whole names."""


class NameSet(Struct, frozen=True):
    """The names that replace the name of a query's field. `many`: more than FEW, and `names` of pods has the
    first of them.
    """

    names: Sequence[str]
    many: bool = False


NOTHING_CHOSEN: Final[Mapping[str, NameSet]] = {}


class Content(Struct, frozen=True):
    """What the store has: the classes of length of `holdings` and of `past` (None: there is no `past`), and
    the dictionary.
    """

    spans: Collection[int]
    past: Collection[int] | None = None
    encode: Encode = field(default=lambda text: text)


class _Search(Struct, frozen=True):
    """A part of a query: a table with its index, its conditions, and what its rows are ordered by."""

    table: str
    conditions: Sequence[str]
    order: str = "low"
    low: str = "low"


_CHOICES: Final = ("uid", "device", "pod", "driver", "namespace", "resource")
"""Filters with an index, the most selective first."""


def find(
    question: HistoryQuery,
    content: Content,
    chosen: Mapping[str, NameSet] = NOTHING_CHOSEN,
    *,
    by_holder: bool = False,
) -> tuple[str, dict[str, object]]:
    """The query for the ids of limit + 1 rows, in order, each with `low`, and its parameters. `by_holder`:
    search the rows by their pods.
    """
    parameters: dict[str, object] = {"rows": question.limit + 1}
    parts = (
        f"SELECT * FROM (SELECT id, {search.low} AS low FROM {search.table}"  # noqa: S608 -- constants
        f"{_where(search)} ORDER BY {search.order} DESC, id DESC LIMIT :rows)"
        for search in _searches(question, content, chosen, parameters, by_holder=by_holder)
    )
    return f"{' UNION ALL '.join(parts)} ORDER BY low DESC, id DESC LIMIT :rows", parameters


def held(
    question: HistoryQuery, content: Content, chosen: Mapping[str, NameSet] = NOTHING_CHOSEN
) -> tuple[str, dict[str, object]]:
    """The query for the devices of all rows that `find` finds, on all pages, and its parameters."""
    parameters: dict[str, object] = {}
    parts = (
        f"SELECT resource, device FROM {search.table}{_where(search)}"  # noqa: S608 -- constants
        for search in _searches(question, content, chosen, parameters, by_holder=False)
    )
    return " UNION ".join(parts), parameters


def _where(search: _Search) -> str:
    return f" WHERE {' AND '.join(search.conditions)}" if search.conditions else ""


def _searches(
    question: HistoryQuery,
    content: Content,
    chosen: Mapping[str, NameSet],
    parameters: dict[str, object],
    *,
    by_holder: bool,
) -> Iterator[_Search]:
    by_name = (n for n in _CHOICES if getattr(question, n) and not (n in chosen and chosen[n].many))
    yield from _present(question, chosen, parameters, content, next(by_name, "time"))
    yield from _holdings(question, chosen, parameters, content, by_holder=by_holder)


# Tables with texts: `present`, and `past` of an older file.


def _present(
    question: HistoryQuery,
    chosen: Mapping[str, NameSet],
    parameters: dict[str, object],
    content: Content,
    index: str,
) -> Iterator[_Search]:
    wanted = [
        _is(name, asked, parameters)
        for name in ("resource", "driver", "namespace", "pod", "container", "uid")
        if (asked := getattr(question, name)) and name not in chosen
    ]
    wanted += [
        _has(name, getattr(question, name), parameters)
        if found.many
        else _among(name, found.names, parameters)
        for name, found in chosen.items()
    ]
    if question.until is not None:
        parameters["until"] = question.until
        # At the moment of the last poll without it, it was not held.
        wanted.append("low <= :until AND (start_not_before IS NULL OR start_not_before < :until)")
    if question.after is not None:
        parameters |= {"low": question.after.low, "number": question.after.id}
        wanted.append("low <= :low AND (low < :low OR id < :number)")
    searches = [(index, wanted)]
    if question.device and "device" not in chosen:
        searches = [
            (index, [_is("device", question.device, parameters), *wanted]),
            # A whole device is not its own parent: no row comes twice.
            (
                "parent" if index == "device" else index,
                [_is("parent", question.device, parameters), "device <> parent", *wanted],
            ),
        ]
    for by, conditions in searches:
        yield _Search("present", conditions)
        for span in content.past or ():
            yield _past(span, by, conditions, question.since, parameters)


def _past(
    span: int, index: str, wanted: Sequence[str], since: float | None, parameters: dict[str, object]
) -> _Search:
    conditions = [f"span = {span}", *wanted]
    if since is not None:
        parameters |= {"since": since, f"past{span}": since - reach(span)}
        conditions.append(f"low > :past{span} AND end_not_after > :since")
    return _Search(f"past INDEXED BY past_{index}", conditions)


def _is(column: str, asked: str, parameters: dict[str, object]) -> str:
    return _among(column, spellings(asked), parameters)


def _has(column: str, part: str, parameters: dict[str, object]) -> str:
    """The condition of exporter.mapping.names.has_part."""
    parameters |= {f"{column}_part": part}
    return f"has_part({column}, :{column}_part)"


def _among(column: str, texts: Sequence[str], parameters: dict[str, object]) -> str:
    # A partial index of `past` requires the second condition.
    return f"{_in(column, column, texts, parameters)} AND {column} > ''"


def _in(column: str, name: str, values: Sequence[object], parameters: dict[str, object]) -> str:
    if len(values) > FEW:
        parameters[name] = json.dumps(values)
        return f"{column} IN (SELECT value FROM json_each(:{name}))"  # noqa: S608 -- constants
    names = [f"{name}_{number}" for number in range(len(values))]
    parameters.update(zip(names, values, strict=True))
    return f"{column} = :{names[0]}" if len(names) == 1 else f"{column} IN (:{', :'.join(names)})"


# The table with numbers.


def _holdings(
    question: HistoryQuery,
    chosen: Mapping[str, NameSet],
    parameters: dict[str, object],
    content: Content,
    *,
    by_holder: bool,
) -> Iterator[_Search]:
    encode = content.encode
    wanted = [
        _coded(name, _names(name, question, chosen), encode, parameters)
        for name in ("resource", "driver", "namespace")
        if getattr(question, name)
    ]
    holder = holder_condition(question, chosen, encode, parameters)
    index = next(
        (n for n in _CHOICES if n not in {"uid", "pod"} and getattr(question, n) and not _many(n, chosen)),
        "time",
    )
    if by_holder:
        index = "holder"
        wanted.append(f"holder IN (SELECT +id FROM holders WHERE {holder})")  # noqa: S608 -- constants
    elif holder:
        wanted.append(f"EXISTS (SELECT 1 FROM holders WHERE id = holder AND {holder})")  # noqa: S608 -- constants
    searches = [(index, wanted)]
    if question.device:
        names = _coded("device", _names("device", question, chosen), encode, parameters)
        searches = [(index, [names, *wanted])]
        if "device" not in chosen:
            parents = _coded("parent", spellings(question.device), encode, parameters)
            by = "parent" if index == "device" else index
            searches.append((by, [parents, "device <> parent", *wanted]))
    low = f"{LOW} / {TICKS}.0"
    order, column, spans = ("slot", "slot", content.spans) if index != "holder" else (low, LOW, (None,))
    times = list(_times(question, column, spans, parameters))
    for by, conditions in searches:
        for time in times:
            yield _Search(f"holdings INDEXED BY holdings_{by}", [*conditions, time], order, low)


def _many(name: str, chosen: Mapping[str, NameSet]) -> bool:
    return name in chosen and chosen[name].many


def _names(name: str, question: HistoryQuery, chosen: Mapping[str, NameSet]) -> Sequence[str]:
    return chosen[name].names if name in chosen else spellings(getattr(question, name))


def _coded(column: str, texts: Sequence[str], encode: Encode, parameters: dict[str, object]) -> str:
    # A partial index requires the second condition.
    return f"{_in(column, f'{column}_code', [*map(encode, texts)], parameters)} AND {column} <> ''"


def holder_condition(
    question: HistoryQuery, chosen: Mapping[str, NameSet], encode: Encode, parameters: dict[str, object]
) -> str:
    """The condition for the rows of `holders` that a query asks for; "" for all."""
    conditions: list[str] = []
    if question.uid:
        names = [f"uid_value_{number}" for number in range(len(spellings(question.uid)))]
        parameters.update(zip(names, map(uid_value, spellings(question.uid)), strict=True))
        whole = (f"uid = :{name} AND {_uid_begins(f':{name}')}" for name in names)
        conditions.append(f"({' OR '.join(whole)})")
    if _many("pod", chosen):
        conditions.append(_has("pod", question.pod, parameters))
    elif question.pod:
        conditions.append(_in("pod", "holder_pod", _names("pod", question, chosen), parameters))
    if question.container:
        values = [*map(encode, spellings(question.container))]
        conditions.append(_in("container", "holder_container", values, parameters))
    return " AND ".join(conditions)


def holdings_of(condition: str) -> str:
    """The query for the number of rows, up to FEW_ROWS + 1, of the holders that meet `condition`."""
    return (
        "SELECT count(*) FROM (SELECT 1 FROM holdings INDEXED BY holdings_holder "  # noqa: S608 -- constants
        f"WHERE holder IN (SELECT +id FROM holders WHERE {condition}) LIMIT {FEW_ROWS + 1})"
    )


def _times(
    question: HistoryQuery, column: str, spans: Iterable[int | None], parameters: dict[str, object]
) -> Iterator[str]:
    """The conditions of time for each class, on slots, or for all rows (None), on LOW."""
    since, until, after = question.since, question.until, question.after
    last = LATEST if until is None else ticks(until)
    if after is not None:
        last = -1 if after.after_rows else min(last, ticks(after.low))
        parameters["number"] = after.id
    if since is not None:
        parameters["since_ticks"] = since * TICKS
    above, below = (0 if until is None else _above(until)), (0 if after is None else ticks(after.low))
    for span in spans:
        base, mark = (0, "") if span is None else (span << LOW_BITS, str(span))
        first = -1 if since is None else ticks(since - reach(SPANS if span is None else span)) - 1
        parameters |= {f"first{mark}": base + first, f"last{mark}": base + last}
        conditions = f"{column} > :first{mark} AND {column} <= :last{mark}"
        if until is not None:
            # At the moment of the last poll without it, it was not held.
            parameters[f"until{mark}"] = base + above
            conditions += f" AND (started IS NULL OR {column} < :until{mark})"
        if since is not None:
            conditions += f" AND {ENDED} > :since_ticks"
        if after is not None:
            parameters[f"after{mark}"] = base + below
            conditions += f" AND ({column} < :after{mark} OR id < :number)"
        yield conditions


def _above(seconds: float) -> int:
    """The first tick that is not before a time."""
    return ticks(seconds) + (ticks(seconds) < seconds * TICKS)


# Names.


def names(part: str, limit: int, tables: Iterable[str]) -> tuple[str, dict[str, object]]:
    """The query for `limit` different names of pods with this part in some tables, and its parameters."""
    parameters: dict[str, object] = {"names": limit}
    where = f"WHERE {_has('pod', part, parameters)}" if part else ""
    searches = " UNION ".join(
        # LIMIT -1: the condition is evaluated once for each name, not for each row.
        f"SELECT pod FROM (SELECT DISTINCT pod FROM {table} LIMIT -1) {where}"  # noqa: S608 -- constants
        for table in tables
    )
    return f"{searches} LIMIT :names", parameters


def is_name(field: str, given: str, content: Content) -> tuple[str, dict[str, object]]:
    """The query whether history has `given` as a whole name of a field, and its parameters."""
    parameters: dict[str, object] = {}
    texts = ("present",) if content.past is None else ("present", "past")
    coded = ("holdings", "device_spans")
    conditions = [(table, _is(column, given, parameters)) for column in PARTS[field] for table in texts]
    if field == "pod":
        conditions.append(("holders", _in("pod", "holder_pod", spellings(given), parameters)))
    else:
        conditions += [
            (table, _coded(column, spellings(given), content.encode, parameters))
            for column in PARTS[field]
            for table in coded
        ]
    searches = (f"EXISTS (SELECT 1 FROM {table} WHERE {condition})" for table, condition in conditions)  # noqa: S608 -- constants
    return f"SELECT {' OR '.join(searches)}", parameters


# Devices.

# At the moment of the last poll without it, and of the first one, it was not known.
_OPEN_AT: Final = (
    "(low < :at OR since <= :at) AND (high IS NULL OR high > :at OR (high >= :at AND until >= :at))"
)


def devices(
    question: HistoryQuery,
    at: float,
    encode: Callable[[str], int | str],
    chosen: Mapping[str, NameSet] = NOTHING_CHOSEN,
) -> tuple[str, dict[str, object]]:
    """The query for the rows of devices that may be of the moment `at`, and its parameters."""
    parameters: dict[str, object] = {"at": at}
    wanted: list[str] = []
    if question.resource:
        wanted.append(_coded("resource", _names("resource", question, chosen), encode, parameters))
    if question.device:
        whole = [_coded("device", _names("device", question, chosen), encode, parameters)]
        if "device" not in chosen:
            whole.append(_coded("parent", spellings(question.device), encode, parameters))
        wanted.append(f"({' OR '.join(f'({one})' for one in whole)})")
    columns = ", ".join(DEVICE_COLUMNS)
    condition = " AND ".join(["device <> ''", *wanted])
    statement = f"SELECT {columns} FROM device_spans WHERE {_OPEN_AT} AND (device = '' OR ({condition}))"  # noqa: S608 -- constants
    return statement, parameters
