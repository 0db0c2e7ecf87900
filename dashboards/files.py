"""Which file is made of what."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dashboards import alerts, joins, process_alerts, recording
from dashboards.device import device
from dashboards.fleet.dashboard import fleet
from dashboards.model import Alert, rule_file
from dashboards.node.dashboard import node
from dashboards.reference import renewed
from dashboards.settings import Settings
from dashboards.workload import workload

HERE: Final = Path(__file__).parent
DOCUMENT: Final = HERE.parent / "docs/dashboards.md"
RULES: Final = (*recording.GROUPS, *joins.GROUPS)
ALERTS: Final = (*alerts.GROUPS, *process_alerts.GROUPS)


def every_alert() -> list[Alert]:
    """All alerts, in the order of their file."""
    return [alert for group in ALERTS for alert in group.alerts]


def boards(settings: Settings) -> Mapping[str, dict[str, Any]]:
    """The dashboards' documents, by their uid."""
    made = [make(settings) for make in (fleet, node, workload, device)]
    return {document["uid"]: document for document in made}


def made(settings: Settings) -> Mapping[Path, str]:
    """Every file's text."""
    where = {"runbooks": settings.runbooks, "grafana": settings.grafana}
    files = {
        HERE / "rules/recording.yaml": rule_file(RULES, **where),
        HERE / "rules/alerts.yaml": rule_file(ALERTS, **where),
        DOCUMENT: renewed(DOCUMENT.read_text(), RULES, every_alert()),
    }
    for uid, document in boards(settings).items():
        name = uid.removeprefix("devicelens-")
        files[HERE / f"grafana/{name}.json"] = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return files
