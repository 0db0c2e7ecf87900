"""How the names of a query match those that history has, and the names that it has."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from msgspec.structs import replace

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

    def matched(
        self, question: HistoryQuery
    ) -> tuple[HistoryQuery, Mapping[str, sql.NameSet], tuple[NameMatch, ...]]:
        """The query, the names that replace those of its fields, and how each matched."""
        if not question.parts:
            return question, sql.NOTHING_CHOSEN, ()
        chosen: dict[str, sql.NameSet] = {}
        matches: list[NameMatch] = []
        if question.resource:
            question, found = self._match_resource(question, chosen)
            matches.append(found)
        fields = [field for field in sql.PARTS if getattr(question, field)]
        matches.extend(self._match_part(field, getattr(question, field), chosen) for field in fields)
        return question, chosen, tuple(matches)

    def _match_resource(
        self, question: HistoryQuery, chosen: dict[str, sql.NameSet]
    ) -> tuple[HistoryQuery, NameMatch]:
        given = question.resource
        known, drivers = self.resources(), self._known("driver", "holdings", "past", "present")
        found = resources_named(known, given)
        if found and same(found[0], given):
            return question, NameMatch("resource", given, whole=True)
        if not found and any(same(driver, given) for driver in drivers):
            by_driver = replace(question, resource="", driver=given)
            return by_driver, NameMatch("resource", given, whole=True)
        chosen["resource"] = sql.NameSet(found[: sql.FEW])
        return question, _partly("resource", given, found, (*known, *drivers))

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
        """All resources, sorted."""
        return self._known("resource", "holdings", "past", "present", "device_spans")

    def _decoded(self, query: str, parameters: Mapping[str, object] | None = None) -> list[str]:
        return [self._texts.text(code) for (code,) in self._db.execute(query, parameters or {})]
