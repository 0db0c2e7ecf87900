"""Addresses of the API and the pages: filters, sort order, groups, paging, history queries, and paths. Pure.

Text is compared as it is shown: control and bidirectional characters are spelled out on both sides, so that
an id copied from the page matches its device.

/devices/{resource}/{id}            the resource's own "/" stays: /devices/nvidia.com/gpu/GPU-1
/pods/{namespace}/{name} /claims/{driver}/{pool}/{device}
/history?resource=&device=&namespace=&pod=&from=&to=&at=&limit=&cursor=

A name in a path is one percent-encoded segment: a "/" in it is %2F. A name that no segment can be ("", "."
and "..", which browsers resolve even as %2E) has a "~" before it, and so has a name that begins with "~".
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeVar
from urllib.parse import quote, unquote_to_bytes, urlencode

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from exporter.history.query import LIMIT, MAX_LIMIT, HistoryQuery, read_cursor
from exporter.views.paging import ALL, Paging
from exporter.views.paging import read_cursor as read_place
from exporter.views.schema import KINDS
from exporter.views.wording import EXPECTED, parse_moment, spelled
from runtime.text import advice, visible

TEXT_LIMIT: Final = 512
"""Characters of one parameter's value."""
PER_PAGE: Final = 200
PER_PAGE_LIMIT: Final = 1000
_PAGE_LIMIT: Final = 1_000_000

T = TypeVar("T")
Word = TypeVar("Word", bound=StrEnum)


class QueryError(ValueError):
    """A query parameter that cannot be honoured: its name, the value found, and what was expected."""

    def __init__(self, parameter: str, found: str, expected: str) -> None:
        self.parameter = visible(parameter, limit=80)
        self.found = visible(found, limit=80)
        self.expected = expected
        self.problem = f"found '{self.found}', expected {expected}"
        super().__init__(f"query parameter '{self.parameter}': {self.problem}")


class StateFilter(StrEnum):
    """The states that devices are filtered by. A held device may be unhealthy too."""

    HELD = "held"
    FREE = "free"
    UNHEALTHY = "unhealthy"


class Filters(Struct, frozen=True):
    """Which items to keep; "" and None keep all.

    `q`, `pod` and `device` match part of a text, case-insensitive; all others match whole names.
    """

    q: str = ""
    resource: str = ""
    namespace: str = ""
    pod: str = ""
    device: str = ""
    state: StateFilter | None = None
    driver: str = ""
    pool: str = ""
    claim: str = ""
    kind: str = ""

    @property
    def any(self) -> bool:
        """Whether any filter is set."""
        return self != _NONE


_NONE: Final = Filters()
DEVICE_FILTERS: Final = ("q", "resource", "namespace", "pod", "device", "state", "driver", "pool", "claim")
"""The filters of devices, pods and the status page."""
CLAIM_FILTERS: Final = ("q", "driver", "pool", "device", "claim", "namespace", "pod")
RESOURCE_FILTERS: Final = ("q", "resource")
ANOMALY_FILTERS: Final = ("q", "kind", "resource", "device", "namespace", "pod")
PAGING: Final = ("limit", "cursor")
"""The parameters of a page of a list."""


class SortColumn(StrEnum):
    """The columns that the status page sorts by."""

    DEVICE = "device"
    RESOURCE = "resource"
    STATE = "state"
    POD = "pod"
    SINCE = "since"
    NUMA = "numa"


class Sort(Struct, frozen=True):
    """A column and a direction. Written `since`, or `-since` for descending."""

    column: SortColumn
    descending: bool = False

    def __str__(self) -> str:
        return f"{'-' if self.descending else ''}{self.column}"


class RowGroup(StrEnum):
    """What the status page groups rows by."""

    NONE = "none"
    DEVICE = "device"
    """The physical device, with its shares and slices of any resource."""
    POD = "pod"
    """The holding pod; free devices come last."""


class PageQuery(Struct, frozen=True):
    """The status page's address: filters, sort order (None: default), groups, page number (from 1)."""

    filters: Filters = field(default_factory=Filters)
    page: int = 1
    per_page: int = PER_PAGE
    sort: Sort | None = None
    group: RowGroup = RowGroup.NONE

    @property
    def order(self) -> Sort:
        """The sort order in effect: by default by resource, or by pod where rows are grouped by pod."""
        return self.sort or Sort(SortColumn.POD if self.group is RowGroup.POD else SortColumn.RESOURCE)

    def at_page(self, page: int) -> "PageQuery":
        """The same rows at another page."""
        return replace(self, page=page)

    def sorted_by(self, sort: Sort | None) -> "PageQuery":
        """The same rows in another order, from the first page."""
        return replace(self, sort=sort, page=1)

    def unfiltered(self) -> "PageQuery":
        """All rows, in the same order and groups."""
        return replace(self, filters=_NONE, page=1)


