"""Sizes in bytes, as Prometheus writes them."""

import re
from typing import Final

_UNITS: Final[dict[str, int]] = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
_SIZE: Final = re.compile(rf"([0-9]{{1,15}})({'|'.join(_UNITS)})")


def parse_size(text: str) -> int:
    """Bytes of `64MiB`, `512MB`, `1GiB` or `1048576`; units are powers of 1024, with the i and without it.

    Raises ValueError for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"found {text!r}, expected a size such as 64MiB, 1GiB or 1048576")
    return int(match[1]) * _UNITS[match[2]]
