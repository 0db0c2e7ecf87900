"""The examples of docs/http-api.md, asked of an exporter of which everything is known.

`cd tests && python -m harness.http_api_reference` writes them anew.
"""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from exporter.history.archive import QueryMoment
from exporter.history.query import HistoryQuery, HistoryResult
from exporter.history.record import HoldingFacts, HoldingKey
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    AdvertisedDevice,
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Holder,
    PinnedMemory,
)
from exporter.mapping.state import State, StateStore
from exporter.web.app import build
from exporter.web.site import Site
from harness import scene
from harness.lives import PATIENCE, Life
from runtime.exposition import Format

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "http-api.md"
EXAMPLE: Final = re.compile(
    r"```console\n\$ curl -s '?http://localhost:10190(?P<path>[^'\n]*)'?\n```\n\n```json\n(?P<answer>.*?)```\n",
    re.DOTALL,
)

NOW: Final = 1_795_144_325.5  # 2026-11-20T03:12:05.500Z
_LLAMA: Final = Holder("ml", "llama-0", "trainer", "3f2a6c1e-5a56-4d0e-9a53-0d5f3c6f7b11")
_UIDS: Final = {"llama-0": _LLAMA.pod_uid, "bert-0": "0b1d2f4e-6a3c-4f0e-8d8e-3f0b6f0c9a11"}
_RENDER: Final = Holder("batch", "render-1", "blender", "91c7c3a5-0f4e-4a4a-8f31-f1a4dd1d9d02")


def _state() -> State:
    claim = ClaimDevice(
        ClaimDeviceKey("gpu.example.com", "worker-3", "gpu-0"),
        (ClaimHolder(_LLAMA, "ml", "shared-gpu"),),
        ("example.com/gpu=gpu-0",),
    )
    snapshot = scene.snapshot(
        scene.device("GPU-1a2b", _LLAMA, numa=(0,)),
        scene.device("GPU-3c4d", _RENDER, numa=(1,), ok=False),
        scene.device("GPU-5e6f", numa=(1,)),
        claims=[claim],
        pinned={_LLAMA: ((2, 3), (PinnedMemory("memory", (0,), 8 << 30),))},
    )
    ill = AdvertisedDevice(
        *(False, "XID 79: the GPU has fallen off the bus", NOW - 65.0, (1,)),
        attributes=(("model", "H100"), ("pci", "0000:3b:00.0")),
        last_allocated=NOW - 7200.0,
    )
    llama = PodIdentity(
        *(_LLAMA.namespace, _LLAMA.pod, _LLAMA.pod_uid, "Running"),
        workload=Workload("StatefulSet", "llama"),
        priority_class="high",
        labels=(("team", "nlp"),),
    )
    return scene.state(
        replace(snapshot, pods=14),
        generation=17,
        at=NOW - 2.25,
        changed_at=NOW - 65.0,
        since=NOW - 7200.0,
        pods={llama.key: llama},
        advertised=scene.reported({"GPU-3c4d": ill}, source="unix:/run/plugin.sock", received_at=NOW),
    )


class _Past:
    """One holding that ended, one that lasts."""

    def __init__(self) -> None:
        self.life = Life(None, wall=NOW - 7222.25).start()
        gone, lasting = (
            HoldingKey(scene.GPU, "", "", device, "", "", "", "ml", pod, "trainer")
            for device, pod in (("GPU-1a2b", "bert-0"), ("GPU-1a2b", "llama-0"))
        )
        self.life.look()
        self._see(gone)
        self._see(lasting)
        for _ in range(int((NOW - self.life.wall) // 5)):
            self._see(lasting)

    def _see(self, key: HoldingKey) -> None:
        workload = key.pod.rpartition("-")[0]
        self.life.look(key, facts=HoldingFacts(_UIDS[key.pod], "StatefulSet", workload, "", "worker-3"))

    async def find(self, question: HistoryQuery) -> HistoryResult:
        """As the historian does."""
        now = QueryMoment(self.life.sight.last, self.life.sight.failing, NOW, PATIENCE)
        return self.life.archive.find(question, now)


class _Exposition:
    """No example asks for it."""

    async def document(self, form: Format, *, compress: bool) -> bytes:
        return b""


def application() -> web.Application:
    """The exporter of the examples."""
    states = StateStore()
    states.publish(_state())
    return build(
        Site(
            states=states,
            node="worker-3",
            stale_after=60.0,
            poll_interval=5.0,
            clock=lambda: NOW,
            metrics=_Exposition(),
            triggers=lambda: ("timer every 5 s", "inotify on device-plugins", "inotify on pod-resources"),
            version="0.1.0",
            history=_Past(),
            run="9f0c1b2a",
        )
    )


async def answers(paths: list[str]) -> dict[str, Any]:
    """What the exporter of the examples says at each path."""
    async with TestClient(TestServer(application())) as client:
        return {path: await (await client.get(path)).json(content_type=None) for path in paths}


_NUMBERS: Final = re.compile(r"\[[\d,\s]+\]")


def _in_a_line(numbers: re.Match[str]) -> str:
    return " ".join(numbers[0].split()).replace("[ ", "[").replace(" ]", "]")


def renewed(text: str, told: Callable[[str], Any]) -> str:
    """The document with the examples as they are `told` now."""

    def fresh(match: re.Match[str]) -> str:
        answer = json.dumps(told(match["path"]), indent=2, ensure_ascii=False)
        return match[0].replace(match["answer"], f"{_NUMBERS.sub(_in_a_line, answer)}\n")

    return EXAMPLE.sub(fresh, text)


if __name__ == "__main__":
    document = DOCUMENT.read_text()
    found = asyncio.run(answers([match["path"] for match in EXAMPLE.finditer(document)]))
    DOCUMENT.write_text(renewed(document, lambda path: found[path]))
