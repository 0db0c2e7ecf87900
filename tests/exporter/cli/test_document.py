"""docs/command-line.md: every flag, command and message in it exists."""

import re
from pathlib import Path

import click
import pytest

from devicelens import COMMANDS, main

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "command-line.md").read_text()


ASKING = ("who", "anomalies", "history", "explain")


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


FLAGS = {
    flag
    for name in ASKING
    for option in command(name).params
    for flag in option.opts
    if flag.startswith("--")
}
UNTOLD = {"--help", "--limit", "--output", "--step"}
ELSEWHERE = {"--history.path"}


def test_every_flag_is_documented_and_no_other() -> None:
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z.-]+", TEXT))
    assert told - ELSEWHERE - {"--help"} == FLAGS - UNTOLD


def test_every_command_shown_can_be_read() -> None:
    shown = re.findall(r"^\$ (?:sudo )?devicelens (\w+)(.*)$", TEXT, re.MULTILINE)
    assert len(shown) > 10
    for name, rest in shown:
        assert name in COMMANDS
        if name == "completion":
            continue
        words = [word.strip("'") for word in rest.partition("#")[0].split()]
        with command(name).make_context(name, words, resilient_parsing=False) as context:
            assert context.params


@pytest.mark.parametrize("variable", sorted(set(re.findall(r"DEVICELENS_[A-Z_]+", TEXT))))
def test_every_variable_is_one(variable: str) -> None:
    known = {
        name
        for command_name in ASKING
        for option in command(command_name).params
        for name in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or [])
    }
    assert variable in known


def test_every_documented_message_is_in_the_code() -> None:
    sources = [
        *(ROOT / "exporter" / "cli").rglob("*.py"),
        ROOT / "kubelet" / "podresources.py",
        ROOT / "exporter" / "web" / "site.py",
        ROOT / "runtime" / "http" / "client.py",
    ]
    code = "\n".join(path.read_text() for path in sources)
    section = TEXT.split("## When no answer comes")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 10
    parts = {part for message in messages for part in re.split(r", (?=or )", message)}
    assert [part for part in sorted(parts) if part not in code] == []
