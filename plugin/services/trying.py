"""Several things of which one that fails must not hold up the others."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def try_each(items: Iterable[T], do: Callable[[T], object]) -> None:
    """Do it for each of `items`. Raises the first OSError, once all were tried."""
    first: OSError | None = None
    for item in items:
        try:
            do(item)
        except OSError as error:
            first = first or error
    if first is not None:
        raise first
