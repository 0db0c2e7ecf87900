import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin.discovery import selectors
from plugin.names import Check, natural

IDS = {"8086": "8086", "0x8086": "8086", "0X15B3": "15b3", "1": "0001"}
CLASSES = {"02": "02", "0x0200": "0200", "0x030200": "030200", "0B": "0b"}
ADDRESSES = ("3b:00.0", "0000:3B:00.0", "3b:*", "0000:3b:0?.[01]", "*", "10000:01:00.7", "*.0")
BAD = [
    *((selectors.hex_problem, text) for text in ("0x10de\n", "", "0x", "18086", "80g6", "٨٠٨٦", "-1")),
    *((selectors.class_problem, text) for text in ("2", "020", "xx")),
    *((selectors.address_problem, text) for text in ("", "3b", "3b:00", "3b:00.8", "0000:3b:00.0/x", "eth0")),
    (selectors.address_problem, "0" * 300 + "*"),
    *((selectors.function_name_problem, f"eth0#{text}") for text in ("", "a", "3-1", "1-", "-1", "1,,2")),
    *((selectors.function_name_problem, text) for text in ("eth0#99999", "#1")),
]


def test_ids_classes_and_addresses_in_all_notations() -> None:
    for text, expected in IDS.items():
        assert (selectors.hex_id(text), selectors.hex_problem(text)) == (expected, None)
    for text, expected in CLASSES.items():
        assert (selectors.class_prefix(text), selectors.class_problem(text)) == (expected, None)
    assert [text for text in ADDRESSES if selectors.address_problem(text)] == []


@pytest.mark.parametrize(("check", "text"), BAD)
def test_a_selector_that_cannot_match_is_refused(check: Check, text: str) -> None:
    assert check(text) is not None


def test_an_address_without_a_domain_is_in_the_first() -> None:
    assert selectors.address_pattern("3B:00.0") == "0000:3b:00.0"
    for text in ("0001:3b:00.0", "0001:*", "*:00.0", "*", "????:3b:*", "*.1"):
        assert selectors.address_pattern(text) == text
    assert selectors.address_pattern("[34]b:00.*") == "0000:[34]b:00.*"
    assert selectors.any_matches([selectors.address_pattern("3b:*")], ["0000:3b:00.1"])
    assert not selectors.any_matches([selectors.address_pattern("3b:*")], ["0001:3b:00.1"])


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("eth0", [None, 0, 99], []),
        ("eth0#0-3,5", [0, 1, 3, 5], [None, 4, 6]),
        ("eth0#7", [7], [None, 6, 8, 77]),
        ("eth0# 1 , 2-2", [1, 2], [0, 3]),
    ],
)
def test_virtual_functions_by_ranges(text: str, inside: list[int | None], outside: list[int | None]) -> None:
    chosen = selectors.virtual_functions(text)
    assert chosen.physical == "eth0"
    assert all(chosen.holds(index) for index in inside)
    assert not any(chosen.holds(index) for index in outside)


@given(st.text(max_size=40))
def test_valid_selectors_can_be_used(text: str) -> None:
    for check in (selectors.name_problem, selectors.address_problem, selectors.hex_problem):
        if check(text) is None:
            selectors.any_matches([text], ["eth0", "0000:3b:00.0"])
    if selectors.function_name_problem(text) is None:
        selectors.virtual_functions(text).holds(1)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 50)), min_size=1), st.integers(0, 400))
def test_ranges_of_virtual_functions(parts: list[tuple[int, int]], index: int) -> None:
    written = ",".join(f"{first}-{first + more}" if more else str(first) for first, more in parts)
    expected = any(first <= index <= first + more for first, more in parts)
    assert selectors.virtual_functions(f"ens1f0np0#{written}").holds(index) == expected


def test_no_patterns_hold_for_all_and_patterns_for_no_empty_name() -> None:
    assert selectors.any_matches([], [])
    assert not selectors.any_matches(["*"], ["", ""])
    assert selectors.any_matches(["mlx5*", "vfio-pci"], ["", "mlx5_core"])
    assert not selectors.any_matches(["MLX5*"], ["mlx5_core"])


def test_addresses_are_sorted_as_the_hexadecimal_that_they_are() -> None:
    addresses = ["0000:a4:00.0", "0000:3b:00.1", "0000:19:00.0", "0000:3b:00.0"]
    assert sorted(addresses, key=natural) == sorted(addresses)
