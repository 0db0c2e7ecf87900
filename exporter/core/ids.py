"""Device ids: which physical device is behind a replica or a slice.

Plugins put the relation into the id's text, each in its own way. The forms are a table of rules,
tried in order; the first that is of the device's resource and matches the whole id tells what it is. An
id that no rule matches is a whole device and has no parent. id_rules reads further rules from a file.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final


class Kind(StrEnum):
    """What a device is of the one behind it."""

    WHOLE = "whole"
    """A device by itself."""
    REPLICA = "replica"
    """One of several shares of the same device, none of them more real than another."""
    PARTITION = "partition"
    """A part of a device with means of its own, such as a MIG instance."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How an id was read: the `rule`'s name, the `parent` ("" for a whole device, and for a partition whose
    id does not tell), the `replica` ("" where the id is not a numbered share), what `kind` it is, and the
    `partition` of the parent ("" where the id names none).
    """

    rule: str
    parent: str = ""
    replica: str = ""
    kind: Kind = Kind.WHOLE
    partition: str = ""


WHOLE: Final = Reading("whole")


class RuleError(ValueError):
    """A rule that cannot work. `key` is the part that is at fault: pattern, parent or resource."""

    def __init__(self, name: str, key: str, problem: str) -> None:
        super().__init__(f"id rule {name}: {problem}")
        self.key = key
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Rule:
    """One form of id.

    `pattern` matches the whole id; of its groups `replica` is a share's number and `partition` a part's
    name. `parent` is a template of the parent's id in which {group} stands for what a group matched.
    `resource`, where given, matches the whole name of the resources whose ids have this form. Ids of more
    than `longest` characters are not of it. An id whose group `replica` took part is a REPLICA, whatever
    `kind` says.
    """

    name: str
    pattern: re.Pattern[str]
    parent: str
    kind: Kind
    resource: re.Pattern[str] | None = None
    longest: int | None = None

    def is_of(self, resource: str) -> bool:
        """Whether the ids of `resource` may have this form."""
        return self.resource is None or self.resource.fullmatch(resource) is not None

    def read(self, device: str) -> Reading | None:
        """How the id reads by this rule, None if it is not of its form."""
        if self.longest is not None and len(device) > self.longest:
            return None
        match = self.pattern.fullmatch(device)
        if match is None:
            return None
        groups: Mapping[str, str | None] = match.groupdict()
        replica = groups.get("replica") or ""
        return Reading(
            self.name,
            _FIELD.sub(lambda field: groups[field[1]] or "", self.parent),
            replica,
            Kind.REPLICA if replica else self.kind,
            groups.get("partition") or "",
        )


_FIELD: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)


def rule(
    name: str,
    pattern: str,
    *,
    parent: str = "{parent}",
    kind: Kind = Kind.REPLICA,
    resource: str = "",
    longest: int | None = None,
) -> Rule:
    """A rule from regular expressions and a template; `resource` "" is for those of any resource.

    Raises RuleError for an expression that does not compile, and for a template that names no group.
    """
    compiled = _compiled(name, "pattern", pattern)
    guard = _compiled(name, "resource", resource) if resource else None
    for field in _FIELD.findall(parent):
        if field not in compiled.groupindex:
            raise RuleError(name, "parent", f"{pattern!r} has no group (?P<{field}>…)")
    if set(_FIELD.sub("", parent)) & set("{}"):
        raise RuleError(
            name, "parent", f"found {parent!r}, expected text and groups of the pattern as {{name}}"
        )
    return Rule(name, compiled, "" if kind is Kind.WHOLE else parent, kind, guard, longest)


def _compiled(name: str, key: str, pattern: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            # What re may read otherwise one day.
            warnings.simplefilter("error")
            # Digits are 0 to 9, and a line break in an id is a character like another.
            return re.compile(pattern, re.ASCII | re.DOTALL)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise RuleError(name, key, f"{pattern!r} is not a regular expression: {error}") from error


RULES: Final = (
    # GKE's plugin, slashes: a share of a MIG slice, a MIG slice, a share of a whole GPU.
    rule("gke-mig-share", r"(?P<parent>nvidia\d+)/(?P<partition>gi\d+)/vgpu(?P<replica>\d+)"),
    rule("gke-mig", r"(?P<parent>nvidia\d+)/(?P<partition>gi\d+)", kind=Kind.PARTITION),
    rule("gke-share", r"(?P<parent>nvidia\d+)/vgpu(?P<replica>\d+)"),
    # The older MIG UUID names its GPU and its instances: MIG-GPU-<uuid>/<gi>/<ci>, shared or not.
    rule(
        "mig-of-gpu",
        r"MIG-(?P<parent>GPU-[0-9a-fA-F-]+)/(?P<partition>\d+/\d+)(?:::(?P<replica>\d+))?",
        kind=Kind.PARTITION,
    ),
    # The newer one is an id of its own.
    rule("mig", r"MIG-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", parent="", kind=Kind.PARTITION),
    # NVIDIA's plugin and this project's own: id::n is one of n shares of id.
    rule("replica", r"(?P<parent>.+)::(?P<replica>\d+)"),
    # Intel's plugins: -n is the number of a share, but only there: card0-1 may be a name like another.
    rule(
        "intel-gpu-share",
        r"(?P<parent>card\d+)-(?P<replica>\d+)",
        resource=r"gpu\.intel\.com/(i915|xe)(_.+)?",
    ),
    rule(
        "intel-wq-share",
        r"(?P<parent>wq\d+\.\d+)-(?P<replica>\d+)",
        resource=r"(dsa|iaa)\.intel\.com/wq-.+",
    ),
    rule(
        "intel-sgx-share",
        r"(?P<parent>sgx-(?:enclave|provision))-(?P<replica>\d+)",
        resource=r"sgx\.intel\.com/(enclave|provision)",
    ),
)
"""The forms known without configuration, the more particular first."""


_REMEMBERED: Final = 16_384
"""Readings kept: more than the devices of a node, so that each is read once; 5 MiB at the usual length."""
_RESOURCES: Final = 256
"""Resources whose rules are kept: more than a node has."""
_LONGEST: Final = 128
"""Characters of an id that is remembered. The kubelet would pass on megabytes; real ids have 60 at most."""


class _Table:
    """The rules of some resources, in order. Told apart by being another object: hashed in no time."""

    __slots__ = ("rules",)

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules


class Reader:
    """Reads ids by a table of rules, tried in order. What was read is remembered: ids come again."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = tuple(rules)
        self._tables: dict[tuple[bool, ...], _Table] = {}
        self._table = lru_cache(maxsize=_RESOURCES)(self._table_of)
        self._remembered = lru_cache(maxsize=_REMEMBERED)(_read)

    def __call__(self, device: str, resource: str = "") -> Reading:
        """How `device`'s id reads, as one of `resource`."""
        table = self._table(resource) if len(resource) <= _LONGEST else self._table_of(resource)
        return self._remembered(table, device) if len(device) <= _LONGEST else _read(table, device)

    def _table_of(self, resource: str) -> _Table:
        # Resources to which the same rules apply share a table, and with it what is remembered.
        applies = tuple(candidate.is_of(resource) for candidate in self._rules)
        kept = self._tables.get(applies)
        if kept is None:
            rules = tuple(r for r, applied in zip(self._rules, applies, strict=True) if applied)
            kept = self._tables[applies] = _Table(rules)
        return kept


def _read(table: _Table, device: str) -> Reading:
    for candidate in table.rules:
        reading = candidate.read(device)
        if reading is not None:
            return reading
    return WHOLE


read: Final = Reader()
"""Reads ids by the forms that are known without configuration."""
