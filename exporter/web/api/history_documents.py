"""/api/v1/history's document, made of what history found. Pure."""

from hashlib import blake2s
from typing import Final

import msgspec

from exporter.core.history import Bound, Certainty, Row
from exporter.core.history_query import Found, write_cursor
from exporter.core.history_watch import Unseen
from exporter.web.api.documents import Moment, envelope
from exporter.web.api.history_query import Asked
from exporter.web.api.history_schema import BoundEntry, HistoryDocument, PastEntry, UnseenEntry
from exporter.web.words import rfc3339

_UNSEEN_LIMIT: Final = 100


def history(moment: Moment, asked: Asked, found: Found) -> HistoryDocument:
    """The answer to `asked`."""
    question = asked.question
    ranged = asked.at is None
    return HistoryDocument(
        **envelope(moment),
        at=_time(asked.at),
        since=_time(question.since) if ranged else None,
        until=_time(question.until) if ranged else None,
        earliest=_time(found.earliest),
        latest=_time(found.latest),
        complete=not found.unseen,
        unseen=tuple(map(_unseen, found.unseen[-_UNSEEN_LIMIT:])),
        unseen_left_out=max(0, len(found.unseen) - _UNSEEN_LIMIT),
        holdings=tuple(_row(row, asked.at, found) for row in found.rows),
        next=None if found.next is None else write_cursor(found.next),
        resources=tuple(found.resources),
        kept_in=found.kept_in,
        trouble=found.trouble or None,
    )


def tag(document: HistoryDocument, asked: Asked, found: Found) -> str:
    """Names what `document` says; made of all of it but for ages.

    The last look (`latest`) moves on every few seconds. Of a time that had ended by then it says nothing,
    and does not count.
    """
    until = asked.question.until
    over = until is not None and found.latest is not None and until <= found.latest
    lasting = msgspec.structs.replace(
        document, taken_at=None, age_seconds=None, latest=None if over else document.latest
    )
    return blake2s(repr(lasting).encode(errors="surrogatepass"), digest_size=9).hexdigest()


def _row(row: Row, at: float | None, found: Found) -> PastEntry:
    key, facts = row.key, row.facts
    return PastEntry(
        id=row.id,
        node=facts.node,
        resource=key.resource or None,
        device=key.device,
        parent=facts.parent or None,
        driver=key.driver or None,
        pool=key.pool or None,
        share_id=key.share_id or None,
        claim_namespace=key.claim_namespace or None,
        claim=key.claim or None,
        namespace=key.namespace,
        pod=key.pod,
        pod_uid=facts.uid or None,
        container=key.container,
        workload_kind=facts.workload_kind or None,
        workload=facts.workload or None,
        start=_bound(row.start),
        end=_end(row),
        assumed=row.assumed,
        certain=None if at is None else _certain(row, at, found),
    )


def _end(row: Row) -> BoundEntry | None:
    if row.missed is not None:
        return _bound(Bound(row.missed.not_before, None, Certainty.IN_DOUBT))
    return None if row.end is None else _bound(row.end)


def _certain(row: Row, at: float, found: Found) -> bool:
    """Whether it was surely held at that moment, which counts for less where nobody looked."""
    if not row.surely_held_at(at):
        return False
    if row.end is None and (found.latest is None or at > found.latest):
        return not found.unseen
    return not (row.assumed and found.unseen)


def _bound(bound: Bound) -> BoundEntry:
    return BoundEntry(_time(bound.not_before), _time(bound.not_after), bound.certainty.value)


def _unseen(unseen: Unseen) -> UnseenEntry:
    return UnseenEntry(_time(unseen.since), _time(unseen.until), unseen.why.value)


def _time(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)
