"""README.md and the indexes of docs/ are complete. test_documents.py reads their commands and links."""

import re
from pathlib import Path

import pytest

from harness.flags_reference import DOCUMENT, document

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for path in sorted((ROOT / "docs").glob("*.md")):
        assert path.name == "README.md" or f"({path.name})" in index, path.name


def test_the_shortest_way_in_is_that_of_docs_install() -> None:
    """Where every configuration and command is tried (tests/deploy/test_docs.py)."""
    install = (ROOT / "docs" / "install.md").read_text()
    section = README.split("\n## Install on a cluster\n")[1].split("\n## ")[0]
    shown = re.findall(r"```(?:console|yaml)\n(.*?)```", section, re.DOTALL)
    assert len(shown) == 3
    for line in "".join(shown).splitlines():
        assert f"{line}\n" in install, line


def test_the_reference_of_flags_is_what_the_commands_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert DOCUMENT.read_text() == document(), "cd tests && python -m harness.flags_reference"


def test_every_word_of_the_glossary_has_one_meaning() -> None:
    rows = re.findall(r"^\| ([a-z -]+) \| \S", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(rows) > 30
    assert rows[1:] == sorted(set(rows[1:]))
