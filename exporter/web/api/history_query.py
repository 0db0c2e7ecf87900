"""What /api/v1/history is asked, read from its address. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from daemon.text import visible
from exporter.core.history_query import LIMIT, MAX_LIMIT, Question, read_cursor
from exporter.web.moments import EXPECTED, parse_moment
from exporter.web.query import Pairs, QueryError, number, single

_NAMES: Final = ("resource", "driver", "device", "namespace", "pod", "container", "uid")
KNOWN: Final = (*_NAMES, "at", "from", "to", "limit", "cursor")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and whether it is of one moment."""

    question: Question
    at: float | None = None


def parse_history(pairs: Pairs, now: float) -> Asked:
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
    return Asked(Question(**names, since=since, until=until, limit=limit, after=after), at)


def _time(found: Mapping[str, str], name: str, now: float) -> float | None:
    if name not in found:
        return None
    try:
        return parse_moment(found[name], now)
    except ValueError:
        raise QueryError(name, found[name], EXPECTED) from None
