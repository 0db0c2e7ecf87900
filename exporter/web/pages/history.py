"""The history page: who held what, in a range or at a moment. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct, field

from exporter.history.devices import DeviceAt
from exporter.history.query import (
    MAX_LIMIT,
    Cursor,
    HistoryQuery,
    HistoryResult,
    NameMatch,
    read_cursor,
    write_cursor,
)
from exporter.history.record import HoldingRow
from exporter.mapping.state import Moment, State
from exporter.views.documents import surely_held
from exporter.views.query import (
    HISTORY_PARAMETERS,
    NAMES,
    TEXT_LIMIT,
    Pairs,
    QueryError,
    history_link,
    number,
    single,
)
from exporter.views.wording import (
    NOT_PUBLISHED,
    NOT_RECORDED,
    count_unheld,
    counted,
    lasting,
    listed,
    rfc3339,
    spelled,
    text,
)
from exporter.web.pages import times
from exporter.web.pages.parts import Frame, PageChoice, frame, natural
from exporter.web.pages.past import (
    PRESETS,
    ROWS,
    HistoryAnswer,
    PastSection,
    TimeRange,
    by_pod,
    lane_of_device,
    parse_parameter,
    past_section,
    preset_value,
    time_range,
)
from exporter.web.pages.times import Stamp

AROUND: Final = 1800.0
"""Seconds that are drawn on either side of a moment."""
CHOICES: Final = 200
"""Names that a field suggests."""
_GIVEN: Final = 60
"""Characters of a typed name in a sentence."""
_STEPS: Final = {
    "1 h earlier": -3600.0,
    "1 min earlier": -60.0,
    "1 min later": 60.0,
    "1 h later": 3600.0,
}


Value = TypeVar("Value")


class HistoryForm(Struct, frozen=True):
    """The input by parameter; the range `span`; the moment `at`, None for a range; and the query, None where
    there are `problems`, by parameter ("" for the whole address).
    """

    typed: Mapping[str, str]
    span: TimeRange
    at: float | None = None
    question: HistoryQuery | None = None
    problems: Mapping[str, str] = field(default_factory=dict[str, str])

    def value(self, name: str) -> str:
        """The input of one parameter, as it is shown."""
        return spelled(self.typed.get(name, ""))

    def address(self, **changes: str) -> str:
        """The address of the same input with `changes` ("" removes a parameter), from the first page."""
        pairs = {name: value for name, value in self.typed.items() if name != "cursor"} | changes
        return history_link({name: pairs.get(name, "") for name in HISTORY_PARAMETERS})


def read_form(pairs: Pairs, now: float) -> HistoryForm:
    """The input of an address at unix time `now`. Never raises: problems are part of the form."""
    given = tuple(pairs)
    default = TimeRange(now - 86400.0, now)
    try:
        found = single(given, HISTORY_PARAMETERS)
    except QueryError as error:
        typed = {name: value[:512] for name, value in given if name in HISTORY_PARAMETERS}
        where = error.parameter if error.parameter in HISTORY_PARAMETERS else ""
        return HistoryForm(typed, default, problems={where: error.problem if where else str(error)})
    typed = {name: value.strip() for name, value in found.items()}
    problems: dict[str, str] = {}
    at, span = _times(typed, now, problems)
    limit, after = _paging(typed, problems)
    names = {name: spelled(typed.get(name, "")) for name in NAMES}
    if names["container"] and not (names["pod"] or names["uid"] or names["device"]):
        problems["container"] = "needs a pod, a uid or a device"
    if problems:
        return HistoryForm(typed, span, at, None, problems)
    # A range up to now has no end, so that it includes what begins during the query.
    end = None if span.until == now else span.until
    since, until = (span.since, end) if at is None else (at, at)
    query = HistoryQuery(**names, parts=True, since=since, until=until, limit=limit, after=after)
    return HistoryForm(typed, span, at, query)


def _times(typed: Mapping[str, str], now: float, problems: dict[str, str]) -> tuple[float | None, TimeRange]:
    """The moment, and the range to draw; problems go to `problems`."""
    times = [_read(partial(parse_parameter, typed, name, now), problems) for name in ("at", "from", "to")]
    at, span = times[0], None
    if at is not None and ("from" in typed or "to" in typed):
        problems["at"] = "either a moment, or from and to"
    elif at is None and not problems:
        span = _read(partial(time_range, typed, now), problems)
    drawn = TimeRange(now - 86400.0, now) if at is None else TimeRange(at - AROUND, at + AROUND)
    return at, span or drawn


def _paging(typed: Mapping[str, str], problems: dict[str, str]) -> tuple[int, Cursor | None]:
    """The limit and the cursor; problems go to `problems`."""
    limit = _read(partial(number, "limit", typed.get("limit", ""), ROWS, MAX_LIMIT), problems)
    try:
        after = read_cursor(typed["cursor"]) if "cursor" in typed else None
    except ValueError:
        problems["cursor"] = "this page is not available: start at the first page"
        after = None
    return limit or ROWS, after


def _read(read: Callable[[], Value], problems: dict[str, str]) -> Value | None:
    """The value that `read` returns; None for a QueryError, which goes to `problems`."""
    try:
        return read()
    except QueryError as error:
        problems[error.parameter] = error.problem
        return None


class MatchNote(Struct, frozen=True):
    """How a typed name was matched, in `words`, and links to the whole names."""

    words: str
    choices: tuple[PageChoice, ...] = ()


class HistoryPage(Struct, frozen=True):
    """What history.html shows. `at` is the queried moment, None for a range; `choices` are the names that
    each field suggests; `ranges` and `around` are other times; `past` is None for an invalid query. `unheld`
    are the devices that no pod held at the moment, `unheld_words` counts all of them.
    """

    frame: Frame
    form: HistoryForm
    choices: Mapping[str, tuple[str, ...]]
    ranges: tuple[PageChoice, ...]
    around: tuple[PageChoice, ...]
    at: Stamp | None
    headline: str
    notes: tuple[str, ...]
    matches: tuple[MatchNote, ...]
    past: PastSection | None
    first: str
    next: str
    next_words: str
    unheld: tuple[DeviceAt, ...] = ()
    unheld_words: str = ""


def history_page(moment: Moment, form: HistoryForm, answer: HistoryAnswer | None, *, tag: str) -> HistoryPage:
    """The page at `moment`; `answer` is None for an invalid query."""
    now, at = moment.now, form.at
    found = None if answer is None else answer.found
    after = None if form.question is None else form.question.after
    following, certain, rows = "", None, None
    if found is not None and found.next is not None:
        following = form.address(cursor=write_cursor(found.next))
    if found is not None and at is not None:
        certain = {row.id: surely_held(row, at, found) for row in found.rows}
        rows = sorted(found.rows, key=_order)
    past = None
    if answer is not None:
        past = past_section(
            *(answer, form.span, now),
            lane=lane_of_device,
            named=by_pod,
            more=following,
            rows=rows,
            certain=certain,
            at=at,
            until=None if after is None or after.after_rows else after.low,
        )
    return HistoryPage(
        frame=frame(moment, "History" if at is None else "Who held what", tag=tag, path=history_link()),
        form=form,
        choices=_choices(moment.state, answer),
        ranges=tuple(_preset(form, label) for label in PRESETS),
        around=() if at is None else tuple(_around(at, form, now)),
        at=times.optional(at, now),
        headline="" if past is None else _headline(form, past, found, now),
        notes=tuple(_notes(form, now)),
        matches=() if found is None else tuple(_match_notes(form, found.matches)),
        past=past,
        first=form.address() if "cursor" in form.typed else "",
        next=following,
        next_words="Further devices" if at is not None else "Earlier holdings",
        unheld=() if found is None else tuple(found.devices),
        unheld_words="" if found is None else _unheld_words(found),
    )


def _unheld_words(found: HistoryResult) -> str:
    """The devices that no pod held, in a sentence; "" where there are none or they are not asked for."""
    number = sum(found.device_counts.values())
    also = ""
    if found.held_only:
        names = listed([text(name, limit=_GIVEN).shown for name in found.held_only])
        also = f" Of {names} only held devices are known: {NOT_PUBLISHED}."
    if number:
        return (
            f"No pod held {counted(number, 'device')}: {', '.join(count_unheld(found.device_counts))}.{also}"
        )
    if found.devices_recorded is False and not found.unseen:
        return f"The free devices of this moment are unknown: {NOT_RECORDED}."
    return also.strip()


def _order(row: HoldingRow) -> tuple[object, ...]:
    """As the status page: by resource and device."""
    key = row.key
    return key.resource, natural(row.facts.parent or key.device), natural(key.device), row.id


def _choices(state: State, answer: HistoryAnswer | None) -> dict[str, tuple[str, ...]]:
    """The present names, and the resources in history."""
    snapshot = state.snapshot
    before = () if answer is None or answer.found is None else tuple(answer.found.resources)
    return {
        "resource": _names((*snapshot.resources(), *before)),
        "driver": _names(one.claimed.name.driver for one in snapshot.devices if one.claimed is not None),
        "device": _names(device.key.device for device in snapshot.devices[:CHOICES]),
        "namespace": _names(container.holder.namespace for container in snapshot.containers),
        "pod": _names(container.holder.pod for container in snapshot.containers),
    }


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({spelled(name) for name in set(names) if len(name) <= 256}))[:CHOICES]


def _preset(form: HistoryForm, label: str) -> PageChoice:
    selected = form.at is None and form.span.label == label
    address = form.address(**{"from": preset_value(label), "to": "", "at": ""})
    return PageChoice(address, f"last {label}", selected)


def _around(at: float, form: HistoryForm, now: float) -> Iterator[PageChoice]:
    for label, seconds in _STEPS.items():
        if at + seconds <= now:
            yield PageChoice(form.address(at=rfc3339(at + seconds)), label)


def _headline(form: HistoryForm, past: PastSection, found: HistoryResult | None, now: float) -> str:
    """The number of holdings, in a sentence."""
    if past.trouble or found is None:
        return ""
    further = found.next is not None and not found.next.after_rows
    count, more = len(past.rows), "at least " if further else ""
    if form.at is None:
        if count:
            return f"{counted(count, 'holding')}, the newest first."
        since, until = (times.stamp(time, now).clock for time in (form.span.since, form.span.until))
        return f"No holdings found between {since} and {until} UTC."
    when = f"At {times.stamp(form.at, now).clock} UTC"
    if form.at > now:
        return f"{when}, in the future: its holdings are unknown."
    if not count:
        return f"{when}{_no_holdings(form, past)}."
    sure = sum(past.certain.values())
    also = f", and {count - sure} possible" if count > sure else ""
    return f"{when} there {'was' if sure == 1 else 'were'} {more}{counted(sure, 'holding')}{also}."


def _no_holdings(form: HistoryForm, past: PastSection) -> str:
    if form.question is not None and form.question.after is not None:
        return ": further devices"
    known = "no known holdings: there was a gap in observation" if past.gaps else "no holdings"
    return f" there were {known}"


def _match_notes(form: HistoryForm, matches: Iterable[NameMatch]) -> Iterator[MatchNote]:
    """How names were matched that history does not have."""
    for match in matches:
        given = text(match.given, limit=_GIVEN).shown
        names = match.names or match.near
        links = tuple(_name_link(form, match.field, name) for name in names if len(name) <= TEXT_LIMIT)
        if match.whole:
            continue
        if match.field == "resource" and match.number:
            yield MatchNote(f"Resources with the name {given} after the slash:", links)
        elif match.number != 0:
            more = f"; the first {len(names)} of them" if match.number not in range(len(names) + 1) else ""
            found = f"many {match.field}s" if match.number is None else counted(match.number, match.field)
            yield MatchNote(f"{given} is part of the names of {found}{more}:", links)
        else:
            also = "" if match.field == "resource" else ", and none with this part in its name"
            mean = ". Did you mean:" if links else "."
            yield MatchNote(f"History has no {match.field} {given}{also}{mean}", links)


def _name_link(form: HistoryForm, field: str, name: str) -> PageChoice:
    return PageChoice(form.address(**{field: spelled(name)}), text(name).shown)


def _notes(form: HistoryForm, now: float) -> Iterator[str]:
    """Limits of the query itself."""
    if form.at is not None and form.at > now:
        yield f"This moment is {lasting(form.at - now)} in the future."
    elif form.at is not None:
        yield "The drawing has only the holdings of this moment, with the time before and after it."
    elif form.span.since > now:
        yield f"This range begins {lasting(form.span.since - now)} in the future."
    elif form.span.until > now + 1:
        yield f"This range ends {lasting(form.span.until - now)} in the future."
