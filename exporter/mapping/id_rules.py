r"""Rules of device ids from a YAML file (--id-rules), tried before the built-in ones:

```yaml
version: 1
rules:
  - name: acme-share
    resource: acme\.example/accelerator.*           # optional: whose ids have this form
    pattern: (?P<board>acc\d+)-slot(?P<replica>\d+)
    parent: "{board}"                                # optional: the group called parent
    kind: replica                                    # optional: replica, partition or whole
```

The operator writes the expressions, but any plugin chooses the ids: RE2 matches them (runtime/patterns.py).
Ids that are longer than its limit have no such form.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from exporter.mapping.device_ids import BUILT_IN_RULES, DeviceKind, IdRule, IdRuleError, rule
from runtime.config_file import Document, convert, parse
from runtime.patterns import compiled
from runtime.text import quoted


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    pattern: Annotated[str, Meta(min_length=1, max_length=1024)]
    resource: Annotated[str, Meta(min_length=1, max_length=1024)] | UnsetType = UNSET
    parent: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
    kind: Literal["replica", "partition", "whole"] = "replica"


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    rules: Annotated[list[_Entry], Meta(max_length=100)]


def load_rules(content: bytes, source: str) -> tuple[IdRule, ...]:
    """Read the rules of a YAML file; `source` names it in messages.

    Raises ConfigError with the line, what was found and what was expected.
    """
    document = parse(content, source)
    known = {built_in.name for built_in in BUILT_IN_RULES}
    rules: list[IdRule] = []
    for index, entry in enumerate(convert(document, _File).rules):
        found = _rule(document, index, entry)
        if found.name in known:
            why = "a rule above or a built-in one has this name"
            raise document.error(("rules", index, "name"), f"found {quoted(found.name)}: {why}")
        known.add(found.name)
        rules.append(found)
    return tuple(rules)


def _rule(document: Document, index: int, entry: _Entry) -> IdRule:
    kind = DeviceKind(entry.kind)
    if kind is DeviceKind.WHOLE and entry.parent is not UNSET:
        problem = f"found {quoted(entry.parent)}, but a whole device has no parent: leave it out"
        raise document.error(("rules", index, "parent"), problem)
    default = "" if kind is DeviceKind.WHOLE else "{parent}"
    resource = "" if entry.resource is UNSET else entry.resource
    try:
        return rule(
            entry.name,
            entry.pattern,
            parent=default if entry.parent is UNSET else entry.parent,
            kind=kind,
            resource=resource,
            compiler=compiled,
        )
    except IdRuleError as error:
        raise document.error(("rules", index, error.key), error.problem) from None
