"""How the names of a query match those that history has, and the names that it has."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from exporter.history import sql
from exporter.history.query import MATCHED, HistoryQuery, NameMatch
from exporter.history.texts import Texts
from exporter.mapping.names import has_part, most_similar, resources_named, same

_COMPARED: Final = 4096
"""Names that an unknown name is compared with."""


def _partly(field: str, given: str, found: Sequence[str], known: Iterable[str]) -> NameMatch:
    near = () if found else most_similar(given, ((name, (name,)) for name in known))
    number = len(found) if len(found) <= sql.FEW else None
    names = tuple(sorted(found)[:MATCHED])
    return NameMatch(field, given, whole=False, number=number, names=names, near=tuple(n for (n,) in near))


class Names:
    """The names in a database with this dictionary and content. Raises SQLite's errors and DamagedError."""

    def __init__(self, db: sqlite3.Connection, texts: Texts, content: sql.Content) -> None:
        self._db = db
        self._texts = texts
        self._content = content

    def matched(self, question: HistoryQuery) -> tuple[Mapping[str, sql.NameSet], tuple[NameMatch, ...]]:
        """The names that replace those of the query's fields, and how each matched."""
        if not question.parts:
            return sql.NOTHING_CHOSEN, ()
        chosen: dict[str, sql.NameSet] = {}
        matches: list[NameMatch] = []
        if question.resource:
            matches.append(self._match_resource(question.resource, chosen))
        fields = [field for field in sql.PARTS if getattr(question, field)]
        matches.extend(self._match_part(field, getattr(question, field), chosen) for field in fields)
        return chosen, tuple(matches)

    def _match_resource(self, given: str, chosen: dict[str, sql.NameSet]) -> NameMatch:
        known = self.resources()
        found = resources_named(known, given)
        if found and same(found[0], given):
            return NameMatch("resource", given, whole=True)
        chosen["resource"] = sql.NameSet(found[: sql.FEW])
        return _partly("resource", given, found, known)

    def _match_part(self, field: str, given: str, chosen: dict[str, sql.NameSet]) -> NameMatch:
        statement, parameters = sql.is_name(field, given, self._content)
        if self._db.execute(statement, parameters).fetchone()[0]:
            return NameMatch(field, given, whole=True)
        if field == "pod":
            found = self._pods(given, sql.FEW + 1)
            known = () if found else self._pods("", _COMPARED)
        else:
            known = self._known("device", "holdings", "past", "present", "device_spans")
            found = [name for name in known if has_part(name, given)]
        chosen[field] = sql.NameSet(found, many=len(found) > sql.FEW)
        return _partly(field, given, found, islice(known, _COMPARED))

    def _pods(self, part: str, limit: int) -> list[str]:
        tables = ["holders INDEXED BY holders_pod", "present"]
        if self._content.past is not None:
            tables.append("past INDEXED BY past_pod")
        return self._decoded(*sql.names(part, limit, tables))

    def _known(self, column: str, *tables: str) -> list[str]:
        """The different texts of a column, sorted."""
        found: set[str] = set()
        for table in tables:
            if table != "past" or self._content.past is not None:
                found.update(self._decoded(sql.distinct(table, column)))
        return sorted(found)

    def resources(self) -> list[str]:
        """All resources, and what else containers asked by, sorted."""
        found = {
            *self._known("resource", "holdings", "past", "present", "device_spans"),
            *self._known("requested_as", "holdings", "present"),
            *self._known("driver", "past"),
        }
        return sorted(found)

    def _decoded(self, query: str, parameters: Mapping[str, object] | None = None) -> list[str]:
        return [self._texts.text(code) for (code,) in self._db.execute(query, parameters or {})]
