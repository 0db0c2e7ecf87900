"""docs/messages.md has every event that somebody should look at, and every reason to end at the start."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "messages.md").read_text()
MODULES = [
    path
    for package in ("daemon", "exporter", "plugin")
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


def calls() -> Iterator[tuple[str, ast.Call]]:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield ast.unparse(node.func), node


def events() -> set[str]:
    """Events of level warn or error, and failures that last."""
    found = [node.args[0] for name, node in calls() if name in {"_log.warn", "_log.error"} and node.args]
    found += [node.args[1] for name, node in calls() if name == "Episode" and len(node.args) > 1]
    return {text for text in map(written, found) if text}


def ends() -> set[str]:
    return {text for name, node in calls() if name == "Fatal" and (text := written(node.args[0]))}


@pytest.mark.parametrize("event", sorted(events()))
def test_every_event_is_explained(event: str) -> None:
    assert f"| `{event}` |" in TEXT


@pytest.mark.parametrize("line", sorted(ends()))
def test_every_reason_to_end_at_the_start_is_explained(line: str) -> None:
    """By its own line, or by that of its flag."""
    flag = line.split(maxsplit=1)[0].rstrip(":")
    assert f"| `{line}` |" in TEXT or f"| `{flag} …: …` |" in TEXT, line


def test_what_is_explained_exists() -> None:
    told = {line.split("`")[1] for line in TEXT.splitlines() if line.startswith("| `")}
    known = events() | ends()
    notes = {text for name, node in calls() if name == "notes.append" and (text := written(node.args[0]))}
    stated = {text for text in told if not text.startswith("--")}
    assert stated <= known | notes
    flags = {text.split()[0] for text in told if text.startswith("--")}
    assert flags <= {text.split()[0].rstrip(":") for text in known}
