"""Server-sent events read. Pure. https://html.spec.whatwg.org/multipage/server-sent-events.html"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_LIMIT: Final = 64 * 1024


class Sent(NamedTuple):
    """One event: its name, and its data."""

    event: str
    data: str


def events(lines: Iterable[bytes]) -> Iterator[Sent]:
    """The events of a stream's lines. Comments keep a connection open, and are nothing."""
    event, data = "", ""
    for raw in lines:
        line = raw.decode("utf-8", errors="replace").rstrip("\r\n")
        if not line:
            if data or event:
                yield Sent(event or "message", data)
            event, data = "", ""
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            event = value
        elif name == "data":
            data = f"{data}\n{value}"[:_LIMIT] if data else value
