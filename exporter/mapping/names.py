"""How a typed name finds a name: whole, as the part after a slash, or as a part of an id. Pure.

Pages, API, commands, and history use these rules. Texts are compared as they are shown, so that a name copied
from a page or a table matches.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final, TypeVar

from runtime.text import visible

Item = TypeVar("Item", bound=tuple[str, ...])

WHOLE_LIMIT: Final = 8192
"""Characters of an untrusted text that are shown or searched at most."""

_SIMILAR: Final = 5
_COMPARED: Final = 4096
"""Names that an unknown name is compared with."""
_COMPARED_LENGTH: Final = 256


def folded(raw: str) -> str:
    """`raw` as it is shown, case-folded: the form in which parts of texts are compared."""
    return visible(raw, limit=WHOLE_LIMIT).casefold()


def same(raw: str, given: str) -> bool:
    """Whether `given` is the name `raw`, as it is or as it is shown."""
    return raw == given or visible(raw, limit=WHOLE_LIMIT) == given


def is_resource(raw: str, given: str) -> bool:
    """Whether `given` is the resource name `raw`, or the part after its slash."""
    return same(raw, given) or same(raw.rpartition("/")[2], given)


def resources_named(known: Iterable[str], given: str) -> list[str]:
    """The resource of this name, or else every resource whose part after the slash is `given`; sorted."""
    found = sorted(name for name in set(known) if is_resource(name, given))
    return [name for name in found if same(name, given)][:1] or found


def has_part(raw: str, part: str) -> bool:
    """Whether `part` is a part of the name `raw`, case-insensitive."""
    return folded(part) in folded(raw)


def most_similar(wanted: str, known: Iterable[tuple[str, Item]]) -> list[Item]:
    """The items with the most similar names, by the names' beginnings and ends, because ids differ in the
    middle or at one end. At most 5, of the first 4096.
    """
    wanted = wanted.casefold()[:_COMPARED_LENGTH]
    scored: list[tuple[int, Item]] = []
    for name, item in islice(dict.fromkeys(known), _COMPARED):
        other = name.casefold()[:_COMPARED_LENGTH]
        alike = _common(wanted, other) + _common(wanted[::-1], other[::-1])
        if 2 * alike >= max(len(wanted), 2):
            scored.append((-alike, item))
    return [item for _, item in sorted(scored)[:_SIMILAR]]


def _common(one: str, other: str) -> int:
    """The length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