Pairs = Iterable[tuple[str, str]]
"""The names and values of an address's query, in order."""


def no_parameters(pairs: Pairs) -> None:
    """Accept no parameters. Raises QueryError."""
    single(pairs, ())


class ListQuery(Struct, frozen=True):
    """The items of a list to answer with: those that match, one page of them or all."""

    filters: Filters = _NONE
    paging: Paging = ALL


WHOLE: Final = ListQuery()
"""Every item of a list."""


def parse_list(pairs: Pairs, known: tuple[str, ...] = DEVICE_FILTERS) -> ListQuery:
    """The query of a list that accepts the filters in `known`. Raises QueryError."""
    found = single(pairs, (*known, *PAGING))
    limit = number("limit", found["limit"], MAX_LIMIT, MAX_LIMIT) if "limit" in found else None
    return ListQuery(_filters(found), Paging(limit, _cursor(found, read_place)))


class DeviceQuery(Struct, frozen=True):
    """The device to explain: its id, and its resource ("" for any)."""

    device: str
    resource: str = ""


def parse_explain(pairs: Pairs) -> DeviceQuery:
    """The device of an /api/v1/explain address. Raises QueryError, also without a device."""
    found = single(pairs, ("device", "resource"))
    if "device" not in found:
        raise QueryError("device", "", "the id of a device")
    return DeviceQuery(found["device"], found.get("resource", ""))


def parse_page(pairs: Pairs) -> PageQuery:
    """The query of a status page address. Raises QueryError."""
    found = single(pairs, (*DEVICE_FILTERS, "sort", "group", "page", "per_page"))
    return PageQuery(
        filters=_filters(found),
        sort=_sort(found.get("sort", "").strip()),
        group=_one_of(RowGroup, "group", found.get("group", "").strip() or RowGroup.NONE),
        page=number("page", found.get("page", ""), 1, _PAGE_LIMIT),
        per_page=number("per_page", found.get("per_page", ""), PER_PAGE, PER_PAGE_LIMIT),
    )


def address(query: PageQuery | Filters) -> str:
    """The status page's address for `query`; equal queries have equal addresses."""
    query = query if isinstance(query, PageQuery) else PageQuery(query)
    pairs = {name: str(value) for name, value in asdict(query.filters).items() if value}
    if query.sort is not None:
        pairs["sort"] = str(query.sort)
    if query.group is not RowGroup.NONE:
        pairs["group"] = query.group
    if query.page > 1:
        pairs["page"] = str(query.page)
    if query.per_page != PER_PAGE:
        pairs["per_page"] = str(query.per_page)
    return f"/?{urlencode(pairs)}" if pairs else "/"


