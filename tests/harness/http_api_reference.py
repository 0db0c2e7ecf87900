"""The examples of docs/http-api.md, from an exporter with a fixed state.

`cd tests && python -m harness.http_api_reference` writes them anew.
"""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from exporter.mapping.model import Holder
from exporter.mapping.state import State
from exporter.web.app import build
from harness import scene
from harness.application import site

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "http-api.md"
EXAMPLE: Final = re.compile(
    r"```console\n\$ curl -s '?http://localhost:10190(?P<path>[^'\n]*)'?\n```\n\n```json\n(?P<answer>.*?)```\n",
    re.DOTALL,
)

NOW: Final = 1_795_144_325.5  # 2026-11-20T03:12:05.500Z


def _state() -> State:
    snapshot = scene.snapshot(
        scene.device("GPU-1a2b", Holder("ml", "llama-0", "trainer", "3f2a6c1e")),
        scene.device("GPU-3c4d", Holder("batch", "render-1", "blender", "91c7c3a5"), ok=False),
        scene.device("GPU-5e6f"),
    )
    return scene.state(snapshot, generation=17, at=NOW - 2.25)


def application() -> web.Application:
    """The exporter of the examples."""
    triggers = ("timer every 5 s", "inotify on device-plugins", "inotify on pod-resources")
    return build(site(_state(), NOW, triggers=lambda: triggers, version="0.1.0", run="9f0c1b2a"))


async def answers(paths: list[str]) -> dict[str, Any]:
    """What the exporter of the examples says at each path."""
    async with TestClient(TestServer(application())) as client:
        return {path: await (await client.get(path)).json(content_type=None) for path in paths}


def renewed(text: str, answer_of: Callable[[str], Any]) -> str:
    """The document with the answer of each example replaced."""

    def fresh(match: re.Match[str]) -> str:
        answer = json.dumps(answer_of(match["path"]), indent=2, ensure_ascii=False)
        return match[0].replace(match["answer"], f"{answer}\n")

    return EXAMPLE.sub(fresh, text)


if __name__ == "__main__":
    document = DOCUMENT.read_text()
    found = asyncio.run(answers([match["path"] for match in EXAMPLE.finditer(document)]))
    DOCUMENT.write_text(renewed(document, lambda path: found[path]))
