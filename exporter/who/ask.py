"""An exporter's documents, over HTTP."""

import http.client
from typing import TypeVar

import msgspec

from daemon.text import visible
from exporter.core.address import Address
from exporter.who.door import AskError, Deadline, Door, Reply, refusal

__all__ = ["AskError", "RefusedError", "UnknownError", "fetch", "trouble"]

D = TypeVar("D", bound=msgspec.Struct)

_WHAT = "a devicelens exporter"


class _Problem(msgspec.Struct):
    """What is needed of application/problem+json."""

    detail: str
    nearest: list[dict[str, str]] | None = None


class UnknownError(AskError):
    """There is no such thing (404); `detail` is the exporter's own word."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


class RefusedError(AskError):
    """What was asked for cannot be honoured (400); `detail` is the exporter's own word."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


class MissingError(AskError):
    """There is nothing at the path (404): it is no exporter, or one that does not know it yet."""


def fetch(door: Door, where: str, kind: type[D], deadline: Deadline) -> D:
    """The exporter's document at the path `where`, by the `deadline` whatever it does.

    Fields that are not known are passed over: a newer exporter tells more. Raises AskError.
    """
    reply = door.ask(where, deadline)
    if reply.status != http.client.OK:
        raise trouble(door.address, where, reply)
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        found = f"{_path(where)} is {reply.media}: {visible(str(error), limit=200)}"
        raise AskError(f"{door.address}: this is not {_WHAT}, or not of this version; {found}") from None


def _path(where: str) -> str:
    return where.partition("?")[0]


def trouble(address: Address, where: str, reply: Reply) -> AskError:
    """What an answer that is none says."""
    plain = refusal(address, _path(where), reply, what=_WHAT)
    if reply.media != "application/problem+json":
        return MissingError(plain) if reply.status == http.client.NOT_FOUND else AskError(plain)
    said = f"{address}: {visible(f'{reply.status} {reply.reason}', limit=100)}"
    try:
        problem = msgspec.json.decode(reply.body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return AskError(said)
    detail = visible(problem.detail)
    message = f"{said}: {detail}"
    if reply.status == http.client.UNAUTHORIZED:
        return AskError(plain)
    if reply.status == http.client.BAD_REQUEST:
        return RefusedError(message, detail)
    if reply.status == http.client.NOT_FOUND:
        # An exporter that does not know the path tells of nothing near.
        return MissingError(message) if problem.nearest is None else UnknownError(message, detail)
    return AskError(message)
