"""Selectors of bus devices: ids, patterns of names and addresses, ranges of virtual functions. Pure.

Each text of a configuration is compiled once. The types at the end are those of configuration fields.
"""

import fnmatch
import re
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Final

from msgspec import Meta, Struct

from plugin.names import Check

MAX_PATTERN: Final = 256
"""Characters of one selector."""
MAX_FUNCTION: Final = 65_535
"""PCI has 16 bits for the number of virtual functions."""

ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
"""A PCI address as Linux writes it: domain:bus:device.function."""

_HEX: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]+)", re.ASCII)
_ADDRESS_PATTERN: Final = re.compile(r"[0-9a-fA-F:.*?\[\]!-]+", re.ASCII)
_DOMAIN: Final = re.compile(r"[0-9a-f?]{4,8}", re.ASCII)
_PART: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


@lru_cache(maxsize=1024)
def pattern(text: str) -> re.Pattern[str]:
    """The expression of a pattern with `*`, `?` and `[…]`; use its `match`."""
    return re.compile(fnmatch.translate(text))


def any_matches(patterns: Sequence[str], names: Iterable[str]) -> bool:
    """Whether one of `names` matches one of `patterns`. Without patterns everything matches."""
    if not patterns:
        return True
    given = [name for name in names if name]
    return any(pattern(text).match(name) for text in patterns for name in given)


def _digits(text: str, lengths: Container[int]) -> str:
    """The lower-case digits of a hexadecimal number, with `0x` or without; empty for anything else."""
    found = _HEX.fullmatch(text)
    return found[1].lower() if found is not None and len(found[1]) in lengths else ""


def hex_id(text: str) -> str:
    """The four lower-case digits of an id such as `0x8086` or `8086`; empty for anything else."""
    digits = _digits(text, range(1, 5))
    return digits and digits.zfill(4)


def class_code(text: str) -> str:
    """The six digits of a class such as `0x020000`; empty for anything else."""
    digits = _digits(text, range(1, 7))
    return digits and digits.zfill(6)


def class_prefix(text: str) -> str:
    """The first two, four or six digits of a class, without `0x`; empty for anything else."""
    return _digits(text, {2, 4, 6})


def address_pattern(text: str) -> str:
    """A pattern of PCI addresses. Without a domain it is for domain 0000, as in lspci."""
    lower = text.lower()
    first, colon, _ = lower.partition(":")
    has_domain = lower.count(":") > 1 or not colon or lower.startswith("*") or _DOMAIN.fullmatch(first)
    return lower if has_domain else f"0000:{lower}"


class VirtualFunctions(Struct, frozen=True):
    """`PF#0-3,5`: virtual functions of a physical function; all of them without `#…`."""

    physical: str
    ranges: tuple[tuple[int, int], ...]

    def holds(self, index: int | None) -> bool:
        """Whether the virtual function with this index is selected; None: the index is unknown."""
        return not self.ranges or (index is not None and any(a <= index <= b for a, b in self.ranges))


@lru_cache(maxsize=1024)
def virtual_functions(text: str) -> VirtualFunctions:
    """Parse `PF` or `PF#RANGES`. Raises ValueError for bad ranges; its text says what was expected."""
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


def name_problem(text: str) -> str | None:
    """Check a pattern of names."""
    if not text or len(text) > MAX_PATTERN:
        return f"expected a name or a pattern with '*', '?' or '[…]' of at most {MAX_PATTERN} characters"
    if "/" in text or not text.isprintable() or any(c.isspace() for c in text):
        return "expected a name or a pattern without slashes and white space"
    return None


def address_problem(text: str) -> str | None:
    """Check a pattern of PCI addresses."""
    expected = "expected a PCI address or a pattern such as 0000:3b:00.0, 3b:00.0 or 0000:3b:*"
    if not _ADDRESS_PATTERN.fullmatch(text) or len(text) > MAX_PATTERN:
        return expected
    if not set(text) & set("*?[") and not ADDRESS.fullmatch(address_pattern(text)):
        return expected
    return None


def hex_problem(text: str) -> str | None:
    """Check a vendor or device id."""
    return None if hex_id(text) else "expected at most four hexadecimal digits such as 0x8086 or 8086"


def class_problem(text: str) -> str | None:
    """Check the first digits of a class."""
    if class_prefix(text):
        return None
    return "expected the first two, four or all six digits of a class such as 0x02 or 0x030000"


def _with_ranges(check: Check) -> Check:
    def problem(text: str) -> str | None:
        try:
            return check(virtual_functions(text).physical)
        except ValueError as error:
            return str(error)

    return problem


function_name_problem: Final = _with_ranges(name_problem)
function_address_problem: Final = _with_ranges(address_problem)

UNIQUE: Final = Meta(max_length=256, extra={"unique": True})
"""A list of selectors, each at most once."""
HexIds = Annotated[list[Annotated[str, Meta(extra={"check": hex_problem})]], UNIQUE]
ClassPrefixes = Annotated[list[Annotated[str, Meta(extra={"check": class_problem})]], UNIQUE]
NamePatterns = Annotated[list[Annotated[str, Meta(extra={"check": name_problem})]], UNIQUE]
AddressPatterns = Annotated[list[Annotated[str, Meta(extra={"check": address_problem})]], UNIQUE]
FunctionNames = Annotated[list[Annotated[str, Meta(extra={"check": function_name_problem})]], UNIQUE]
"""Interface names of physical functions, each with `#RANGES` of virtual functions if wanted."""
FunctionAddresses = Annotated[list[Annotated[str, Meta(extra={"check": function_address_problem})]], UNIQUE]
