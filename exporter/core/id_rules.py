r"""Id rules of the user's own, read from a YAML file and tried before those that are built in.

```yaml
version: 1
rules:
  - name: acme-share
    resource: acme\.example/accelerator.*           # optional: whose ids have this form
    pattern: (?P<board>acc\d+)-slot(?P<replica>\d+)
    parent: "{board}"                                # optional: the group called parent
    kind: replica                                    # optional: replica, partition or whole
```

The expressions are the operator's own, but the ids that they meet are anybody's. So ids longer than
LONGEST are not read by them, and an expression that could take exponential time (a repetition or a
choice within a repetition) is refused, as is one with many more than VARIABLE repetitions.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from daemon.errors import quoted
from daemon.places import convert
from daemon.yaml_document import Document, parse
from exporter.core.ids import RULES, Kind, Rule, RuleError, rule

LONGEST: Final = 128
"""Characters of an id that a rule of the user's own is tried on; real ids have 60 at most."""
VARIABLE: Final = 4
"""Repetitions of varying length in one expression: each may multiply the time by an id's length."""


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    pattern: Annotated[str, Meta(min_length=1, max_length=1024)]
    resource: Annotated[str, Meta(min_length=1, max_length=1024)] | UnsetType = UNSET
    parent: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
    kind: Literal["replica", "partition", "whole"] = "replica"


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    rules: Annotated[list[_Entry], Meta(max_length=100)]


def load(content: bytes, source: str) -> tuple[Rule, ...]:
    """The rules in `content`, in their order; `source` names the file in messages.

    Raises ConfigError: which line and place, what was found, what was expected.
    """
    document = parse(content, source)
    known = {built_in.name for built_in in RULES}
    rules: list[Rule] = []
    for index, entry in enumerate(convert(document, _File).rules):
        found = _rule(document, index, entry)
        if found.name in known:
            why = "there is a rule of that name, built in or above"
            raise document.error(("rules", index, "name"), f"found {quoted(found.name)}: {why}")
        known.add(found.name)
        rules.append(found)
    return tuple(rules)


def _rule(document: Document, index: int, entry: _Entry) -> Rule:
    kind = Kind(entry.kind)
    if kind is Kind.WHOLE and entry.parent is not UNSET:
        problem = f"found {quoted(entry.parent)}, but what is whole has no parent: leave it out"
        raise document.error(("rules", index, "parent"), problem)
    default = "" if kind is Kind.WHOLE else "{parent}"
    resource = "" if entry.resource is UNSET else entry.resource
    for key, expression in (("pattern", entry.pattern), ("resource", resource)):
        problem = slow(expression)
        if problem:
            raise document.error(("rules", index, key), f"found {quoted(expression)}: {problem}")
    try:
        return rule(
            entry.name,
            entry.pattern,
            parent=default if entry.parent is UNSET else entry.parent,
            kind=kind,
            resource=resource,
            longest=LONGEST,
        )
    except RuleError as error:
        raise document.error(("rules", index, error.key), error.problem) from None


_REPEATED: Final = 6
"""Bits of freedom of a repetition of varying length: it may end at any of LONGEST characters, after the
one before it. What may be left out, and each choice, has one.
"""
_FREEDOM: Final = VARIABLE * _REPEATED + 1


@dataclass(slots=True)
class _Group:
    """What is known of a group while it is read: its bits of freedom, and whether anything in it varies."""

    freedom: int = 0
    varies: bool = False


_TOKEN: Final = re.compile(
    r"""(?P<escape>\\.)
    | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
    | \(\?\#[^)]*\)
    | (?P<flags>\(\?[aiLmsux-]+[:)])
    | (?P<open>\((?:\?(?:P<\w+>|[:=!>]|<[=!]))?)
    | (?P<close>\))
    | (?P<choice>\|)
    | .""",
    re.DOTALL | re.VERBOSE,
)
_TIMES: Final = re.compile(r"(?:(?P<sign>[*+?])|\{(?P<least>\d*)(?P<comma>,(?P<most>\d*))?\})[?+]?")


def slow(expression: str) -> str:
    """Why matching `expression` may take for ever on an id that nearly matches; "" if it does not.

    Counted is in how many ways a matcher that steps back could try, at most.
    """
    groups = [_Group()]
    at = 0
    while at < len(expression):
        token = _TOKEN.match(expression, at)
        if token is None:
            return ""  # not an expression: re says so better
        at = token.end()
        atom = _Group()
        match token.lastgroup:
            case "flags":
                return "flags within an expression are not taken"
            case "open":
                groups.append(_Group())
                continue
            case "choice":
                groups[-1] = _Group(groups[-1].freedom + 1, varies=True)
                continue
            case "close" if len(groups) > 1:
                atom = groups.pop()
            case _:
                pass
        times = _TIMES.match(expression, at)
        if times is not None:
            at = times.end()
            if atom.varies and _may_be_any_number(times):
                return "a repetition or a choice within a repetition may take for ever"
            atom = _repeated(atom, times)
        groups[-1].freedom += atom.freedom
        groups[-1].varies = groups[-1].varies or atom.varies
    if groups[0].freedom > _FREEDOM:
        return (
            f"it has too many repetitions and choices: {VARIABLE} of varying length, not many more, will do"
        )
    return ""


def _repeated(atom: _Group, times: re.Match[str]) -> _Group:
    if _may_be_any_number(times):
        return _Group(_REPEATED, varies=True)
    if times["sign"] == "?":
        return _Group(atom.freedom + 1, varies=True)
    return _Group(atom.freedom * int((times["least"] or "1")[:6]), atom.varies)


def _may_be_any_number(times: re.Match[str]) -> bool:
    """Whether it is a repetition of no fixed number."""
    if times["sign"] is not None:
        return times["sign"] != "?"
    return times["comma"] is not None and (times["least"] != times["most"] or not times["most"])
