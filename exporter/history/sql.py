"""SQL of history's queries. Pure.

A query searches three tables: `present`, which is small, `holdings`, whose names are mostly numbers, and
`past` while an older file is upgraded. Of both large tables it has a search for each class of length
(exporter.history.query), so that each search reads little more than what it finds.

A claim has no index. Claims that are generated for a pod have the pod's name, and are found by it; for others
a search goes back in time.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from exporter.history.query import SPANS, HistoryQuery, reach, spellings
from exporter.history.rows import LATEST, LOW_BITS, TICKS, Encode, claim_begins, ticks, uid_value
from exporter.history.schema import (
    DEVICE_COLUMNS,
    ENDED,
    FORMER_COLUMNS,
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
FETCH_FORMER: Final = f"SELECT {', '.join(FORMER_COLUMNS)} FROM present ORDER BY id"  # noqa: S608 -- constants
"""The rows of `present` before version 4."""


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
    index = f"past_{column}" if table == "past" else holdings_index(column)
    values = f"FROM {table} INDEXED BY {index} WHERE {named}"
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
    by_name = (n for n in _CHOICES if getattr(question, n) and not _many(n, chosen))
    yield from _with_texts(question, chosen, parameters, content, next(by_name, "time"))
    yield from _holdings(question, chosen, parameters, content, by_holder=by_holder)


def _many(name: str, chosen: Mapping[str, NameSet]) -> bool:
    return name in chosen and chosen[name].many


def _names(name: str, question: HistoryQuery, chosen: Mapping[str, NameSet]) -> Sequence[str]:
    return chosen[name].names if name in chosen else spellings(getattr(question, name))


class _Terms(Struct, frozen=True):
    """Conditions on names: of a table with texts, or with numbers, which `encode` gives."""

    parameters: dict[str, object]
    encode: Encode | None = None

    def among(self, field: str, column: str, names: Sequence[str]) -> str:
        """`column` has one of `names`; `field` names the parameters."""
        if self.encode is None:
            return _in(column, field, names, self.parameters)
        return _in(column, f"{field}_code", [*map(self.encode, names)], self.parameters)

    def by_index(self, field: str, column: str, names: Sequence[str]) -> str:
        """The same, as a partial index on the column requires it."""
        return f"{self.among(field, column, names)} AND {column} {'>' if self.encode is None else '<>'} ''"


def _of_device(
    question: HistoryQuery, chosen: Mapping[str, NameSet], terms: _Terms, index: str, *, former: bool
) -> Sequence[tuple[str, Sequence[str]]]:
    """The searches for the query's device: an index, and conditions. `former`: the table may have rows of
    version 3, where a device `pool/device` has two columns.
    """
    if not question.device:
        return [(index, [])]
    names = _names("device", question, chosen)
    if terms.encode is None and _many("device", chosen):
        return [(index, [_has("device", question.device, terms.parameters)])]
    found = [(index, [terms.by_index("device", "device", names)])]
    if "device" not in chosen:
        if former:
            found[0][1].append(_in_own_pool(terms))
        # A whole device is not its own parent: no row comes twice.
        parent = [terms.by_index("device", "parent", names), "device <> parent"]
        found.append(("parent" if index == "device" else index, parent))
        if former and (in_pool := _in_pool(names, terms)):
            found.append((index, [in_pool]))
    return found


def _in_own_pool(terms: _Terms) -> str:
    """The condition for rows whose device is named without a pool, as devices of the node's own pool are."""
    node = "node" if terms.encode is None else "(SELECT node FROM holders WHERE id = holder)"
    return f"(pool = '' OR pool = {node})"


def _in_pool(names: Iterable[str], terms: _Terms) -> str:
    """The condition for rows of version 3 with one of these devices, "" where none has a pool."""
    parts = [name.rpartition("/") for name in names if "/" in name]
    if not parts:
        return ""
    pools, _, devices = zip(*parts, strict=True)
    return f"{terms.by_index('in_pool', 'device', devices)} AND {terms.by_index('pool', 'pool', pools)}"


