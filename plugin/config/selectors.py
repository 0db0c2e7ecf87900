"""How a bus's devices are selected by what is written: ids, patterns, ranges of virtual functions.

Pure, and quick: each text of a configuration is compiled once.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MAX_PATTERN: Final = 256
"""Characters of one selector."""
MAX_FUNCTION: Final = 65_535
"""PCI counts virtual functions with 16 bits."""

ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
"""A PCI function as Linux names it: domain:bus:device.function."""

_HEX: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]+)", re.ASCII)
_ADDRESS_PATTERN: Final = re.compile(r"[0-9a-fA-F:.*?\[\]!-]+", re.ASCII)
_DOMAIN: Final = re.compile(r"[0-9a-f?]{4,8}", re.ASCII)
_PART: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)

Problem = Callable[[str], str | None]


@lru_cache(maxsize=1024)
def pattern(text: str) -> re.Pattern[str]:
    """A pattern with `*`, `?` and `[…]`, to be used with `match`."""
    return re.compile(fnmatch.translate(text))


def any_matches(patterns: Sequence[str], names: Iterable[str]) -> bool:
    """Whether one of `names` matches one of `patterns`; no patterns hold for all."""
    if not patterns:
        return True
    given = [name for name in names if name]
    return any(pattern(text).match(name) for text in patterns for name in given)


def hex_id(text: str) -> str:
    """An id as sysfs or a person writes it (`0x8086`, `8086`), as four lower-case digits; empty: none."""
    found = _HEX.fullmatch(text)
    return found[1].lower().zfill(4) if found is not None and len(found[1]) <= 4 else ""


def class_code(text: str) -> str:
    """A class as sysfs writes it, `0x020000`, as six digits; empty: none."""
    found = _HEX.fullmatch(text)
    return found[1].lower().zfill(6) if found is not None and len(found[1]) <= 6 else ""


def class_prefix(text: str) -> str:
    """The start of a class: two, four or six digits, with or without `0x`; empty: none."""
    found = _HEX.fullmatch(text)
    return found[1].lower() if found is not None and len(found[1]) in {2, 4, 6} else ""


def address_pattern(text: str) -> str:
    """A pattern for PCI addresses; one that begins with a bus is for domain 0000, as lspci has it."""
    lower = text.lower()
    first, colon, _ = lower.partition(":")
    has_domain = lower.count(":") > 1 or not colon or lower.startswith("*") or _DOMAIN.fullmatch(first)
    return lower if has_domain else f"0000:{lower}"


@dataclass(frozen=True, slots=True)
class VirtualFunctions:
    """`PF#0-3,5`: virtual functions of a physical one; without `#…` all of them."""

    physical: str
    ranges: tuple[tuple[int, int], ...]

    def holds(self, index: int | None) -> bool:
        """Whether the virtual function of this index is among them; None: it has none."""
        return not self.ranges or (index is not None and any(a <= index <= b for a, b in self.ranges))


@lru_cache(maxsize=1024)
def virtual_functions(text: str) -> VirtualFunctions:
    """`PF` or `PF#RANGES`. Raises ValueError, in words, for ranges that are none."""
    physical, mark, listed = text.partition("#")
    ranges: list[tuple[int, int]] = []
    for part in listed.split(",") if mark else ():
        found = _PART.fullmatch(part.strip())
        first = int(found[1]) if found is not None else -1
        last = int(found[2]) if found is not None and found[2] is not None else first
        if not 0 <= first <= last <= MAX_FUNCTION:
            raise ValueError("expected indexes and ranges such as eth0#0-3,5 after '#'")
        ranges.append((first, last))
    return VirtualFunctions(physical, tuple(ranges))


def vendor_problem(text: str) -> str | None:
    """What makes `text` unfit for a vendor's or device's id; None where it is fit."""
    return None if hex_id(text) else "expected at most four hexadecimal digits such as 0x8086 or 8086"


def class_problem(text: str) -> str | None:
    """What makes `text` unfit for the start of a class; None where it is fit."""
    if class_prefix(text):
        return None
    return "expected the first two, four or all six digits of a class such as 0x02 or 0x030000"


def name_problem(text: str) -> str | None:
    """What makes `text` unfit for a pattern of names; None where it is fit."""
    if not text or len(text) > MAX_PATTERN:
        return f"expected a name or a pattern with '*', '?' or '[…]' of at most {MAX_PATTERN} characters"
    if "/" in text or not text.isprintable() or any(c.isspace() for c in text):
        return "expected a name or a pattern without slashes and white space"
    return None


def address_problem(text: str) -> str | None:
    """What makes `text` unfit for a pattern of PCI addresses; None where it is fit."""
    expected = "expected a PCI address or a pattern such as 0000:3b:00.0, 3b:00.0 or 0000:3b:*"
    if not _ADDRESS_PATTERN.fullmatch(text) or len(text) > MAX_PATTERN:
        return expected
    if not set(text) & set("*?[") and not ADDRESS.fullmatch(address_pattern(text)):
        return expected
    return None


def physical_name_problem(text: str) -> str | None:
    """What makes `text` unfit for NAME or NAME#RANGES; None where it is fit."""
    return _physical_problem(text, name_problem)


def physical_address_problem(text: str) -> str | None:
    """What makes `text` unfit for ADDRESS or ADDRESS#RANGES; None where it is fit."""
    return _physical_problem(text, address_problem)


def _physical_problem(text: str, check: Problem) -> str | None:
    try:
        return check(virtual_functions(text).physical)
    except ValueError as error:
        return str(error)
