"""A past behind the world of the pages."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.lives import Life
from harness.past import Past


@pytest.fixture
def past(world: SimpleNamespace) -> Past:
    """A past that begins an hour before the present. The world's pages ask it; its clock is the life's."""
    found = Past(Life(None, wall=world.now - 3600.0).start())
    world.site = replace(world.site, history=found)
    return found
