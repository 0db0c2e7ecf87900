"""Exporters' histories for the tests of history on disk."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.lives import Life


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Callable[..., Life]]:
    """Starts exporters' histories, in tmp_path/history.db unless said otherwise, and ends them."""
    lives: list[Life] = []

    def start(path: Path | None = tmp_path / "history.db", **settings: object) -> Life:
        lives.append(Life(path, **settings).start())  # type: ignore[arg-type] # as given
        return lives[-1]

    yield start
    for life in lives:
        life.archive.close()
