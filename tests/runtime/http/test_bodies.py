"""runtime.http.bodies: how pieces are written."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.http.bodies import LARGE, portions

SIZES = st.lists(st.sampled_from([0, 1, 900, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE + 5]), max_size=12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SIZES)
def test_pieces_are_written_in_order_and_in_portions(sizes: list[int]) -> None:
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    found = list(portions(pieces))
    assert b"".join(found) == b"".join(pieces)
    assert all(len(portion) <= LARGE for portion in found)
    # No two neighbours of small pieces that one write could have taken.
    small = list(portions([piece for piece in pieces if len(piece) <= LARGE]))
    assert all(len(one) + len(two) > LARGE for one, two in pairwise(small))
