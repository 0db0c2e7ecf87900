"""Filters, order, groups and paging, read from an address and written into one. Pure.

The API and the page's form share the names. Text is compared as it is shown, so that what was copied
from the page finds its device: hostile characters are spelled out on both sides.

What /api/v1/history is asked, read from its address. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Final
from urllib.parse import urlencode

from exporter.history.query import LIMIT, MAX_LIMIT, HistoryQuery, read_cursor
from exporter.views.wording import EXPECTED, parse_moment
from runtime.text import visible

TEXT_LIMIT: Final = 512
"""Characters of one filter."""
PER_PAGE: Final = 200
PER_PAGE_LIMIT: Final = 1000
_PAGE_LIMIT: Final = 1_000_000


class QueryError(ValueError):
    """A query parameter that cannot be honoured: which, what was found, what was expected."""

    def __init__(self, parameter: str, found: str, expected: str) -> None:
        self.parameter = visible(parameter, limit=80)
        self.found = visible(found, limit=80)
        self.expected = expected
        super().__init__(f"query parameter '{self.parameter}': found '{self.found}', expected {expected}")


class DeviceState(StrEnum):
    """What a device may be filtered by. A device that is held may be unhealthy too."""

    HELD = "held"
    FREE = "free"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Filters:
    """What to keep; "" and None keep all.

    `resource` and `namespace` are whole names; a claimed device's driver counts as its resource. `pod` and
    `device` are parts of names, `q` is part of any of a row's texts, these three without regard to case.
    """

    q: str = ""
    resource: str = ""
    namespace: str = ""
    pod: str = ""
    device: str = ""
    state: DeviceState | None = None

    @property
    def any(self) -> bool:
        """Whether anything is filtered at all."""
        return self != _NONE


_NONE: Final = Filters()


class Column(StrEnum):
    """What rows may be sorted by."""

    DEVICE = "device"
    RESOURCE = "resource"
    STATE = "state"
    POD = "pod"
    SINCE = "since"
    NUMA = "numa"


@dataclass(frozen=True, slots=True)
class Sort:
    """By which column, and which way. Written `since`, or `-since` for the other way round."""

    column: Column
    descending: bool = False

    def __str__(self) -> str:
        return f"{'-' if self.descending else ''}{self.column}"


class Group(StrEnum):
    """What rows stand together for."""

    NONE = "none"
    DEVICE = "device"
    """The physical device: its shares and slices, of whatever resource."""
    POD = "pod"
    """The pod that holds them; what nobody holds comes last."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The status page's address: what to keep, in which order (None: the page's own), grouped by what, and
    which page of the rows (from 1).
    """

    filters: Filters = field(default_factory=Filters)
    page: int = 1
    per_page: int = PER_PAGE
    sort: Sort | None = None
    group: Group = Group.NONE

    @property
    def order(self) -> Sort:
        """How the rows are sorted where nothing is said of it: what stands together for a pod by pods."""
        return self.sort or Sort(Column.POD if self.group is Group.POD else Column.RESOURCE)

    def at_page(self, page: int) -> "PageQuery":
        """The same, at another page."""
        return replace(self, page=page)

    def sorted_by(self, sort: Sort | None) -> "PageQuery":
        """The same rows in another order, from the first page."""
        return replace(self, sort=sort, page=1)

    def unfiltered(self) -> "PageQuery":
        """All rows, in the same order and groups."""
        return replace(self, filters=_NONE, page=1)


Pairs = Iterable[tuple[str, str]]

_FILTERS: Final = tuple(f.name for f in fields(Filters))
_TEXTS: Final = frozenset(_FILTERS) - {"state"}


def no_parameters(pairs: Pairs) -> None:
    """Raises QueryError for any parameter at all."""
    single(pairs, ())


def parse_filters(pairs: Pairs) -> Filters:
    """The filters of an address. Raises QueryError for a parameter or a value that is not known."""
    return _filters(single(pairs, _FILTERS))


@dataclass(frozen=True, slots=True)
class Asked:
    """The one device that is asked for: its id, and its resource ("" for any)."""

    device: str
    resource: str = ""


def parse_explain(pairs: Pairs) -> Asked:
    """The device that an address asks for. Raises QueryError, also where it asks for none."""
    found = single(pairs, ("device", "resource"))
    if "device" not in found:
        raise QueryError("device", "", "the id of a device")
    return Asked(found["device"], found.get("resource", ""))


def parse_page(pairs: Pairs) -> PageQuery:
    """All that an address of the status page asks for. Raises QueryError as parse_filters does."""
    found = single(pairs, (*_FILTERS, "sort", "group", "page", "per_page"))
    return PageQuery(
        filters=_filters(found),
        sort=_sort(found.get("sort", "").strip()),
        group=_group(found.get("group", "").strip()),
        page=number("page", found.get("page", ""), 1, _PAGE_LIMIT),
        per_page=number("per_page", found.get("per_page", ""), PER_PAGE, PER_PAGE_LIMIT),
    )


def address(query: PageQuery | Filters) -> str:
    """The address of the status page that shows `query`, each query with one address only."""
    query = query if isinstance(query, PageQuery) else PageQuery(query)
    pairs = {name: str(value) for name, value in asdict(query.filters).items() if value}
    if query.sort is not None:
        pairs["sort"] = str(query.sort)
    if query.group is not Group.NONE:
        pairs["group"] = query.group
    if query.page > 1:
        pairs["page"] = str(query.page)
    if query.per_page != PER_PAGE:
        pairs["per_page"] = str(query.per_page)
    return f"/?{urlencode(pairs)}" if pairs else "/"


def single(pairs: Pairs, known: tuple[str, ...]) -> dict[str, str]:
    """Each known parameter's one value. A form sends empty ones: they count as not given.

    Raises QueryError.
    """
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise QueryError(name, value, _instead(name, known))
        if name in found:
            raise QueryError(name, value, "it once")
        if len(value) > TEXT_LIMIT:
            raise QueryError(name, value, f"at most {TEXT_LIMIT} characters")
        found[name] = value
    return {name: value for name, value in found.items() if value.strip()}


def _instead(name: str, known: tuple[str, ...]) -> str:
    # Imported for a mistake alone.
    from runtime.config_file import advice  # noqa: PLC0415

    return f"one of {', '.join(known)}{advice(name[:80], known)}" if known else "no parameters here"


def _filters(found: Mapping[str, str]) -> Filters:
    texts = {name: visible(value.strip(), limit=8192) for name, value in found.items() if name in _TEXTS}
    return Filters(**texts, state=_state(found.get("state", "").strip()))


def _state(value: str) -> DeviceState | None:
    try:
        return DeviceState(value) if value else None
    except ValueError:
        raise QueryError("state", value, f"one of {', '.join(DeviceState)}") from None


def _sort(value: str) -> Sort | None:
    try:
        return Sort(Column(value.removeprefix("-")), value.startswith("-")) if value else None
    except ValueError:
        expected = f"one of {', '.join(Column)}, with a - before it for the other way round"
        raise QueryError("sort", value, expected) from None


def _group(value: str) -> Group:
    try:
        return Group(value) if value else Group.NONE
    except ValueError:
        raise QueryError("group", value, f"one of {', '.join(Group)}") from None


def number(name: str, value: str, default: int, limit: int) -> int:
    """A number from 1 to `limit`, `default` for "". Raises QueryError."""
    if not value:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= 7 and 1 <= int(value) <= limit):
        raise QueryError(name, value, f"a number from 1 to {limit}")
    return int(value)


_NAMES: Final = ("resource", "driver", "device", "namespace", "pod", "container", "uid")
KNOWN: Final = (*_NAMES, "at", "from", "to", "limit", "cursor")


@dataclass(frozen=True, slots=True)
class AskedHistoryQuery:
    """A question, and whether it is of one moment."""

    question: HistoryQuery
    at: float | None = None


def parse_history(pairs: Pairs, now: float) -> AskedHistoryQuery:
    """The question of an address, at unix time `now`. Raises QueryError."""
    found = single(pairs, KNOWN)
    names = {name: visible(found.get(name, "").strip(), limit=8192) for name in _NAMES}
    if names["container"] and not (names["pod"] or names["uid"] or names["device"]):
        raise QueryError("container", names["container"], "pod, uid or device beside it")
    at, since, until = (_time(found, name, now) for name in ("at", "from", "to"))
    if at is not None and (since is not None or until is not None):
        raise QueryError("at", found["at"], "either at, or from and to")
    if at is not None:
        since = until = at
    if since is not None and until is not None and since > until:
        raise QueryError("from", found["from"], "a time before that of to")
    limit = number("limit", found.get("limit", ""), LIMIT, MAX_LIMIT)
    try:
        after = read_cursor(found["cursor"].strip()) if "cursor" in found else None
    except ValueError:
        raise QueryError("cursor", found["cursor"], "what an earlier answer gave as next") from None
    return AskedHistoryQuery(HistoryQuery(**names, since=since, until=until, limit=limit, after=after), at)


def _time(found: Mapping[str, str], name: str, now: float) -> float | None:
    if name not in found:
        return None
    try:
        return parse_moment(found[name], now)
    except ValueError:
        raise QueryError(name, found[name], EXPECTED) from None
