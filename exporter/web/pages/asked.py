"""What the history page is asked, read from its address; what cannot be read stays as it was typed. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from exporter.core.history_query import MAX_LIMIT, Cursor, Question, read_cursor
from exporter.web.api.history_query import Asked
from exporter.web.links import history_link
from exporter.web.pages.past import Range
from exporter.web.pages.section import ROWS
from exporter.web.pages.spans import MomentError, moment, span_of
from exporter.web.query import Pairs, QueryError, number, single
from exporter.web.words import spelled

NAMES: Final = ("resource", "driver", "device", "namespace", "pod", "container", "uid")
TIMES: Final = ("at", "from", "to")
AROUND: Final = 1800.0
"""Seconds that are drawn on either side of a moment."""
_KNOWN: Final = (*NAMES, *TIMES, "limit", "cursor")


@dataclass(frozen=True, slots=True)
class Wish:
    """What was typed, by name; the `span` that is looked at; the moment `at`, None for a range; the question,
    None where something is wrong, and then what, by parameter ("" for the whole address).
    """

    typed: Mapping[str, str]
    span: Range
    at: float | None = None
    question: Question | None = None
    problems: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def asked(self) -> Asked:
        """The same as the API reads it."""
        return Asked(self.question or Question(), self.at)

    def address(self, **changes: str) -> str:
        """The address of the same but for `changes` ("" takes a parameter away), from its first page."""
        pairs = {name: value for name, value in self.typed.items() if name != "cursor"} | changes
        kept = {name: pairs[name] for name in _KNOWN if pairs.get(name)}
        return f"{history_link()}?{urlencode(kept, errors='replace')}" if kept else history_link()


def read(pairs: Pairs, now: float) -> Wish:
    """What an address asks for at unix time `now`. Never raises: what is wrong with it is told."""
    given = tuple(pairs)
    nothing = Range(now - 86400.0, now)
    try:
        found = single(given, _KNOWN)
    except QueryError as error:
        typed = {name: value[:512] for name, value in given if name in _KNOWN}
        where = error.parameter if error.parameter in _KNOWN else ""
        return Wish(typed, nothing, problems={where: str(error) if not where else _problem(error)})
    typed = {name: value.strip() for name, value in found.items()}
    problems: dict[str, str] = {}
    at, span = _times(typed, now, problems)
    limit, after = _page(typed, problems)
    names = {name: spelled(typed.get(name, "")) for name in NAMES}
    if names["container"] and not (names["pod"] or names["uid"] or names["device"]):
        problems["container"] = "a pod, a uid or a device is needed beside it"
    if problems:
        return Wish(typed, span, at, None, problems)
    # To now is without end: what begins while it is asked belongs to it.
    end = None if span.until == now else span.until
    since, until = (span.since, end) if at is None else (at, at)
    return Wish(typed, span, at, Question(**names, since=since, until=until, limit=limit, after=after))


def _times(typed: Mapping[str, str], now: float, problems: dict[str, str]) -> tuple[float | None, Range]:
    """The moment that is asked for, and the range that is looked at; what is wrong goes to `problems`."""
    nothing = Range(now - 86400.0, now)
    for name in TIMES:
        try:
            moment(typed, name, now)
        except MomentError as error:
            problems[name] = str(error)
    if problems:
        return None, nothing
    at = moment(typed, "at", now)
    if at is not None:
        if "from" in typed or "to" in typed:
            problems["at"] = "either a moment, or from and to"
        return at, Range(at - AROUND, at + AROUND)
    try:
        return None, span_of(typed, now)
    except MomentError as error:
        problems[error.parameter] = str(error)
        return None, nothing


def _page(typed: Mapping[str, str], problems: dict[str, str]) -> tuple[int, Cursor | None]:
    """How many rows, and after which one; what is wrong goes to `problems`."""
    limit, after = ROWS, None
    try:
        limit = number("limit", typed.get("limit", ""), ROWS, MAX_LIMIT)
    except QueryError as error:
        problems["limit"] = _problem(error)
    try:
        after = read_cursor(typed["cursor"]) if "cursor" in typed else None
    except ValueError:
        problems["cursor"] = "this page is no longer to be had: begin at the first one"
    return limit, after


def _problem(error: QueryError) -> str:
    return f"found '{error.found}', expected {error.expected}"
