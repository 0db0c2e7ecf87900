"""The history page: who held what, in a time or at a moment, and what nobody knows. Pure.

What the history page is asked, read from its address; what cannot be read stays as it was typed. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from exporter.history.query import MAX_LIMIT, Cursor, HistoryQuery, read_cursor, write_cursor
from exporter.history.record import HoldingRow
from exporter.mapping.state import State
from exporter.views.documents import Moment, history
from exporter.views.links import history_link
from exporter.views.query import AskedHistoryQuery as Asked
from exporter.views.query import Pairs, QueryError, number, single
from exporter.views.wording import counted, lasting, rfc3339, spelled, text
from exporter.web.pages import periods
from exporter.web.pages.past import (
    PRESETS,
    ROWS,
    Answer,
    MomentError,
    Range,
    Section,
    by_pod,
    moment,
    of_device,
    preset_value,
    section,
    span_of,
)
from exporter.web.pages.periods import Stamp
from exporter.web.pages.rows import natural
from exporter.web.pages.summary import Fresh, fresh

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
    question: HistoryQuery | None = None
    problems: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def asked(self) -> Asked:
        """The same as the API reads it."""
        return Asked(self.question or HistoryQuery(), self.at)

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
    return Wish(typed, span, at, HistoryQuery(**names, since=since, until=until, limit=limit, after=after))


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


CHOICES: Final = 200
"""Names that a field offers."""
_LABELS: Final = {
    "resource": "Resource",
    "driver": "Driver",
    "device": "Device",
    "namespace": "Namespace",
    "pod": "Pod",
    "container": "Container",
    "uid": "Pod uid",
}
_EXTRA: Final = ("driver", "container", "uid")
_AROUND: Final = (
    ("1 h earlier", -3600.0),
    ("1 min earlier", -60.0),
    ("1 min later", 60.0),
    ("1 h later", 3600.0),
)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the form: what is in it, what is wrong with that ("" if nothing), what is offered."""

    name: str
    label: str
    value: str
    problem: str
    choices: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """Another look at the past, one click away."""

    label: str
    href: str
    selected: bool = False


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Everything that the template shows. `at`: the moment that was asked for, None for a range."""

    node: str
    title: str
    now: float
    tag: str
    fresh: Fresh
    problem: str
    names: tuple[Field, ...]
    extra: tuple[Field, ...]
    times: tuple[Field, ...]
    limit: Field
    ranges: tuple[Link, ...]
    around: tuple[Link, ...]
    at: Stamp | None
    headline: str
    notes: tuple[str, ...]
    past: Section | None
    first: str
    next: str


def history_page(moment: Moment, wish: Wish, answer: Answer | None, *, tag: str) -> HistoryPage:
    """The page of what was asked for at `moment`; `answer` None where the question could not be read."""
    now, typed = moment.now, wish.typed
    choices = _choices(moment.state, answer)
    found = None if answer is None else answer.found
    at = None if wish.at is None else periods.stamp(wish.at, now)
    certain = None
    if found is not None and wish.at is not None:
        document = history(moment, wish.asked, found)
        certain = {entry.id: bool(entry.certain) for entry in document.holdings}
    following = ""
    if found is not None and found.next is not None:
        following = wish.address(cursor=write_cursor(found.next))
    past = None
    if answer is not None:
        past = section(
            answer,
            wish.span,
            now,
            group=of_device,
            named=by_pod,
            more=following,
            rows=None if found is None or wish.at is None else sorted(found.rows, key=_place),
            certain=certain,
            at=wish.at,
        )
    return HistoryPage(
        node=spelled(moment.node),
        title=f"{'History' if at is None else 'Who held what'} · {text(moment.node).shown} · devicelens",
        now=now,
        tag=tag,
        fresh=fresh(moment),
        problem=wish.problems.get("", wish.problems.get("cursor", "")),
        names=tuple(_field(name, wish, choices) for name in NAMES if name not in _EXTRA),
        extra=tuple(_field(name, wish, choices) for name in _EXTRA),
        times=(
            Field("from", "From", spelled(typed.get("from", "")), wish.problems.get("from", "")),
            Field("to", "to", spelled(typed.get("to", "")), wish.problems.get("to", "")),
            Field("at", "At", spelled(typed.get("at", "")), wish.problems.get("at", "")),
        ),
        limit=Field("limit", "Rows", spelled(typed.get("limit", "")), wish.problems.get("limit", "")),
        ranges=tuple(_preset(wish, label, seconds) for label, seconds in PRESETS),
        around=() if wish.at is None else tuple(_around(wish.at, wish, now)),
        at=at,
        headline="" if past is None else _headline(wish, past, now),
        notes=tuple(_notes(wish, now)),
        past=past,
        first=wish.address() if "cursor" in typed else "",
        next=following,
    )


def _place(row: HoldingRow) -> tuple[object, ...]:
    """As the present is told: by resource and device."""
    key = row.key
    return key.resource or key.driver, natural(row.facts.parent or key.device), natural(key.device), row.id


def _field(name: str, wish: Wish, choices: dict[str, tuple[str, ...]]) -> Field:
    value = spelled(wish.typed.get(name, ""))
    return Field(name, _LABELS[name], value, wish.problems.get(name, ""), choices.get(name, ()))


def _choices(state: State, answer: Answer | None) -> dict[str, tuple[str, ...]]:
    """What is known now, and the resources that history knows besides."""
    snapshot = state.snapshot
    before = () if answer is None or answer.found is None else tuple(answer.found.resources)
    return {
        "resource": _names((*snapshot.resources(), *before)),
        "driver": _names(claimed.key.driver for claimed in snapshot.claims),
        "device": _names(device.key.device for device in snapshot.devices[:CHOICES]),
        "namespace": _names(container.holder.namespace for container in snapshot.containers),
        "pod": _names(container.holder.pod for container in snapshot.containers),
    }


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({spelled(name) for name in set(names) if len(name) <= 256}))[:CHOICES]


def _preset(wish: Wish, label: str, seconds: float) -> Link:
    value = preset_value(seconds)
    selected = wish.at is None and wish.span.label == label
    return Link(f"last {label}", wish.address(**{"from": value, "to": "", "at": ""}), selected)


def _around(at: float, wish: Wish, now: float) -> Iterable[Link]:
    for label, seconds in _AROUND:
        if at + seconds <= now:
            yield Link(label, wish.address(at=rfc3339(at + seconds)))


def _headline(wish: Wish, past: Section, now: float) -> str:
    """What was found, in a sentence."""
    if past.trouble:
        return ""
    count = len(past.rows)
    more = "at least " if past.more else ""
    if wish.at is not None:
        sure = sum(row.kind == "held" for row in past.rows)
        perhaps = count - sure
        when = f"At {periods.stamp(wish.at, now).clock} UTC"
        if wish.at > now:
            return f"{when}, which is yet to come, nobody knows who will hold what."
        if not count:
            return (
                f"{when} nobody held anything of what is asked for."
                if not past.gaps.silences
                else f"{when} nobody is known to have held anything of what is asked for."
            )
        also = f", and {perhaps} perhaps" if perhaps else ""
        return f"{when} there {'was' if sure == 1 else 'were'} {more}{counted(sure, 'holding')}{also}."
    if not count:
        return "Nothing of what is asked for was held in this time, as far as it was looked."
    return f"{counted(count, 'holding')}, the newest first."


def _notes(wish: Wish, now: float) -> Iterable[str]:
    """What must be said of the question itself."""
    if wish.at is not None and wish.at > now:
        yield f"This moment is {lasting(wish.at - now)} ahead of now."
    elif wish.at is None and wish.span.since > now:
        yield f"This time begins {lasting(wish.span.since - now)} from now: nothing is known of it."
    elif wish.at is None and wish.span.until > now + 1:
        yield f"This time ends {lasting(wish.span.until - now)} from now: what is to come nobody knows."
