"""The shape of /api/v1/history. `devicelens history` and `devicelens who --at` read the same.

As everywhere, times are RFC 3339 in UTC, and what is not known is null.
"""

from typing import Annotated

from msgspec import Struct

from exporter.web.api.schema import Count, Envelope, Time, one_of

CertaintyWord = Annotated[
    str, one_of("at_once", "between_polls", "while_silent", "while_down", "held_already", "in_doubt")
]
GapWord = Annotated[
    str,
    one_of(
        *("exporter_down", "kubelet_silent", "paused", "clock_set"),
        *("not_recorded", "before_history", "not_yet"),
    ),
]


class BoundEntry(Struct, frozen=True):
    """When a holding began or ended: not before the last look that did not show it, and not after the first
    that did. `certainty` says how it came to be known: at_once, between_polls, while_silent (the kubelet did
    not answer), while_down (the exporter), held_already (it was there in the first look ever), in_doubt (not
    seen just after a start, when the kubelet may not list all yet).
    """

    not_before: Time | None
    not_after: Time | None
    certainty: CertaintyWord


class PastEntry(Struct, frozen=True, kw_only=True):
    """One holding: what, by whom, from when to when. `end` is null while it lasts.

    A device plugin's device has `resource`, a claimed one `driver`, `pool` and the claim. `assumed`: for
    some time nobody looked, and no uid proves that it is still the same pod. `certain` tells of a question
    of one moment whether it was surely held then; it is null in the answer for a range.
    """

    id: int
    node: str
    resource: str | None
    device: str
    parent: str | None
    driver: str | None
    pool: str | None
    share_id: str | None
    claim_namespace: str | None
    claim: str | None
    namespace: str
    pod: str
    pod_uid: str | None
    container: str
    workload_kind: str | None
    workload: str | None
    start: BoundEntry
    end: BoundEntry | None
    assumed: bool
    certain: bool | None


class UnseenEntry(Struct, frozen=True):
    """A time at which nobody looked: whatever was held and given back within it is not known. `since` is null
    where it goes back without end, `until` where it has none yet.
    """

    since: Time | None
    until: Time | None
    why: GapWord


class HistoryDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/history, newest first.

    `at`, or `since` and `until`, are what was asked for. It is known who held what from `earliest` to
    `latest`, but for the gaps: `complete` says that there are none in the time that was asked for, and
    `unseen` lists those that there are (the latest of them, if they are many: `unseen_left_out`). `next` is
    the cursor of what follows. `resources` are all that history knows. `kept_in` is file or memory;
    `trouble` says why it is not the file, or not up to date.
    """

    at: Time | None
    since: Time | None
    until: Time | None
    earliest: Time | None
    latest: Time | None
    complete: bool
    unseen: tuple[UnseenEntry, ...]
    unseen_left_out: Count
    holdings: tuple[PastEntry, ...]
    next: str | None
    resources: tuple[str, ...]
    kept_in: Annotated[str, one_of("file", "memory")]
    trouble: str | None