def single(pairs: Pairs, known: tuple[str, ...]) -> dict[str, str]:
    """The value of each parameter. Empty values, which forms send, count as not given.

    Raises QueryError for a parameter that is not in `known`, is repeated or too long.
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
    return f"one of {', '.join(known)}{advice(name[:80], known)}" if known else "no parameters here"


def _filters(found: Mapping[str, str]) -> Filters:
    texts = {
        name: visible(found[name].strip(), limit=8192) for name in Filters.__struct_fields__ if name in found
    }
    state = texts.pop("state", "")
    if texts.get("kind") and texts["kind"] not in KINDS:
        raise QueryError("kind", texts["kind"], f"one of {', '.join(KINDS)}")
    return Filters(**texts, state=_one_of(StateFilter, "state", state) if state else None)


def _one_of(kind: type[Word], name: str, value: str) -> Word:
    try:
        return kind(value)
    except ValueError:
        raise QueryError(name, value, f"one of {', '.join(kind)}") from None


def _sort(value: str) -> Sort | None:
    try:
        return Sort(SortColumn(value.removeprefix("-")), value.startswith("-")) if value else None
    except ValueError:
        expected = f"one of {', '.join(SortColumn)}, with a - before it for descending order"
        raise QueryError("sort", value, expected) from None


def number(name: str, value: str, default: int, limit: int) -> int:
    """A number from 1 to `limit`, `default` for "". Raises QueryError."""
    if not value:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= 7 and 1 <= int(value) <= limit):
        raise QueryError(name, value, f"a number from 1 to {limit}")
    return int(value)


NAMES: Final = ("resource", "driver", "device", "namespace", "pod", "container", "uid", "claim")
HISTORY_PARAMETERS: Final = (*NAMES, "at", "from", "to", "limit", "cursor")


class HistoryRequest(Struct, frozen=True):
    """A history query; `at` is its moment, None for a range. Unix time."""

    question: HistoryQuery
    at: float | None = None


def parse_history(pairs: Pairs, now: float) -> HistoryRequest:
    """The history query of an address at unix time `now`. Raises QueryError."""
    found = single(pairs, HISTORY_PARAMETERS)
    names = {name: visible(found.get(name, "").strip(), limit=8192) for name in NAMES}
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
    after = _cursor(found, read_cursor)
    return HistoryRequest(
        HistoryQuery(**names, parts=True, since=since, until=until, limit=limit, after=after), at
    )


def _cursor(found: Mapping[str, str], read: Callable[[str], T]) -> T | None:
    try:
        return read(found["cursor"].strip()) if "cursor" in found else None
    except ValueError:
        raise QueryError("cursor", found["cursor"], "the next of an earlier answer") from None


def _time(found: Mapping[str, str], name: str, now: float) -> float | None:
    if name not in found:
        return None
    try:
        return parse_moment(found[name], now)
    except ValueError:
        raise QueryError(name, found[name], EXPECTED) from None


# --- the paths of pages ---------------------------------------------------------------------------------

ADDRESS_LIMIT: Final = 8000
"""Characters of an address that this server and proxies accept."""

_DEVICES, _PODS, _CLAIMS, _HISTORY = "/devices", "/pods", "/claims", "/history"


class LinkError(ValueError):
    """An invalid path: what was found, and what was expected."""

    def __init__(self, found: str, expected: str) -> None:
        self.found = spelled(found[:200])
        self.expected = expected
        super().__init__(f"found {self.found!r}, expected {expected}")


def device_link(resource: str, device: str) -> str:
    """The page of one device. For a name too long for an address: the rows that match its beginning."""
    path = _path(_DEVICES, (*resource.split("/"), device))
    if len(path) <= ADDRESS_LIMIT:
        return path
    return address(Filters(resource=_part(resource), device=_part(device)))


def pod_link(namespace: str, pod: str) -> str:
    """The page of one pod; for long names as device_link."""
    path = _path(_PODS, (namespace, pod))
    if len(path) <= ADDRESS_LIMIT:
        return path
    return address(Filters(namespace=_part(namespace), pod=_part(pod)))


def claim_link(driver: str, pool: str, device: str) -> str:
    """The page of one claimed device; for long names as device_link."""
    path = _path(_CLAIMS, (driver, pool, device))
    return path if len(path) <= ADDRESS_LIMIT else address(Filters(q=_part(device)))


def history_link(parameters: Mapping[str, str] | None = None) -> str:
    """The history page with these `parameters`; "" leaves one out."""
    pairs = {name: value for name, value in (parameters or {}).items() if value}
    return f"{_HISTORY}?{urlencode(pairs, errors='replace')}" if pairs else _HISTORY


def read_device(raw_path: str) -> tuple[str, str]:
    """The resource and the id in the encoded path of a device's page. Raises LinkError."""
    found = _read(raw_path, _DEVICES)
    if len(found) < 2:
        raise LinkError(raw_path, f"{_DEVICES}/RESOURCE/ID")
    return "/".join(found[:-1]), found[-1]


def read_pod(raw_path: str) -> tuple[str, str]:
    """The namespace and the name in the encoded path of a pod's page. Raises LinkError."""
    found = _read(raw_path, _PODS)
    if len(found) != 2:
        raise LinkError(raw_path, f"{_PODS}/NAMESPACE/NAME")
    return found[0], found[1]


def read_claim(raw_path: str) -> tuple[str, str, str]:
    """The driver, pool and device in the encoded path of a claimed device's page. Raises LinkError."""
    found = _read(raw_path, _CLAIMS)
    if len(found) != 3:
        raise LinkError(raw_path, f"{_CLAIMS}/DRIVER/POOL/DEVICE")
    return found[0], found[1], found[2]


def _path(root: str, names: Iterable[str]) -> str:
    return "/".join((root, *map(_segment, names)))


def _segment(name: str) -> str:
    escape = "~" if name in {"", ".", ".."} or name.startswith("~") else ""
    return escape + quote(name, safe="", errors="surrogatepass")


def _read(raw_path: str, root: str) -> list[str]:
    if not raw_path.startswith(f"{root}/"):
        raise LinkError(raw_path, f"a path below {root}/")
    return [_name(segment, raw_path) for segment in raw_path.removeprefix(f"{root}/").split("/")]


def _name(segment: str, raw_path: str) -> str:
    # Some clients encode "~" as "%7E".
    try:
        name = unquote_to_bytes(segment).decode(errors="surrogatepass")
    except UnicodeDecodeError:
        raise LinkError(raw_path, "percent-encoded UTF-8") from None
    if not name:
        raise LinkError(raw_path, "a name between each two slashes")
    return name.removeprefix("~")


def _part(name: str) -> str:
    """A name as a filter's value: as it is shown, cut to the limit of a query."""
    return spelled(name)[:TEXT_LIMIT]