# Tables with texts: `present`, and `past` of an older file.


def _with_texts(
    question: HistoryQuery,
    chosen: Mapping[str, NameSet],
    parameters: dict[str, object],
    content: Content,
    index: str,
) -> Iterator[_Search]:
    terms = _Terms(parameters)
    wanted = [
        terms.by_index(name, name, _names(name, question, chosen))
        for name in ("namespace", "pod", "container", "uid", "claim")
        if getattr(question, name) and not _many(name, chosen)
    ]
    if _many("pod", chosen):
        wanted.append(_has("pod", question.pod, parameters))
    if question.until is not None:
        parameters["until"] = question.until
        # At the moment of the last poll without it, it was not held.
        wanted.append("low <= :until AND (start_not_before IS NULL OR start_not_before < :until)")
    if question.after is not None:
        parameters |= {"low": question.after.low, "number": question.after.id}
        wanted.append("low <= :low AND (low < :low OR id < :number)")
    now, before = [*wanted], [*wanted]
    if question.resource:
        names = _names("resource", question, chosen)
        now.append(_either("resource", "requested_as", names, terms))
        before.append(_either("resource", "driver", names, terms))
    if question.driver:
        drivers = spellings(question.driver)
        now.append(f"{terms.among('driver', 'resource', drivers)} AND claim <> ''")
        before.append(terms.by_index("driver", "driver", drivers))
    for _, device in _of_device(question, chosen, terms, index, former=False):
        yield _Search("present", [*device, *now])
    # Rows of a resource are searched by time: it may be in two columns.
    index = "time" if index == "resource" else index
    for span in content.past or ():
        for by, device in _of_device(question, chosen, terms, index, former=True):
            yield _past(span, by, [*device, *before], question.since, parameters)


def _either(column: str, other: str, names: Sequence[str], terms: _Terms) -> str:
    return f"({terms.among('resource', column, names)} OR {terms.among('resource', other, names)})"


def _past(
    span: int, index: str, wanted: Sequence[str], since: float | None, parameters: dict[str, object]
) -> _Search:
    conditions = [f"span = {span}", *wanted]
    if since is not None:
        parameters |= {"since": since, f"past{span}": since - reach(span)}
        conditions.append(f"low > :past{span} AND end_not_after > :since")
    return _Search(f"past INDEXED BY past_{index}", conditions)


def _has(column: str, part: str, parameters: dict[str, object]) -> str:
    """The condition of exporter.mapping.names.has_part."""
    parameters |= {f"{column}_part": part}
    return f"has_part({column}, :{column}_part)"


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
    terms = _Terms(parameters, content.encode)
    index = next(
        (n for n in _CHOICES if n not in {"uid", "pod"} and getattr(question, n) and not _many(n, chosen)),
        "time",
    )
    wanted: list[str] = []
    if question.namespace:
        wanted.append(terms.by_index("namespace", "namespace", spellings(question.namespace)))
    holder = holder_condition(question, chosen, content.encode, parameters)
    if by_holder:
        index = "holder"
        wanted.append(f"holder IN (SELECT +id FROM holders WHERE {holder})")  # noqa: S608 -- constants
    elif holder:
        wanted.append(f"EXISTS (SELECT 1 FROM holders WHERE id = holder AND {holder})")  # noqa: S608 -- constants
    low = f"{LOW} / {TICKS}.0"
    for first, claim in _of_claim(question, parameters, index):
        wanted_now = [*wanted, claim] if claim else wanted
        order, column, spans = ("slot", "slot", content.spans) if first != "holder" else (low, LOW, (None,))
        times = list(_times(question, column, spans, parameters))
        for second, named in _of_resource(question, chosen, terms, first):
            for by, device in _of_device(question, chosen, terms, second, former=True):
                table = f"holdings INDEXED BY {holdings_index(by)}"
                for time in times:
                    yield _Search(table, [*device, *named, *wanted_now, time], order, low)


def holdings_index(column: str) -> str:
    """The index of `holdings` on a column."""
    return f"holdings_{'driver' if column == 'requested_as' else column}"


