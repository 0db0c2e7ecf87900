"""docs/configuration.md says what the code does: every key, every preset, and examples that work."""

import re
from itertools import pairwise

import pytest
from msgspec import Struct

from harness.markdown import fences
from harness.reference import DOCUMENT, SOURCES, renewed, whole
from plugin.config.load import load
from plugin.config.schema import field_texts, structs
from plugin.discovery.net import Net
from plugin.discovery.pci import Pci
from plugin.discovery.registry import Source
from runtime.config_file import ConfigError

TEXT = DOCUMENT.read_text()
EXAMPLES = [text for kind, text in fences(TEXT) if kind == "yaml"]


def test_what_is_made_from_the_code_is_up_to_date() -> None:
    assert renewed(TEXT) == TEXT, "cd tests && python -m harness.reference"


@pytest.mark.parametrize("struct", structs(), ids=lambda struct: struct.__name__)
def test_every_key_is_described(struct: type[Struct]) -> None:
    assert set(field_texts(struct)) == set(struct.__struct_fields__)
    assert struct is Source or f"<!-- {struct.__name__} -->" in TEXT


@pytest.mark.parametrize("struct", structs(), ids=lambda struct: struct.__name__)
def test_every_key_is_in_an_example(struct: type[Struct]) -> None:
    used = set(re.findall(r"([a-z_]+):", "".join(EXAMPLES)))
    without = {"library", "subsystem_vendor"}  # NVML's place: rarely needed, and described in its row
    selectors = set(Pci.__struct_fields__) | set(Net.__struct_fields__)  # lists of one kind
    selectors |= {"together", "partitions", "serials", "ports", "interfaces"}
    fields = set(struct.__struct_fields__)
    assert fields - selectors - without <= used


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_can_be_loaded(text: str) -> None:
    assert load(whole(text), "docs/configuration.md")


def test_every_source_has_a_section_with_an_example() -> None:
    for key in SOURCES.values():
        section = TEXT.split(f"\n### {key}\n")[1].split("\n### ")[0].split("\n## ")[0]
        assert any(kind == "yaml" and f"- {key}:" in text for kind, text in fences(section)), key


def test_errors_are_what_it_shows() -> None:
    shown = [
        (text, error)
        for (kind, text), (next_kind, error) in pairwise(fences(TEXT))
        if (kind, next_kind) == ("yaml bad", "text")
    ]
    assert shown
    for text, error in shown:
        with pytest.raises(ConfigError) as caught:
            load(text.encode(), "plugin.yaml")
        assert str(caught.value) == error.rstrip("\n")
