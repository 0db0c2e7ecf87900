"""The parts of docs/dashboards.md that are made: the tables of alerts and of recording rules."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from dashboards.model import Alert, Group

_BLOCK: Final = re.compile(r"<!-- (?P<name>\w+) -->\n.*?<!-- /(?P=name) -->", re.DOTALL)
_TEMPLATE: Final = re.compile(
    r"\{\{ with \$labels\.(?P<label>\w+) \}\}(?P<text>.*?)\{\{ end \}\}|\{\{ \$labels\.(?P<plain>\w+) \}\}"
)


def renewed(document: str, rules: Sequence[Group], alerts: Iterable[Alert]) -> str:
    """The document with its made parts as they should be. Raises KeyError for a part that nothing makes."""
    parts = {"alerts": _alerts(alerts), "rules": _rules(rules)}
    return _BLOCK.sub(
        lambda block: f"<!-- {block['name']} -->\n{parts[block['name']]}\n<!-- /{block['name']} -->", document
    )


def _alerts(alerts: Iterable[Alert]) -> str:
    rows = ["| alert | severity | after | |", "|---|---|---|---|"]
    rows += [
        f"| [`{alert.name}`](../dashboards/runbooks/{alert.name}.md) | {alert.severity} | "
        f"{'at once' if alert.lasts == '0s' else alert.lasts} | {in_words(alert.summary)} |"
        for alert in alerts
    ]
    return "\n".join(rows)


def _rules(groups: Sequence[Group]) -> str:
    rows = ["| series | |", "|---|---|"]
    rows += [f"| `{rule.name}` | {rule.says} |" for group in groups for rule in group.records]
    return "\n".join(rows)


def in_words(template: str) -> str:
    """An annotation as a person reads it who has no alert before them: *namespace*/*pod*…"""

    def word(match: re.Match[str]) -> str:
        if match["plain"]:
            return f"*{match['plain']}*"
        if match["label"] == "node":
            return "node *node*"
        return ""

    return _TEMPLATE.sub(word, template)
