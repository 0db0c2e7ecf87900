"""docs/messages.md has every event of level warn or error, and every reason to end at the start."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from exporter.mapping.model import Anomaly
from exporter.web.pages.parts import findings
from plugin.devices.allocation import Refusal

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "messages.md").read_text()
LOGS = TEXT.partition("\n## What is wrong\n")[0]
MODULES = [
    path
    for package in ("exporter", "kubelet", "plugin", "runtime")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "pb" not in path.relative_to(ROOT).parts
]


def written(node: ast.expr) -> str:
    """A text as it is written in the code, with … for what varies; "" where all of it does."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            text = "".join(written(value) or "…" for value in values)
            return text if text.strip("…: ") else ""
        case ast.BinOp(left=left, right=right):
            return written(left) + written(right)
        case _:
            return ""


@cache
def nodes() -> tuple[ast.AST, ...]:
    """All of the code."""
    return tuple(node for path in MODULES for node in ast.walk(ast.parse(path.read_text())))


@cache
def calls() -> tuple[tuple[str, ast.Call], ...]:
    """What is called, as far as it has a name, and the call."""
    return tuple(
        (ast.unparse(node.func), node)
        for node in nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    )


def events() -> set[str]:
    """Events of level warn or error, and failures that last."""
    found = [node.args[0] for name, node in calls() if name in {"_log.warn", "_log.error"} and node.args]
    found += [node.args[1] for name, node in calls() if name == "Episode" and len(node.args) > 1]
    return {text for text in map(written, found) if text}


def ends() -> set[str]:
    return {text for name, node in calls() if name == "Fatal" and (text := written(node.args[0]))}


def is_explained(line: str) -> bool:
    return f"| `{line}` |" in TEXT


def test_every_event_is_explained() -> None:
    assert [event for event in sorted(events()) if not is_explained(event)] == []


def test_every_reason_to_end_at_the_start_is_explained() -> None:
    """By its own line, or by that of its flag."""
    flags = {line: f"{line.split(maxsplit=1)[0].rstrip(':')} …: …" for line in ends()}
    assert [line for line, flag in flags.items() if not (is_explained(line) or is_explained(flag))] == []


def test_what_is_explained_exists() -> None:
    documented = {line.split("`")[1] for line in LOGS.splitlines() if line.startswith("| `")}
    known = events() | ends()
    notes = {text for name, node in calls() if name == "notes.append" and (text := written(node.args[0]))}
    stated = {text for text in documented if not text.startswith("--")}
    assert stated <= known | notes
    flags = {text.split()[0] for text in documented if text.startswith("--")}
    assert flags <= {text.split()[0].rstrip(":") for text in known}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@cache
def texts() -> frozenset[str]:
    """Every text of the code, as it is written there."""
    return frozenset(text for node in nodes() if isinstance(node, ast.expr) and (text := written(node)))


def is_said(words: str) -> bool:
    """Whether some text of the code is these words, or contains their parts."""
    parts = [part for part in re.split("…", words) if part.strip(" :()")]
    return any(all(part in text for part in parts) for text in texts())


def first_text(call: ast.Call) -> str:
    """The first text that a call is given, "" where it is given none."""
    found = (node.value for node in ast.walk(call) if isinstance(node, ast.Constant))
    return next((text for text in found if isinstance(text, str)), "")


def test_every_kind_of_anomaly_is_explained_by_the_words_of_the_page() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows("What is wrong")}
    made = {first_text(call) for name, call in calls() if name == "Anomaly"}
    # The last is read back from Prometheus' labels.
    assert made - {"resource"} == documented.keys()
    for kind, shown in documented.items():
        if kind == "stale":  # the head of the page shows it
            assert is_said(shown)
        else:
            (finding,) = findings([Anomaly(kind, "a.example/b", device="c")], 0.0).shown
            assert finding.kind == shown


@pytest.mark.parametrize("heading", ["In a pod's status", "Why a device is unhealthy", "Not ready"])
def test_what_is_said_elsewhere_than_in_logs_is_as_it_is_said(heading: str) -> None:
    column = 0 if heading.startswith("Why") else 1
    said = [words for row in rows(heading) for words in re.findall(r"`([^`]+)`", row[column])]
    assert len(said) > 4
    for words in said:
        assert all(is_said(part) for part in words.split("; ")), words


def test_every_code_of_a_refusal_is_documented() -> None:
    section = TEXT.split("\n## In a pod's status\n")[1].split("\n## ")[0]
    assert {code.name for code in Refusal} == set(re.findall(r"`([A-Z]+_?[A-Z]+)`", section))
