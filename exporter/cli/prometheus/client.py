"""The questions that Prometheus' HTTP API takes."""

import http.client
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from exporter.cli.http import AskError, Deadline, Door, refusal
from exporter.cli.http import Reply as HttpReply
from exporter.cli.prometheus.answers import Matrix, Reply, Vector
from runtime.text import visible

POINTS: Final = 11_000
"""Points of a series that one range query may ask for (Prometheus: web/api/v1)."""
_ADDRESS: Final = 1800
"""Characters of a query up to which it goes into the address: every proxy takes so many."""
_TOLD: Final = 5
"""Warnings that are passed on."""

T = TypeVar("T")
Parameters = Mapping[str, str] | Sequence[tuple[str, str]]


class Prometheus:
    """One Prometheus, or what speaks its API, asked until `timeout` seconds from now are over.

    `notes` are what it wants to be known of its answers, so far.
    """

    def __init__(self, door: Door, *, timeout: float) -> None:
        self.door = door
        self.notes: list[str] = []
        self._deadline = Deadline(timeout)
        self._posts = True

    @property
    def origin(self) -> str:
        """What it is called in words."""
        return f"Prometheus at {self.door.address}"

    def query(self, expression: str, at: float | None = None) -> Vector:
        """Its value at unix time `at`, or at Prometheus' own present. Raises AskError."""
        asked = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
        return self._ask("query", asked, Vector, "vector")

    def samples(self, selector: str, seconds: int, at: float) -> Matrix:
        """Every sample as it was scraped, of so many seconds before unix time `at`. Raises AskError."""
        asked = {"query": f"{selector}[{seconds}s]", "time": f"{at:.3f}"}
        return self._ask("query", asked, Matrix, "matrix")

    def query_range(self, expression: str, start: float, end: float, step: float) -> Matrix:
        """Its values at `start`, every `step` seconds from there, up to `end`. Raises AskError."""
        asked = {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._ask("query_range", asked, Matrix, "matrix")

    def series(self, selector: str, start: float, end: float) -> tuple[dict[str, str], ...]:
        """The labels of the series that had samples in that time. Raises AskError."""
        asked = {"match[]": selector, "start": f"{start:.3f}", "end": f"{end:.3f}"}
        return self._data("series", asked, tuple[dict[str, str], ...])

    def _ask(self, path: str, asked: dict[str, str], kind: type[T], expected: str) -> T:
        asked["timeout"] = f"{max(1, round(self._deadline.left * 1000))}ms"
        found = self._data(path, asked, kind)
        if getattr(found, "resultType", expected) != expected:
            raise AskError(f"{self.door.address}: it answered with something else than a {expected}")
        return found

    def _data(self, path: str, asked: Parameters, kind: type[T]) -> T:
        where = f"/api/v1/{path}"
        reply = self._send(where, urlencode(asked, errors="surrogateescape"))
        read = self._read(where, reply)
        for note in (*read.warnings, *read.infos)[:_TOLD]:
            said = f"Prometheus says: {visible(note, 300)}"
            if said not in self.notes:
                self.notes.append(said)
        try:
            return msgspec.json.decode(read.data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise AskError(
                f"{self.door.address}: {where} is not as Prometheus has it: {visible(str(error), 200)}"
            ) from None

    def _send(self, where: str, form: str) -> HttpReply:
        """By GET where it fits an address, for that is what every proxy lets through; by POST otherwise."""
        if len(form) > _ADDRESS and self._posts:
            reply = self.door.ask(where, self._deadline, form=form)
            if reply.status not in {http.client.METHOD_NOT_ALLOWED, http.client.FORBIDDEN}:
                return reply
            self._posts = False
        reply = self.door.ask(f"{where}?{form}", self._deadline)
        if reply.status == http.client.REQUEST_URI_TOO_LONG and self._posts:
            return self.door.ask(where, self._deadline, form=form)
        return reply

    def _read(self, where: str, reply: HttpReply) -> Reply:
        address = self.door.address
        try:
            read = msgspec.json.decode(reply.body, type=Reply)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if reply.status != http.client.OK:
                raise AskError(_refused(self.door, where, reply)) from None
            raise AskError(
                f"{address}: this is not a Prometheus; {where} is {reply.media}: {visible(str(error), 200)}"
            ) from None
        if read.status != "success":
            status = "" if reply.status == http.client.OK else f"{reply.status} "
            kind = visible(read.errorType or "error", 60)
            words = visible(read.error or "it does not say why", 600)
            raise AskError(f"{address}: {status}{kind}: {words}{_hint(read, self._deadline.seconds)}")
        return read


def _refused(door: Door, where: str, reply: HttpReply) -> str:
    words = refusal(door.address, where, reply, what="a Prometheus")
    if reply.status == http.client.NOT_FOUND and reply.media == "application/problem+json":
        return (
            f"{door.address}: this is a devicelens process and not a Prometheus: ask an exporter with --url"
        )
    if 500 <= reply.status < 600 and reply.media.startswith("text/") and reply.media != "text/html":
        return f"{words}: {visible(reply.body[:300].decode(errors='replace').strip(), 300)}"
    return words


def _hint(read: Reply, timeout: float) -> str:
    """What to do about the errors that one meets."""
    words = read.error.lower()
    if read.errorType == "timeout" or "timed out" in words:
        return f"; --timeout is {timeout:g} s"
    if any(word in words for word in ("too many", "limit", "exceeded maximum")):
        return "; ask for less: --node, --selector, a shorter time"
    return ""
