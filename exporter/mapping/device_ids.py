"""Device ids: the physical device behind a replica or a slice.

Plugins encode the relation in the id, each in its own form. The forms are a table of rules, tried in order:
the first one for the device's resource that matches the whole id applies. An id without a rule is a whole
device and has no parent. The rules of a file (id_rules.py) are tried before the built-in ones.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from runtime.patterns import Pattern
from runtime.text import quoted


class DeviceKind(StrEnum):
    """The relation of a device to its parent."""

    WHOLE = "whole"
    """A device by itself."""
    REPLICA = "replica"
    """One of several equal shares of a device."""
    PARTITION = "partition"
    """A part of a device with resources of its own, such as a MIG instance."""


class IdReading(Struct, frozen=True):
    """The parts of an id: the `rule`'s name, the `parent` ("" for a whole device, and for a partition whose
    id does not contain it), the number of the `replica` ("" if none), the `kind`, and the name of the
    `partition` ("" if none).
    """

    rule: str
    parent: str = ""
    replica: str = ""
    kind: DeviceKind = DeviceKind.WHOLE
    partition: str = ""


WHOLE: Final = IdReading("whole")


class IdRuleError(ValueError):
    """An invalid rule. `key` is the invalid part: pattern, parent or resource."""

    def __init__(self, name: str, key: str, problem: str) -> None:
        super().__init__(f"id rule {name}: {problem}")
        self.key = key
        self.problem = problem


class IdRule(Struct, frozen=True):
    """One form of id.

    `pattern` matches the whole id; its group `replica` is a share's number and `partition` a part's name.
    `parent` is a template of the parent's id in which {group} is replaced. `resource`, if given, matches the
    whole name of the resources with this form. An id with the group `replica` is a REPLICA, whatever `kind`
    is.
    """

    name: str
    pattern: Pattern
    parent: str
    kind: DeviceKind
    resource: Pattern | None = None

    def is_of(self, resource: str) -> bool:
        """Whether the rule is for `resource`."""
        return self.resource is None or self.resource.fullmatch(resource) is not None

    def read(self, device: str) -> IdReading | None:
        """The parts of the id, None if it does not match."""
        match = self.pattern.fullmatch(device)
        if match is None:
            return None
        groups: Mapping[str, str | None] = match.groupdict()
        replica = groups.get("replica") or ""
        return IdReading(
            self.name,
            _FIELD.sub(lambda field: groups[field[1]] or "", self.parent),
            replica,
            DeviceKind.REPLICA if replica else self.kind,
            groups.get("partition") or "",
        )


_FIELD: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)


def _trusted(pattern: str) -> Pattern:
    # Digits are 0 to 9, and a line break is a character like any other.
    return re.compile(pattern, re.ASCII | re.DOTALL)


def rule(
    name: str,
    pattern: str,
    *,
    parent: str = "{parent}",
    kind: DeviceKind = DeviceKind.REPLICA,
    resource: str = "",
    compiler: Callable[[str], Pattern] = _trusted,
) -> IdRule:
    """Compile a rule; `resource` "" is any resource. `compiler` is that of RE2 for the expressions of users.

    Raises IdRuleError for an expression that does not compile and for a template with an unknown group.
    """
    try:
        expression = compiler(pattern)
    except ValueError as error:
        raise IdRuleError(name, "pattern", f"found {quoted(pattern)}, {error}") from None
    try:
        guard = compiler(resource) if resource else None
    except ValueError as error:
        raise IdRuleError(name, "resource", f"found {quoted(resource)}, {error}") from None
    for field in _FIELD.findall(parent):
        if field not in expression.groupindex:
            raise IdRuleError(name, "parent", f"{pattern!r} has no group (?P<{field}>…)")
    if set(_FIELD.sub("", parent)) & set("{}"):
        raise IdRuleError(
            name, "parent", f"found {parent!r}, expected text and groups of the pattern as {{name}}"
        )
    return IdRule(name, expression, "" if kind is DeviceKind.WHOLE else parent, kind, guard)


BUILT_IN_RULES: Final = (
    # GKE's plugin, slashes: a share of a MIG slice, a MIG slice, a share of a whole GPU.
    rule("gke-mig-share", r"(?P<parent>nvidia\d+)/(?P<partition>gi\d+)/vgpu(?P<replica>\d+)"),
    rule("gke-mig", r"(?P<parent>nvidia\d+)/(?P<partition>gi\d+)", kind=DeviceKind.PARTITION),
    rule("gke-share", r"(?P<parent>nvidia\d+)/vgpu(?P<replica>\d+)"),
    # The older MIG UUID names its GPU and its instances: MIG-GPU-<uuid>/<gi>/<ci>, shared or not.
    rule(
        "mig-of-gpu",
        r"MIG-(?P<parent>GPU-[0-9a-fA-F-]+)/(?P<partition>\d+/\d+)(?:::(?P<replica>\d+))?",
        kind=DeviceKind.PARTITION,
    ),
    # The newer one does not.
    rule(
        "mig",
        r"MIG-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        parent="",
        kind=DeviceKind.PARTITION,
    ),
    # NVIDIA's plugin and devicelens: id::n is a share of id.
    rule("replica", r"(?P<parent>.+)::(?P<replica>\d+)"),
    # Intel's plugins: -n is the number of a share, for these resources only.
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
"""The built-in rules, the more specific first."""


_REMEMBERED: Final = 16_384
"""Cached readings: more than the devices of a node; 5 MiB at the usual length."""
_LONGEST: Final = 128
"""Characters of a cached id or resource. The kubelet accepts megabytes; real ids have at most 60."""


class IdReader:
    """Reads ids by rules, of which the first that applies wins, with a cache."""

    def __init__(self, rules: Sequence[IdRule] = BUILT_IN_RULES) -> None:
        self._rules = tuple(rules)
        self._remembered = lru_cache(maxsize=_REMEMBERED)(self._read)

    def __call__(self, device: str, resource: str = "") -> IdReading:
        """Read the id `device` of `resource`."""
        usual = len(device) <= _LONGEST and len(resource) <= _LONGEST
        return self._remembered(device, resource) if usual else self._read(device, resource)

    def _read(self, device: str, resource: str) -> IdReading:
        for candidate in self._rules:
            reading = candidate.read(device) if candidate.is_of(resource) else None
            if reading is not None:
                return reading
        return WHOLE


read_id: Final = IdReader()
"""Reads ids by the built-in rules."""
