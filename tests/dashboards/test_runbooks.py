"""Each alert has a runbook, each runbook an alert, and what they tell to type can be typed."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from dashboards.generate import HERE, every_alert
from dashboards.links import RUNBOOKS
from devicelens import main as front_door
from harness.prometheus import Prometheus

FOLDER = HERE / "runbooks"
BOOKS = sorted(FOLDER.glob("*"))
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

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


def _commands(text: str) -> list[str]:
    return [
        line.removeprefix("$ ")
        for kind, block in FENCE.findall(text)
        if kind == "console"
        for line in block.splitlines()
    ]


@book
def test_diagnosis_has_commands_and_a_query(path: Path) -> None:
    diagnosis = re.split(r"^## (.+)$", path.read_text(), flags=re.MULTILINE)[6]
    kinds = {kind for kind, _ in FENCE.findall(diagnosis)}
    assert kinds == {"console", "promql"}


@book
def test_its_commands_are_commands(path: Path) -> None:
    for command in _commands(path.read_text()):
        program, *arguments = shlex.split(command)
        assert program in {"kubectl", "devicelens"}, command
        if program == "devicelens":
            name, *rest = arguments
            found = front_door.get_command(click.Context(front_door), name)
            assert found is not None, command
            # Parses; runs nothing.
            found.make_context(name, [_existing(each) for each in rest])


def _existing(argument: str) -> str:
    """A file that is there, where a command wants one."""
    return str(Path(__file__)) if argument.endswith(".yaml") else argument


@book
def test_its_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


async def test_every_query_of_every_runbook_parses(tmp_path: Path) -> None:
    async with Prometheus(tmp_path, "global: {scrape_interval: 1h}\n") as prometheus:
        for path in BOOKS:
            for kind, query in FENCE.findall(path.read_text()):
                if kind == "promql":
                    assert await prometheus.query(query) == []
