"""docs/metrics.md says what the code does, and what running processes serve."""

import re

import pytest

from harness import owners
from harness.metrics_reference import DOCUMENT, Family, document, families
from harness.simulated import SimulatedNode
from harness.stack import Stack
from harness.waiting import until_equal

ROW = re.compile(r"^\| `(devicelens_\w+)` \|", re.MULTILINE)


def test_it_is_up_to_date() -> None:
    assert document() == DOCUMENT.read_text(), "cd tests && python -m harness.metrics_reference"


def test_a_family_is_read_as_it_is_exposed() -> None:
    text = (
        "# HELP x_seconds_total How long, in seconds. [ALPHA]\n# TYPE x_seconds_total counter\n"
        'x_seconds_total{pod="p",zone="z",node="n",label_team="t"} 1\n'
    )
    (family,) = families(text)
    assert family == Family(
        "x_seconds_total", "counter", ("node", "pod", "label_…", "zone"), "How long, in seconds.", "ALPHA"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# HELP x What. [STABLE]\n# TYPE x gauge\n", "the example has no sample of x: add one"),
        ("# HELP x What.\n# TYPE x gauge\nx 1\n", "x: its help does not end with its stability"),
    ],
)
def test_a_family_that_cannot_be_described_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        families(text)


async def test_what_running_processes_serve_is_in_it_and_nothing_else() -> None:
    """Also what a part of the process registers that the example does not know of."""
    documented = set(ROW.findall(DOCUMENT.read_text()))
    async with SimulatedNode() as node, Stack(node) as stack:
        stack.add_devices("cherry")
        await stack.allocatable_is(1)

        async def served() -> set[str]:
            pages = [await owners.scrape(url) for url in (stack.url, f"unix:{stack.plugin_socket}")]
            return {name for page in pages for name in re.findall(r"^# TYPE (\S+)", page.text, re.MULTILINE)}

        await until_equal("the families of both processes", served, documented)
