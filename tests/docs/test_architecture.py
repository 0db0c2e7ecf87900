"""docs/architecture.md names modules, functions, and limits that exist."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
WALKS = {
    section.partition("\n")[0]: re.findall(r"\| `([\w/]+)\.py` \| `([\w.]+)` \|$", section, re.MULTILINE)
    for section in TEXT.split("\n## Four walks\n")[1].split("\n## ")[0].split("\n### ")[1:]
}
LONGEST = {
    "A List answer to `/metrics`": 8,
    "An Allocate request": 8,
    "A configuration text to a plan": 7,
    "A page view": 7,
}
LIMITS = re.findall(r"^\| [^|]+ \| ([^|]+) \| `([\w/]+)\.py` `(\w+)` \|$", TEXT, re.MULTILINE)
UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "KiB": 1 << 10, "MiB": 1 << 20}


def named(module: str, name: str) -> object:
    found: object = import_module(module.replace("/", "."))
    for part in name.split("."):
        found = getattr(found, part)
    return found


def test_the_four_walks_are_short_and_visit_no_module_twice() -> None:
    assert WALKS.keys() == LONGEST.keys()
    for title, steps in WALKS.items():
        modules = [module for module, _ in steps]
        assert 5 < len(modules) <= LONGEST[title]
        assert len(set(modules)) == len(modules)


@pytest.mark.parametrize("step", [step for steps in WALKS.values() for step in steps], ids="::".join)
def test_each_step_exists(step: tuple[str, str]) -> None:
    assert callable(named(*step))


@pytest.mark.parametrize(("value", "module", "name"), LIMITS)
def test_each_limit_is_that_of_the_code(value: str, module: str, name: str) -> None:
    number, _, unit = value.strip().partition(" ")
    assert named(module, name) == float(number.replace("_", "")) * UNITS.get(unit, 1.0)


def test_there_is_a_table_of_limits() -> None:
    assert len(LIMITS) > 20