def _of_resource(
    question: HistoryQuery, chosen: Mapping[str, NameSet], terms: _Terms, index: str
) -> Sequence[tuple[str, Sequence[str]]]:
    """The searches for the query's resource and driver: an index, and conditions. The index on one of them
    takes two searches, as either column may have the name.
    """
    searches: list[tuple[str, list[str]]] = [(index, [])]
    if question.resource:
        names = _names("resource", question, chosen)
        one, other = (
            terms.by_index("resource", "resource", names),
            terms.by_index("resource", "requested_as", names),
        )
        if index == "resource":
            other = f"{other} AND NOT {terms.among('resource', 'resource', names)}"
            return [("resource", [one]), ("requested_as", [other])]
        searches = [(index, [f"({one} OR {other})"])]
    if question.driver:
        drivers = spellings(question.driver)
        one = f"{terms.by_index('driver', 'resource', drivers)} AND claim <> ''"
        other = f"{terms.by_index('driver', 'requested_as', drivers)} AND pool <> ''"
        if index == "driver":
            both = searches[0][1]
            return [("resource", [one, *both]), ("requested_as", [other, *both])]
        searches[0][1].append(f"(({one}) OR ({other}))")
    return searches


# A claim is in the file without what begins as the name of the pod (exporter.history.rows). Claims that are
# generated for a pod begin so.


def _of_claim(question: HistoryQuery, parameters: dict[str, object], index: str) -> Sequence[tuple[str, str]]:
    """The searches for the query's claim: an index, and the condition."""
    if not question.claim:
        return [(index, "")]
    names = spellings(question.claim)
    name = "substr(pod, 1, json_extract(claim, '$[0]')) || json_extract(claim, '$[1]')"
    whole = f"SELECT 1 FROM holders WHERE id = holder AND {_in(name, 'claim_code', names, parameters)}"  # noqa: S608 -- constants
    condition = f"claim <> '' AND EXISTS ({whole})"
    if index == "holder":
        return [(index, condition)]
    begins = [one for name in names for one in claim_begins(name)]
    parameters |= {f"claim{n}": one for n, one in enumerate(begins)}
    other = " OR ".join(f"substr(claim, 1, {len(one)}) = :claim{n}" for n, one in enumerate(begins))
    parameters["claim_pods"] = json.dumps([name[:n] for name in names for n in range(1, len(name) + 1)])
    pods = "SELECT +id FROM holders WHERE pod IN (SELECT value FROM json_each(:claim_pods))"
    return [(index, f"({other})"), ("holder", f"holder IN ({pods}) AND NOT ({other}) AND {condition}")]


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
    names = spellings(given)
    texts, coded = _Terms(parameters), _Terms(parameters, content.encode)
    tables = [(table, texts) for table in ("present", *(() if content.past is None else ("past",)))]
    if field == "device":
        tables += [("holdings", coded), ("device_spans", coded)]
    conditions: list[tuple[str, str]] = []
    for table, terms in tables:
        whole = {column: terms.by_index(column, column, names) for column in PARTS[field]}
        if field == "device" and table in {"past", "holdings"}:
            whole["device"] += f" AND {_in_own_pool(terms)}"
            whole["pool"] = _in_pool(names, terms) or "0"
        conditions += [(table, condition) for condition in whole.values()]
    if field == "pod":
        conditions.append(("holders", _in("pod", "holder_pod", names, parameters)))
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
    terms = _Terms(parameters, encode)
    wanted = [_OPEN_AT]
    if question.resource:
        names = _names("resource", question, chosen)
        wanted.append(f"(resource = '' OR {terms.among('resource', 'resource', names)})")
    if question.device:
        names = _names("device", question, chosen)
        columns = ("device",) if "device" in chosen else ("device", "parent")
        whole = [terms.among("device", column, names) for column in columns]
        wanted.append(f"(device = '' OR {' OR '.join(whole)})")
    statement = f"SELECT {', '.join(DEVICE_COLUMNS)} FROM device_spans WHERE {' AND '.join(wanted)}"  # noqa: S608 -- constants
    return statement, parameters
