"""`make dashboards`: writes the dashboards, the rules, and the tables of docs/dashboards.md."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from dashboards import alerts, recording, utilisation
from dashboards.device import device
from dashboards.fleet import fleet
from dashboards.links import PAGE_ADDRESS, RUNBOOKS, Addresses
from dashboards.node import node
from dashboards.rulefile import Alert, prometheus_rule, rule_file
from dashboards.workload import workload

HERE: Final = Path(__file__).parent
DOCUMENT: Final = HERE.parent / "docs/dashboards.md"
PROMETHEUS_RULE: Final = HERE.parent / "deploy/components/prometheus-operator/rules.yaml"
RULES: Final = (*recording.GROUPS, *utilisation.GROUPS)

_BLOCK: Final = re.compile(r"<!-- (?P<name>\w+) -->\n.*?<!-- /(?P=name) -->", re.DOTALL)
_TEMPLATE: Final = re.compile(
    r"\{\{ with \$labels\.(?P<label>\w+) \}\}.*?\{\{ end \}\}|\{\{ \$labels\.(?P<plain>\w+) \}\}"
)


def every_alert() -> list[Alert]:
    """All alerts, in the order of their file."""
    return [alert for group in alerts.GROUPS for alert in group.alerts]


def boards(addresses: Addresses) -> Mapping[str, dict[str, Any]]:
    """The dashboards as Grafana reads them, by uid."""
    documents = [make(addresses) for make in (fleet, node, workload, device)]
    return {document["uid"]: document for document in documents}


def generated(addresses: Addresses) -> Mapping[Path, str]:
    """The text of every generated file, by path."""
    where = {"runbooks": addresses.runbooks, "grafana": addresses.grafana}
    files = {
        HERE / "rules/recording.yaml": rule_file(RULES, **where),
        HERE / "rules/alerts.yaml": rule_file(alerts.GROUPS, **where),
        PROMETHEUS_RULE: prometheus_rule((*alerts.GROUPS, *RULES), **where),
        DOCUMENT: _with_tables(DOCUMENT.read_text()),
    }
    for uid, document in boards(addresses).items():
        name = uid.removeprefix("devicelens-")
        files[HERE / f"grafana/{name}.json"] = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return files


def _with_tables(document: str) -> str:
    """The document with its generated tables replaced. Raises KeyError for a table of another name."""
    tables = {"alerts": _alert_table(), "rules": _rule_table()}
    return _BLOCK.sub(
        lambda block: f"<!-- {block['name']} -->\n{tables[block['name']]}\n<!-- /{block['name']} -->",
        document,
    )


def _alert_table() -> str:
    rows = ["| alert | severity | after | summary |", "|---|---|---|---|"]
    rows += [
        f"| [`{alert.name}`](../dashboards/runbooks/{alert.name}.md) | {alert.severity} | "
        f"{'at once' if alert.lasts == '0s' else alert.lasts} | {_readable(alert.summary)} |"
        for alert in every_alert()
    ]
    return "\n".join(rows)


def _rule_table() -> str:
    rows = ["| series | meaning |", "|---|---|"]
    rows += [
        f"| `{rule.name}` | {rule.meaning} |"
        for group in RULES
        for rule in group.records
        if not rule.internal
    ]
    return "\n".join(rows)


def _readable(template: str) -> str:
    """An annotation with its labels in italics: *namespace*/*pod*."""

    def word(match: re.Match[str]) -> str:
        if match["plain"]:
            return f"*{match['plain']}*"
        return "node *node*" if match["label"] == "node" else ""

    return _TEMPLATE.sub(word, template)


@click.command()
@click.option("--runbooks", default=RUNBOOKS, show_default=True, help="The address of the alerts' runbooks.")
@click.option(
    "--grafana", default="", help="Grafana's address, for the links in alerts; without it links are relative."
)
@click.option(
    "--page",
    default=PAGE_ADDRESS,
    show_default=True,
    help="A node's status page, a template with {instance} or {node}.",
)
def main(runbooks: str, grafana: str, page: str) -> None:
    """Write the dashboards, the rules, the PrometheusRule in deploy/, and the tables of docs/dashboards.md."""
    try:
        files = generated(Addresses(runbooks, grafana, page))
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    for path, text in files.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
