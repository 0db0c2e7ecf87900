"""The kernel's uevents: what it says when a device comes, goes or changes. Parsing alone."""

from dataclasses import dataclass
from typing import Final

MAX_BYTES: Final = 64 * 1024
"""The kernel sends 2 KiB of variables at most, and a header."""


@dataclass(frozen=True, slots=True)
class Uevent:
    """`action`: add, remove, change, bind, unbind, move, online, offline; `devpath` is below /sys."""

    action: str
    devpath: str
    subsystem: str


def parse(message: bytes) -> Uevent | None:
    """The event in a message of the kernel's; None for anything else, such as what udev sends on.

    kernel: `ACTION@DEVPATH`, then `KEY=VALUE` pieces, each ended by a NUL.
    """
    if len(message) > MAX_BYTES:
        return None
    header, *pieces = message.decode("utf-8", "replace").split("\0")
    action, at, devpath = header.partition("@")
    if not at or not action.isalpha() or not devpath.startswith("/"):
        return None
    values = {key: value for key, _, value in (piece.partition("=") for piece in pieces)}
    if values.get("ACTION") != action:
        return None
    return Uevent(action, devpath, values.get("SUBSYSTEM", ""))
