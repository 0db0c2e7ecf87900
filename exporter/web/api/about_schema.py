"""The shapes in which the API speaks of itself: its index, and what went wrong (RFC 9457)."""

from msgspec import UNSET, Struct, UnsetType


class EndpointEntry(Struct, frozen=True):
    """An address: what is there, and the query parameters that it knows."""

    href: str
    summary: str
    parameters: tuple[str, ...]


class IndexDocument(Struct, frozen=True):
    """/api/v1: what there is. `openapi` is the address of the document that describes it all. `pages` are the
    addresses of the HTML pages for people, as URI templates (RFC 6570).
    """

    node: str
    version: str
    openapi: str
    endpoints: tuple[EndpointEntry, ...]
    pages: dict[str, str]


class DeviceName(Struct, frozen=True):
    """A device's name: ids are unique within a resource only."""

    resource: str
    device: str


class Problem(Struct, frozen=True, kw_only=True):
    """What went wrong (RFC 9457). `detail` is one sentence for a person, and may be worded otherwise in
    another version; programs look at `status` and at the members beside it.
    """

    type: str
    title: str
    status: int
    detail: str


class QueryProblem(Problem, frozen=True, kw_only=True):
    """A query parameter that cannot be honoured: which, what was found, what was expected. `devices` are
    those that may be meant, where an id is not enough to tell them apart.
    """

    parameter: str
    found: str | UnsetType = UNSET
    expected: str | UnsetType = UNSET
    devices: tuple[DeviceName, ...] | UnsetType = UNSET


class UnknownDeviceProblem(Problem, frozen=True, kw_only=True):
    """There is no such device. `nearest` are those whose ids are most like it."""

    node: str
    nearest: tuple[DeviceName, ...]


class UnavailableProblem(Problem, frozen=True, kw_only=True):
    """Not now: Retry-After says when to ask again, in seconds. `freshness` is unknown until the kubelet has
    answered for the first time.
    """

    node: str | UnsetType = UNSET
    freshness: str | UnsetType = UNSET


class NotAcceptableProblem(Problem, frozen=True, kw_only=True):
    """The Accept header allows nothing of what is `available`."""

    available: tuple[str, ...]
