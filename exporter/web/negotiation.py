"""What a client says it takes and has: Accept, Accept-Encoding and If-None-Match (RFC 9110, 12.5.1, 12.5.3
and 13.1.2). Pure.
"""

import re
from typing import Final

_ETAG: Final = re.compile(r'[ \t,]*(?:W/)?"([^"]*)"[ \t]*(?=,|$)')
_QUALITY: Final = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")


def accepts(accept: str | None, media: str) -> bool:
    """Whether an Accept header's value allows `media` (type/subtype, lower case); without one all is allowed.

    The most specific range that covers it decides, so that `application/json;q=0, */*` refuses JSON. A part
    that cannot be read counts as not said; of a header in which nothing can be read, so does the whole.
    """
    kind = media.partition("/")[0]
    ranges = ("*/*", f"{kind}/*", media)
    best, allowed, read = -1, False, False
    for clause in (accept or "").split(","):
        name, *parameters = (part.strip().lower() for part in clause.split(";"))
        quality = next((p[2:].strip() for p in parameters if p.startswith("q=")), "1")
        if "/" not in name or not _QUALITY.fullmatch(quality):
            continue
        read = True
        if name in ranges and ranges.index(name) >= best:
            rank, wanted = ranges.index(name), float(quality) > 0
            allowed = wanted or (allowed and rank == best)
            best = rank
    return allowed if read else True


def refuses_plain(accept_encoding: str | None) -> bool:
    """Whether an Accept-Encoding header's value refuses an answer as it is: by `identity;q=0`, or by `*;q=0`
    where identity is not named.
    """
    said: dict[str, bool] = {}
    for clause in (accept_encoding or "").lower().split(","):
        coding, _, parameter = (part.strip() for part in clause.partition(";"))
        quality = parameter.removeprefix("q=").strip() if parameter.startswith("q=") else "1"
        if _QUALITY.fullmatch(quality):
            said[coding] = float(quality) == 0
    return said.get("identity", said.get("*", False))


def names(if_none_match: str | None, tag: str) -> bool:
    """Whether an If-None-Match header's value names `tag`, compared weakly, or is `*`.

    Reading ends where the list is broken: what comes after cannot be told apart.
    """
    text = (if_none_match or "").strip(" \t")
    if text == "*":
        return True
    position = 0
    while (match := _ETAG.match(text, position)) is not None:
        if match[1] == tag:
            return True
        position = match.end()
    return False
