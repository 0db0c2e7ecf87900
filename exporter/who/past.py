"""What an exporter remembers, over HTTP, page by page."""

from urllib.parse import urlencode

import msgspec

from exporter.core.history_query import MAX_LIMIT
from exporter.web.api.history_schema import HistoryDocument, PastEntry
from exporter.web.words import spelled
from exporter.who.ask import fetch
from exporter.who.door import Deadline, Door
from exporter.who.select import NothingMatches, Question, devices_like, resource_among, there_are

ALL = 100 * MAX_LIMIT
"""Rows that are asked for where all are wanted: those of one moment."""


def recall(
    door: Door, question: Question, *, limit: int, timeout: float, **times: float | None
) -> HistoryDocument:
    """Up to `limit` holdings, newest first, in one document, within `timeout` seconds. `times` are at, from
    and to, unix.

    Of the question, what the exporter finds by itself: the pod, the resource's whole name or its last part,
    and the device by its whole id. Raises AskError, Ambiguous and NothingMatches.
    """
    deadline = Deadline(timeout)
    asked = {name: _written(at) for name, at in times.items() if at is not None}
    if question.pod is not None:
        asked |= {"namespace": question.pod.namespace, "pod": question.pod.name}
    if question.device:
        asked["device"] = question.device
    if question.resource:
        known = _page(door, asked | {"limit": "1"}, deadline)
        resource = resource_among(known.resources, question.resource)
        # A claimed device is of a driver.
        asked |= {"driver": question.resource} if resource is None else {"resource": resource}
    whole: HistoryDocument | None = None
    holdings: list[PastEntry] = []
    while whole is None or (whole.next is not None and len(holdings) < limit):
        page = {"limit": str(min(MAX_LIMIT, limit - len(holdings)))}
        if whole is not None and whole.next is not None:
            page["cursor"] = whole.next
        whole = _page(door, asked | page, deadline)
        holdings.extend(whole.holdings)
    return msgspec.structs.replace(whole, holdings=tuple(holdings))


def _written(at: float) -> str:
    """Unix time as the API takes it."""
    return f"{at:.6f}"


def _page(door: Door, asked: dict[str, str], deadline: Deadline) -> HistoryDocument:
    where = f"/api/v1/history?{urlencode(asked, errors='surrogateescape')}"
    return fetch(door, where, HistoryDocument, deadline)


def recall_moment(door: Door, question: Question, *, at: float, timeout: float) -> HistoryDocument:
    """Who held what at unix time `at`, of what `question` is about.

    Raises AskError, Ambiguous and NothingMatches.
    """
    document = recall(door, Question(pod=question.pod), limit=ALL, timeout=timeout, at=at)
    found = list(document.holdings)
    if question.resource:
        known = {*document.resources, *(entry.driver for entry in found if entry.driver)}
        name = resource_among(known, question.resource)
        if name is None:
            raise NothingMatches(
                f"the history of {spelled(document.node)} knows no resource {spelled(question.resource)!r}: "
                f"{there_are(known)}"
            )
        found = [entry for entry in found if name in {entry.resource, entry.driver}]
    if question.device:
        found = devices_like(found, question.device)
    return msgspec.structs.replace(document, holdings=tuple(found))


def gaps(document: HistoryDocument) -> list[str]:
    """What must be known of the answer's limits, in plain sentences."""
    told: list[str] = []
    if document.trouble:
        told.append(f"the history of {document.node} is not in its file: {document.trouble}")
    if document.unseen_left_out:
        told.append(f"{document.unseen_left_out} more gaps are earlier than these")
    told.extend(
        f"nobody looked {_between(gap.since, gap.until)} ({_WHY.get(gap.why, spelled(gap.why))}): "
        "who held what then is not known"
        for gap in document.unseen
    )
    return told


_WHY = {
    "exporter_down": "the exporter was down",
    "kubelet_silent": "the kubelet did not answer",
    "paused": "the exporter did not get to look",
    "clock_set": "the clock was set",
    "not_recorded": "it could not be recorded",
    "before_history": "history begins later",
    "not_yet": "it is yet to come",
}


def _between(since: str | None, until: str | None) -> str:
    match since, until:
        case None, None:
            return "at all"
        case None, end:
            return f"before {spelled(end or '')}"
        case start, None:
            return f"after {spelled(start)}"
        case start, end:
            return f"from {spelled(start or '')} to {spelled(end or '')}"
