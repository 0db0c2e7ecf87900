"""docs/device-ids.md says how ids are read."""

import re
from pathlib import Path

import pytest

from exporter.mapping.device_ids import BUILT_IN_RULES, DeviceKind, IdReader
from exporter.mapping.id_rules import load_rules
from runtime.patterns import MAX_TEXT

TEXT = (Path(__file__).parents[2] / "docs" / "device-ids.md").read_text()
ROWS = [
    tuple(cell.strip(" `") for cell in line.strip("|").split("|"))
    for line in TEXT.splitlines()
    if line.startswith("| `")
]


def test_every_form_has_a_row_in_the_order_in_which_they_are_tried() -> None:
    assert [row[0] for row in ROWS] == [rule.name for rule in BUILT_IN_RULES]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_examples_are_read_as_it_says(row: tuple[str, ...]) -> None:
    _, resource, device, parent, kind = row
    reading = IdReader()(device, "example.com/x" if resource == "any" else resource)
    assert (reading.rule, reading.parent, reading.kind) == (row[0], parent, DeviceKind(kind))


def test_the_file_shown_can_be_used() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    reading = IdReader([*load_rules(shown.encode(), "docs/device-ids.md"), *BUILT_IN_RULES])(
        "acc3-slot1", "acme.example/accelerator"
    )
    assert (reading.parent, reading.kind) == ("acc3", DeviceKind.REPLICA)


def test_the_limit_is_that_of_the_code() -> None:
    assert f"more than {MAX_TEXT} characters" in TEXT
