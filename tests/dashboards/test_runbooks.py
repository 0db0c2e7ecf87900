"""Each alert has a runbook, each runbook an alert. tests/docs reads their links, commands, and queries."""

import re
from pathlib import Path

import pytest
import yaml

from dashboards.generate import HERE, every_alert
from dashboards.links import RUNBOOKS
from harness.markdown import fences

FOLDER = HERE / "runbooks"
BOOKS = sorted(FOLDER.glob("*"))
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]

book = pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)


def test_each_alert_has_one_and_each_is_of_an_alert() -> None:
    assert {path.name for path in BOOKS} == {f"{alert.name}.md" for alert in every_alert()}
    for group in yaml.safe_load((HERE / "rules/alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS}/{rule['alert']}.md"
    assert RUNBOOKS.endswith("/dashboards/runbooks")


@book
def test_it_has_every_heading_and_something_below_each(path: Path) -> None:
    text = path.read_text()
    assert text.startswith(f"# {path.stem}\n")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    assert parts[1::2] == HEADINGS
    assert all(len(part.split()) >= 8 for part in parts[2::2])


@book
def test_diagnosis_has_commands_and_a_query(path: Path) -> None:
    diagnosis = re.split(r"^## (.+)$", path.read_text(), flags=re.MULTILINE)[6]
    kinds = {kind for kind, _ in fences(diagnosis)}
    assert kinds == {"console", "promql"}
