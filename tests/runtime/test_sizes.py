"""runtime.flags: sizes as Prometheus writes them."""

import pytest

from runtime.flags import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("10B", 10),
        ("64MiB", 64 << 20),
        ("64MB", 64 << 20),
        (" 1GiB ", 1 << 30),
        ("2TB", 2 << 40),
        ("3KiB", 3072),
    ],
)
def test_a_size_is_read_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "1.5GiB", "-1", "64 MiB", "64mib", "MiB", "9" * 16, "1PiB", "٣"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as"):
        parse_size(text)
