"""docs/screenshots.py: every page that it takes a picture of is there, and every picture that it takes."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from aiohttp.test_utils import TestClient, TestServer

from exporter.web.app import build
from harness.showcase import SITES

DOCS = Path(__file__).parents[2] / "docs"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("screenshots", DOCS / "screenshots.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("node", SITES)
async def test_every_page_that_is_pictured_is_there(node: str) -> None:
    shots = [shot for shot in script().SHOTS if shot.node == node]
    assert shots
    async with TestClient(TestServer(build(SITES[node]()))) as client:
        for shot in shots:
            answer = await client.get(shot.address)
            assert answer.status == 200, shot.address


def test_every_picture_is_there_and_readme_s_is_the_first() -> None:
    shots = script().SHOTS
    assert len({shot.name for shot in shots}) == len(shots)
    for shot in shots:
        assert (DOCS / "images" / f"{shot.name}.png").read_bytes().startswith(b"\x89PNG")
    first = DOCS / "images" / f"{shots[0].name}.png"
    assert first.read_bytes() == (DOCS / "status-page.png").read_bytes()
