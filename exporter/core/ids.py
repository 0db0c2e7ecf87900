"""Device ids: which physical device is behind a replica or a slice.

Plugins put the relation into the id's text, each in its own way. The forms are a table of rules,
tried in order; the first that matches the whole id tells the parent. An id that no rule matches is a
whole device and has no parent.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final


@dataclass(frozen=True, slots=True)
class Reading:
    """How an id was read: the `rule`'s name, the `parent` ("" for a whole device), and the `replica`
    ("" where the id is not one of several shares of the same device).
    """

    rule: str
    parent: str = ""
    replica: str = ""


WHOLE: Final = Reading("whole")


@dataclass(frozen=True, slots=True)
class Rule:
    """One form of id: a pattern with the group `parent`, and `replica` where a share is numbered."""

    name: str
    pattern: re.Pattern[str]


def rule(name: str, pattern: str) -> Rule:
    """A rule from a regular expression that must match the whole id.

    Raises ValueError for a pattern that does not compile or has no group `parent`.
    """
    try:
        # Digits are 0 to 9, and a line break in an id is a character like another.
        compiled = re.compile(pattern, re.ASCII | re.DOTALL)
    except re.error as error:
        raise ValueError(f"id rule {name}: {pattern!r} is not a regular expression: {error}") from error
    if "parent" not in compiled.groupindex:
        raise ValueError(f"id rule {name}: {pattern!r} has no group (?P<parent>…)")
    return Rule(name, compiled)


RULES: Final = (
    # GKE's plugin, slashes: a share of a MIG slice, a MIG slice, a share of a whole GPU.
    rule("gke-mig-share", r"(?P<parent>nvidia\d+)/gi\d+/vgpu(?P<replica>\d+)"),
    rule("gke-mig", r"(?P<parent>nvidia\d+)/gi\d+"),
    rule("gke-share", r"(?P<parent>nvidia\d+)/vgpu(?P<replica>\d+)"),
    # The older MIG UUID names its GPU and its instances: MIG-GPU-<uuid>/<gi>/<ci>, shared or not.
    rule("mig-of-gpu", r"MIG-(?P<parent>GPU-[0-9a-fA-F-]+)/\d+/\d+(?:::(?P<replica>\d+))?"),
    # NVIDIA's plugin and this project's own: id::n is one of n shares of id.
    rule("replica", r"(?P<parent>.+)::(?P<replica>\d+)"),
)
"""The forms known without configuration, the more particular first."""


_REMEMBERED: Final = 16_384
"""Readings kept: more than the devices of a node, so that each is read once; 5 MiB at the usual length."""
_LONGEST: Final = 128
"""Characters of an id that is remembered. The kubelet would pass on megabytes; real ids have 60 at most."""


class Reader:
    """Reads ids by a table of rules, tried in order. What was read is remembered: ids come again."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = tuple(rules)
        self._remembered = lru_cache(maxsize=_REMEMBERED)(self._read)

    def __call__(self, device: str) -> Reading:
        """How `device`'s id reads."""
        return self._remembered(device) if len(device) <= _LONGEST else self._read(device)

    def _read(self, device: str) -> Reading:
        for candidate in self._rules:
            match = candidate.pattern.fullmatch(device)
            if match is not None:
                groups = match.groupdict()
                return Reading(candidate.name, groups["parent"] or "", groups.get("replica") or "")
        return WHOLE


read: Final = Reader()
"""Reads ids by the forms that are known without configuration."""
