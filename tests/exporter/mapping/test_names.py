"""exporter.mapping.names: one rule for names on pages, in the API, in commands, and in history."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.mapping.names import has_part, is_resource, resources_named, same
from runtime.text import visible

NAMES = ["example.com/gpu", "nvidia.com/gpu", "nvidia.com/gpu.shared", "gpu"]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("nvidia.com/gpu", ["nvidia.com/gpu"]),
        ("gpu", ["gpu"]),
        ("gpu.shared", ["nvidia.com/gpu.shared"]),
        ("GPU", []),
        ("gp", []),
        ("com/gpu", []),
        ("", []),
    ],
)
def test_a_resource_is_named_whole_or_by_the_part_after_its_slash(typed: str, found: list[str]) -> None:
    assert resources_named(NAMES, typed) == found
    assert found == [name for name in NAMES if is_resource(name, typed)][-1:]


def test_a_part_after_the_slash_names_every_resource_that_has_it() -> None:
    assert resources_named(NAMES[:3], "gpu") == NAMES[:2]


@pytest.mark.parametrize(
    ("raw", "part", "found"),
    [
        ("GPU-7C1F", "7c1f", True),
        ("GPU-7C1F", "GPU-7C1F", True),
        ("GPU-7C1F", "7c1g", False),
        ("GPU-7C1F", "%", False),
        ("GPU-7C1F", "_", False),
        ("a%b", "%", True),
        ("bell\x07", "\\x07", True),
        ("STRASSE", "straße", True),
    ],
)
def test_a_part_is_compared_as_it_is_shown_without_case(raw: str, part: str, found: bool) -> None:
    assert has_part(raw, part) == found


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_every_name_has_its_parts(before: str, part: str, after: str) -> None:
    whole = f"{before}{part}{after}"
    assert has_part(whole, part)
    assert has_part(whole, visible(part))
    assert same(whole, visible(whole))
