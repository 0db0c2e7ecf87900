"""What a rule is: recording rules, alerts, groups of them, and how their files are written."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal

import yaml


def promql(text: str) -> str:
    """A query as it is written: without the indentation of the code round it."""
    return textwrap.dedent(text).strip()


class Severity(StrEnum):
    """How an alert is met. CRITICAL: pods are hit, or nobody can tell; somebody is woken. WARNING: it will
    hit, or is hidden; in working hours. INFO: for whoever plans.
    """

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Record:
    """A recording rule, named level:metric:operation. `says`: what it is, for the reference."""

    name: str
    expr: str
    says: str

    def document(self) -> dict[str, Any]:
        """As Prometheus reads it."""
        return {"record": self.name, "expr": promql(self.expr)}


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. `lasts`: for how long it must hold before it fires; `keep`: how long it goes on firing, for
    exporters that restart; `dashboard`: the link's path and query, a template like `description`.
    """

    name: str
    severity: Severity
    expr: str
    summary: str
    description: str
    dashboard: str
    lasts: str = "0s"
    keep: str = ""

    def document(self, *, runbooks: str, grafana: str) -> dict[str, Any]:
        """As Prometheus reads it."""
        rule: dict[str, Any] = {"alert": self.name, "expr": promql(self.expr)}
        if self.lasts != "0s":
            rule["for"] = self.lasts
        if self.keep:
            rule["keep_firing_for"] = self.keep
        rule["labels"] = {"severity": str(self.severity)}
        rule["annotations"] = {
            "summary": self.summary,
            "description": self.description,
            "runbook_url": f"{runbooks.rstrip('/')}/{self.name}.md",
            "dashboard_url": f"{grafana.rstrip('/')}{self.dashboard}",
        }
        return rule


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other, each seeing what those before it have made."""

    name: str
    rules: Sequence[Record | Alert] = field(default_factory=tuple[Record | Alert, ...])

    @property
    def alerts(self) -> list[Alert]:
        """Its alerts."""
        return [rule for rule in self.rules if isinstance(rule, Alert)]

    @property
    def records(self) -> list[Record]:
        """Its recording rules."""
        return [rule for rule in self.rules if isinstance(rule, Record)]


class _Dumper(yaml.SafeDumper):
    """Writes queries of several lines as they are read."""

    def increase_indent(self, flow: bool = False, indentless: Literal[False] = False) -> None:  # type: ignore[override] # noqa: ARG002, FBT001, FBT002 -- yaml's own signature
        super().increase_indent(flow, False)  # noqa: FBT003 -- likewise


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)

_HEAD: Final = "# Made by `make dashboards`; edit dashboards/*.py instead.\n"


def rule_file(groups: Sequence[Group], *, runbooks: str, grafana: str) -> str:
    """The YAML of a rule file."""
    document = {
        "groups": [
            {
                "name": group.name,
                "rules": [
                    rule.document()
                    if isinstance(rule, Record)
                    else rule.document(runbooks=runbooks, grafana=grafana)
                    for rule in group.rules
                ],
            }
            for group in groups
        ]
    }
    # The Dumper is a SafeDumper.
    return _HEAD + yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
